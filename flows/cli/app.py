"""The commands in one application, and what becomes of their errors.

Commands import what they need when they run: help has to come at once.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import Abort, Exit, TyperException

from flows.cli.commands import (
    build,
    checks,
    evaluation,
    exchange,
    lookups,
    models,
    platform,
    predict,
    promotion,
    recipes,
    services,
    store,
)
from pipelines.core.errors import UserError
from pipelines.core.versions import code_version

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="bertsmith",
    help="Raw text to a registered, fine-tuned BERT.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        print(f"bertsmith {code_version()}")
        raise Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_say_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    pass


build.add_to(app)
evaluation.add_to(app)
predict.add_to(app)
models.add_to(app)
promotion.add_to(app)
lookups.add_to(app)
exchange.add_to(app)
recipes.add_to(app)
store.add_to(app)
checks.add_to(app)
services.add_to(app)
platform.add_to(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    A mistake of the person who typed it becomes sentences on standard error; an error that nobody
    foresaw keeps its traceback.
    """
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name="bertsmith", standalone_mode=False)
    except UserError as error:
        return _tell(f"{error}", MISTAKE)
    except TyperException as error:  # a wrong option or argument
        return _tell(f"{error.format_message()} (see `bertsmith --help`)", MISTAKE)
    except Exit as request:
        return request.exit_code
    except Abort:
        result = INTERRUPTED
    if result == INTERRUPTED:  # Typer's answer to a KeyboardInterrupt
        _tell("stopped; what was finished is kept: the same command goes on from there", result)
    return result if isinstance(result, int) else DONE


def _tell(sentence: str, exit_code: int) -> int:
    print(f"bertsmith: {sentence}", file=sys.stderr)
    return exit_code
