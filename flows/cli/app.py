"""The application of all commands, and how their errors become exit codes.

Commands import what they need when they run, so that help appears at once.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit, TyperException

from flows.cli.commands import (
    build,
    evaluation,
    exchange,
    models,
    pictures,
    platform,
    predict,
    promotion,
    services,
    store,
)
from pipelines.config.errors import UserError
from pipelines.config.versions import code_version

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130

# What help lists; other names still work.
_GROUPS = {
    "Make models": ("run", "pretrain", "finetune", "evaluate", "recipes"),
    "Use models": (
        "predict", "fill-mask", "serve", "models", "promote", "rollback", "import", "export",
    ),
    "Servers and storage": ("up", "down", "env", "doctor", "deploy", "store", "prune"),
}  # fmt: skip


class _Grouped(TyperGroup):
    """Help that lists commands under what they are for."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups, one below the other."""
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(limit=200)) for name in names]
                )


app = typer.Typer(
    name="bertsmith",
    help="Raw text to a registered, fine-tuned BERT.",
    epilog="`bertsmith COMMAND --help` has options and an example of each.",
    cls=_Grouped,
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


_COMMANDS: dict[str, Callable[..., None]] = {
    "evaluate": evaluation.evaluate,
    "fill-mask": pictures.fill_mask,
    "serve": services.serve,
    "models": models.models,
    "promote": promotion.promote,
    "rollback": promotion.rollback,
    "import": exchange.import_folder,
    "export": exchange.export_version,
    "store": store.show,
    "prune": store.prune,
    "doctor": services.doctor,
    "up": services.up,
    "env": services.env,
    "down": services.down,
    "deploy": platform.deploy,
}
_OLD_NAMES: dict[str, Callable[..., None]] = {
    "inspect": pictures.attention,
    "similar": pictures.similar,
    "sizes": build.sizes,
}
build.add_to(app)
predict.add_to(app)
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
for _name, _command in _OLD_NAMES.items():
    app.command(_name, hidden=True)(_command)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    A mistake in the request becomes sentences on standard error; an unexpected error keeps its
    traceback.
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
        _tell("stopped; finished work is kept, run the same command to resume", result)
    return result if isinstance(result, int) else DONE


def _tell(sentence: str, exit_code: int) -> int:
    print(f"bertsmith: {sentence}", file=sys.stderr)
    return exit_code
