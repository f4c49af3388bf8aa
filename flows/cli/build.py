"""Commands that run a flow: the whole chain, and each stage alone."""

from collections.abc import Callable
from typing import Annotated

import typer

from flows.cli.choice import Choice
from flows.cli.execution import execute
from flows.cli.options import (
    Corpus,
    Home,
    LabelColumn,
    Labels,
    Layout,
    Overrides,
    ShowRecipe,
    Store,
    TextColumn,
    TrainingWorkers,
    Workers,
)

Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="A preset (see `bertsmith recipes list`) or a YAML file. "
        "[default: demo; own-text with --corpus]",
        show_default=False,
    ),
]

_DATA_COMMANDS = {
    "corpus": ("Read, clean and divide the text.", "bertsmith corpus demo --workers 2"),
    "vocabulary": (
        "Learn the WordPiece vocabulary of the corpus.",
        "bertsmith vocabulary --set vocabulary.size=16000",
    ),
    "examples": (
        "Write training examples as Arrow shards.",
        "bertsmith examples --set examples.mask_fraction=0.2",
    ),
    "pretrain": (
        "Pretrain an encoder.",
        "bertsmith pretrain --corpus 'texts/*.txt' --set pretraining.size=mini",
    ),
}
_TASK_COMMANDS = {
    "run": (
        "Everything, from raw text to registered models that proved themselves.",
        "bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars",
    ),
    "finetune": (
        "Fine-tune a classifier from the pretrained encoder.",
        "bertsmith finetune demo --labels reviews.csv",
    ),
}


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for name, (promise, example) in _TASK_COMMANDS.items():
        app.command(name, help=_help(promise, example))(_task_command(name))
    for name, (promise, example) in _DATA_COMMANDS.items():
        app.command(name, help=_help(promise, example))(_data_command(name))


def _help(promise: str, example: str) -> str:
    return (
        f"{promise}\n\nWhat exists already is reused; what was interrupted goes on.\n\n"
        f"Example: {example}"
    )


def _data_command(name: str) -> Callable[..., None]:
    def command(
        recipe: Recipe = None,
        overrides: Overrides = None,
        corpus: Corpus = None,
        layout: Layout = None,
        home: Home = None,
        store: Store = None,
        workers: Workers = None,
        training_workers: TrainingWorkers = None,
        show_recipe: ShowRecipe = False,
    ) -> None:
        choice = Choice(
            recipe=recipe,
            overrides=tuple(overrides or ()),
            corpus=tuple(corpus or ()),
            layout=layout,
            home=home,
            store=store,
            num_workers=workers,
            training_workers=training_workers,
        )
        execute(name, choice, show_recipe=show_recipe)

    return command


def _task_command(name: str) -> Callable[..., None]:
    def command(
        recipe: Recipe = None,
        overrides: Overrides = None,
        corpus: Corpus = None,
        layout: Layout = None,
        labels: Labels = None,
        text_column: TextColumn = None,
        label_column: LabelColumn = None,
        home: Home = None,
        store: Store = None,
        workers: Workers = None,
        training_workers: TrainingWorkers = None,
        show_recipe: ShowRecipe = False,
    ) -> None:
        choice = Choice(
            recipe=recipe,
            overrides=tuple(overrides or ()),
            corpus=tuple(corpus or ()),
            layout=layout,
            labels=labels,
            text_column=text_column,
            label_column=label_column,
            home=home,
            store=store,
            num_workers=workers,
            training_workers=training_workers,
        )
        execute(name, choice, show_recipe=show_recipe)

    return command
