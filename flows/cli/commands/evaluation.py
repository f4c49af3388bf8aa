"""The command that says how good a fine-tuned model is."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.choice import Choice
from flows.cli.commands.build import Recipe
from flows.cli.commands.models import named, tracker_of
from flows.cli.execution import execute
from flows.cli.options import (
    AsJson,
    Encoder,
    Heldout,
    Home,
    LabelColumn,
    Labels,
    Overrides,
    SecondTextColumn,
    Task,
    TextColumn,
)
from pipelines.core.errors import UserError


def add_to(app: typer.Typer) -> None:
    """Add this command to the application."""
    app.command()(evaluate)


def evaluate(
    recipe: Recipe = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A fine-tuned model: name, name@alias, name/version, a fingerprint or a folder."
        ),
    ] = None,
    labels: Labels = None,
    heldout: Heldout = None,
    task: Task = None,
    encoder: Encoder = None,
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
    is_for_recipe = heldout and not is_dataset
    if model is not None and (recipe is not None or overrides or encoder or task or is_for_recipe):
        raise UserError(
            "--model evaluates a model that is there, which a recipe, --set, --encoder, --task and "
            "--heldout cannot change; leave out --model, or these"
        )
    if model is not None and is_dataset and not heldout:
        raise UserError(
            f"--heldout must name the split of {labels} to evaluate on, found none; give it"
        )
    if model is None and as_json:
        raise UserError("--json prints the figures of a --model, found none; name one")
    if model is None:
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
        execute("evaluate", choice, show_recipe=False)
        return
    if labels is None:
        raise UserError("--model needs labelled items to be evaluated on; name them with --labels")
    tracker = tracker_of(home)
    from pipelines.insight.evaluation import evaluate_file
    from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile

    labelled: LabelledDataset | LabelledFile
    if heldout:
        labelled = LabelledDataset(dataset=labels, split=heldout)
    else:
        labelled = LabelledFile(path=labels)
    columns = {
        "text_column": text_column or "",
        "second_text_column": second_text_column or "",
        "label_column": label_column or "",
    }
    labelled = labelled.model_copy(update=columns)
    figures, report = evaluate_file(tracker, named(model, home) or model, labelled)
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
