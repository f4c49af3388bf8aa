"""The command that says how good a fine-tuned model is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.asked_model import model_address, say
from flows.cli.choice import Choice
from flows.cli.commands.build import Recipe
from flows.cli.execution import execute
from flows.cli.options import (
    AsJson,
    Home,
    LabelColumn,
    Labels,
    Overrides,
    SecondTextColumn,
    TextColumn,
)
from flows.cli.registry import context_of, named, tracker_of
from pipelines.core.errors import UserError

if TYPE_CHECKING:
    from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile

_OF_LABELS = "labelled.source."  # settings that say how labelled items are read


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(evaluate)


def _labelled_by(choice: Choice) -> "LabelledDataset | LabelledFile":
    """The items that a choice names; of a data set those of the held-out split alone."""
    from pipelines.core.recipes.files import read_recipe
    from pipelines.core.recipes.ladder import EndToEndRecipe
    from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile

    source = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides()).labelled.source
    if isinstance(source, LabelledDataset):
        return source.model_copy(update={"split": source.heldout_split, "heldout_split": ""})
    assert isinstance(source, LabelledFile), "--labels names a file or a data set's folder"
    return source


def evaluate(
    recipe: Recipe = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A fine-tuned model: name, name@alias, name/version, a fingerprint or a folder."
        ),
    ] = None,
    labels: Labels = None,
    heldout: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Without --model: the items to evaluate on, beside those of --labels to learn "
            "from. Where --labels is a data set's folder: the split to evaluate on.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="What is learned of --labels, as in `bertsmith finetune`. With --model: its task, "
            "where several tasks have such models.",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Without --model: fine-tune this encoder, then evaluate that."
        ),
    ] = None,
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    label_column: LabelColumn = None,
    overrides: Overrides = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a fine-tuned model.

    A recipe's own on its held-out items, building what is missing; or, with --model, a registered
    one on every item of a labelled file of its task, or of the split that --heldout names where
    --labels is a data set's folder.

    Example: bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv
    """
    is_dataset = labels is not None and Path(labels).is_dir()
    is_for_recipe = (heldout and not is_dataset) or any(
        not each.startswith(_OF_LABELS) for each in overrides or ()
    )
    if model is not None and (recipe is not None or encoder or is_for_recipe):
        raise UserError(
            "--model evaluates a model that is there, which a recipe, --encoder, --heldout and "
            f"--set cannot change, but for --set {_OF_LABELS}…; leave out --model, or these"
        )
    if model is not None and is_dataset and not heldout:
        raise UserError(
            f"--heldout must name the split of {labels} to evaluate on, found none; give it"
        )
    if model is None and as_json:
        raise UserError("--json prints the figures of a --model, found none; name one")
    choice = Choice(
        recipe=recipe,
        overrides=tuple(overrides or ()),
        labels=labels,
        heldout=heldout,
        task=task,
        encoder=encoder,
        text_column=text_column,
        second_text_column=second_text_column,
        label_column=label_column,
        home=home,
    )
    if model is None:
        execute("evaluate", choice, show_recipe=False)
        return
    if labels is None:
        raise UserError("--model needs labelled items to be evaluated on; name them with --labels")
    tracker = tracker_of(home)
    from pipelines.inference.model_evaluation import evaluate_file

    labelled = _labelled_by(choice)
    figures, report = evaluate_file(
        tracker, named(model, home) or model, labelled, task, context_of(home).store
    )
    say(f"model: {model_address(report['model'])}")
    for sentence in report["columns"]:
        say(f"{labels}: {sentence}")
    if as_json:
        print(json.dumps({**figures, **report}, ensure_ascii=False))
        return
    for name, value in figures.items():
        print(f"{name:<24} {value:.4f}" if isinstance(value, float) else f"{name:<24} {value}")
    if "by_label" not in report:
        return
    print(f"\n{'label':<24} {'precision':>9} {'recall':>9} {'F1':>9} {'items':>7}")
    for row in report["by_label"]:
        print(
            f"{row['label']:<24} {row['precision']:>9.1%} {row['recall']:>9.1%} "
            f"{row['f1']:>9.1%} {row['items']:>7}"
        )
