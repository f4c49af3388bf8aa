"""The command that says how good a fine-tuned model is on other items."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.commands.run import as_overrides, labelled_source
from flows.cli.registry import (
    AsJson,
    Home,
    LabelColumn,
    SecondTextColumn,
    Task,
    TextColumn,
    context_of,
    model_address,
    named,
    say,
    tracker_of,
)
from pipelines.errors import UserError


def evaluate(
    model: Annotated[
        str,
        typer.Option(
            help="A fine-tuned model: name, name@alias, name/version, a fingerprint or a folder."
        ),
    ],
    labels: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="The labelled items: a file, or the folder of a dataset."
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="The split to evaluate on, if --labels is a folder.")
    ] = None,
    task: Task = None,
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    label_column: LabelColumn = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="dataset.source.KEY=VALUE",
            help="How the items are read; repeatable.",
        ),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a fine-tuned model on every item of a labelled file of its task.

    A recipe's own model is evaluated on its held-out items by bertsmith run --until evaluation.

    Example: bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv
    """
    if Path(labels).is_dir() and not split:
        raise UserError(f"{labels} is a dataset: name the split to evaluate with --split")
    if any(not each.startswith("dataset.source.") for each in overrides or ()):
        raise UserError("--set changes dataset.source alone: the model is trained already")
    columns = (text_column, second_text_column, label_column)
    settings: dict[str, object] = {
        "dataset.source": labelled_source(labels, None, *columns),
        "dataset.source.split": split,
    }
    tracker = tracker_of(home)
    from pipelines.predict.model_evaluation import evaluate_file
    from pipelines.recipes.files import read_recipe
    from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile

    recipe = read_recipe("own-encoder", [*as_overrides(settings), *(overrides or ())])
    source = recipe.dataset.source
    if not isinstance(source, LabelledFile | LabelledDataset):
        raise UserError("--set changes how --labels are read, not dataset.source.kind")
    figures, report = evaluate_file(
        tracker, named(model, home), source, task, context_of(home).store
    )
    say(f"model: {model_address(report['model'])}")
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
