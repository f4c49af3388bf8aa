"""Commands that run a flow: the whole chain, and each stage alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from flows.cli.choice import Choice, choosing
from flows.cli.execution import END_TO_END, execute
from pipelines.config.errors import UserError
from pipelines.stage import Stage
from pipelines.stages import (
    CHAIN,
    DATASET,
    EVALUATION,
    PRETRAINING,
    with_what_they_need,
)

_STAGES = tuple(stage.command for stage in CHAIN)
_OF_LABELS = (
    "labels", "heldout", "task", "text_column", "second_text_column", "label_column", "seeds",
    "search",
)  # fmt: skip

ShowRecipe = Annotated[
    bool,
    typer.Option("--show-recipe", help="Print every value of the recipe as YAML and run nothing."),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="STAGE",
        help=f"Stop after this stage: {', '.join(_STAGES)}.",
        autocompletion=lambda incomplete: [n for n in _STAGES if n.startswith(incomplete)],
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application: the whole chain, and one for each stage of it."""
    app.command(END_TO_END)(run)
    for stage in CHAIN:
        if stage is not EVALUATION:  # its command takes registered models, too: `evaluation.py`
            app.command(stage.command)(_command(stage))


@choosing()
def run(choice: Choice, until: Until = None, show_recipe: ShowRecipe = False) -> None:
    """Build everything, from raw text to registered models.

    What exists already is reused, and interrupted work is resumed. Each model is verified: loaded
    in a new process, it has to reproduce its held-out score.

    Example: bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars
    """
    if until is not None and until not in _STAGES:
        raise UserError(f"--until {until}: no such stage; choose one of {', '.join(_STAGES)}")
    _build(until or END_TO_END, choice, show_recipe)


def _command(stage: Stage) -> Callable[..., None]:
    def build(choice: Choice, show_recipe: ShowRecipe = False) -> None:
        _build(stage.command, choice, show_recipe)

    build.__doc__ = (
        f"{stage.purpose}\n\nWhat exists already is reused, and interrupted work is resumed.\n\n"
        f"Example: {stage.example}"
    )
    if DATASET in with_what_they_need([stage]):
        return choosing()(build)
    return choosing(*_OF_LABELS, *(() if stage is PRETRAINING else ("encoder",)))(build)


def _build(command: str, choice: Choice, show_recipe: bool) -> None:
    choice = replace(choice, is_pretraining=command == PRETRAINING.command)
    execute(command, choice, show_recipe=show_recipe)
