"""Commands that run a flow: the whole chain, and each stage alone."""

from collections.abc import Callable
from typing import Annotated

import typer

from flows.cli.choice import Choice
from flows.cli.execution import END_TO_END, execute
from flows.cli.options import (
    Corpus,
    Encoder,
    Heldout,
    Home,
    LabelColumn,
    Labels,
    Layout,
    Overrides,
    Search,
    SecondTextColumn,
    Seeds,
    ShowRecipe,
    Store,
    Task,
    TextColumn,
    TrainingWorkers,
    Workers,
)
from pipelines.stages import CHAIN, EVALUATION, LABELLED, PRETRAINING, with_what_they_need

Recipe = Annotated[
    str | None,
    typer.Argument(
        metavar="[RECIPE]",
        help="A preset (see `bertsmith recipes list`) or a YAML file. "
        "[default: demo; own-text with --corpus]",
        show_default=False,
    ),
]

_RUN = (
    "Everything, from raw text to registered models that proved themselves.",
    "bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars",
)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application: one for each stage of the chain, and the whole."""
    app.command(END_TO_END, help=_help(*_RUN))(_labelled_command(END_TO_END))
    for stage in CHAIN:
        if stage is EVALUATION:
            continue  # its command takes registered models, too: `evaluation.py`
        takes_labels = LABELLED in with_what_they_need([stage])
        make = _labelled_command if takes_labels else _text_command
        if stage is PRETRAINING:
            make = _pretraining_command
        app.command(stage.command, help=_help(stage.purpose, stage.example))(make(stage.command))


def _help(promise: str, example: str) -> str:
    return (
        f"{promise}\n\nWhat exists already is reused; what was interrupted goes on.\n\n"
        f"Example: {example}"
    )


def _text_command(name: str) -> Callable[..., None]:
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


def _pretraining_command(name: str) -> Callable[..., None]:
    def command(
        recipe: Recipe = None,
        overrides: Overrides = None,
        encoder: Annotated[
            str | None,
            typer.Option(
                metavar="MODEL",
                help="Go on from this encoder: a folder (ours or a published BERT), "
                "models:/name@alias, or a fingerprint of the store.",
            ),
        ] = None,
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
            encoder=encoder,
            is_pretraining=True,
            corpus=tuple(corpus or ()),
            layout=layout,
            home=home,
            store=store,
            num_workers=workers,
            training_workers=training_workers,
        )
        execute(name, choice, show_recipe=show_recipe)

    return command


def _labelled_command(name: str) -> Callable[..., None]:
    def command(
        recipe: Recipe = None,
        overrides: Overrides = None,
        corpus: Corpus = None,
        layout: Layout = None,
        labels: Labels = None,
        heldout: Heldout = None,
        task: Task = None,
        encoder: Encoder = None,
        text_column: TextColumn = None,
        second_text_column: SecondTextColumn = None,
        label_column: LabelColumn = None,
        seeds: Seeds = None,
        search: Search = False,
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
            heldout=heldout,
            task=task,
            encoder=encoder,
            text_column=text_column,
            second_text_column=second_text_column,
            label_column=label_column,
            seeds=seeds,
            search=search,
            home=home,
            store=store,
            num_workers=workers,
            training_workers=training_workers,
        )
        execute(name, choice, show_recipe=show_recipe)

    return command
