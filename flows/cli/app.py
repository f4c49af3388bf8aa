"""The application of all commands, and how their errors become exit codes.

Commands import what they need when they run, so that help appears at once.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import Abort, Exit, TyperException

from flows.cli import evaluate, models, predict, servers, store
from flows.cli.run import recipes
from flows.cli.run import run as run_command
from flows.stopping import stops_kept
from pipelines.errors import UserError
from pipelines.versions import code_version

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="bertsmith",
    help="Raw text to a registered, fine-tuned BERT.",
    epilog="`bertsmith COMMAND --help` has options and an example of each.",
    no_args_is_help=True,
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
            "--version", callback=_say_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command("run")(run_command)
app.command("recipes")(recipes)
app.command("predict")(predict.predict)
app.command("fill-mask")(predict.fill_mask)
app.command("serve")(predict.serve)
app.command("models")(models.models)
app.command("evaluate")(evaluate.evaluate)
app.command("promote")(models.promote)
app.command("rollback")(models.rollback)
app.command("import")(models.import_folder)
app.command("export")(models.export_version)
app.add_typer(store.commands, name="store")
app.command("up")(servers.up)
app.command("down")(servers.down)
app.command("doctor")(servers.doctor)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    A mistake in the request becomes sentences on standard error; an unexpected error keeps its
    traceback.
    """
    command = typer.main.get_command(app)
    try:
        with stops_kept():
            result = command.main(list(arguments), prog_name="bertsmith", standalone_mode=False)
    except UserError as error:
        return _tell(f"{error}", MISTAKE)
    except TyperException as error:  # a wrong option or argument
        context = getattr(error, "ctx", None)
        command_path = context.command_path if context else "bertsmith"
        return _tell(f"{error.format_message()} (see `{command_path} --help`)", MISTAKE)
    except Exit as request:
        return request.exit_code
    except (Abort, KeyboardInterrupt):
        result = INTERRUPTED
    if result == INTERRUPTED:  # Typer's answer to a KeyboardInterrupt
        _tell("stopped; finished work is kept, run the same command to resume", result)
    return result if isinstance(result, int) else DONE


def _tell(sentence: str, exit_code: int) -> int:
    print(f"bertsmith: {sentence}", file=sys.stderr)
    return exit_code
