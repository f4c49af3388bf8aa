"""The command that says how good a fine-tuned model is."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.choice import Choice, choosing
from flows.cli.commands.build import execute
from flows.cli.registry import AsJson, context_of, model_address, named, say, tracker_of
from pipelines.config.errors import UserError

if TYPE_CHECKING:
    from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile

_OF_LABELS = "dataset.source."  # settings that say how labelled items are read


@choosing(
    "corpus", "corpus_column", "layout", "seeds", "search", "store", "workers", "training_workers"
)
def evaluate(
    choice: Choice,
    model: Annotated[
        str | None,
        typer.Option(
            help="A fine-tuned model: name, name@alias, name/version, a fingerprint or a folder. "
            "--task chooses one if it has several tasks."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a fine-tuned model.

    A recipe's own on its held-out items, building what is missing; or, with --model, a registered
    one on every item of a labelled file of its task, or on the split that --heldout names if
    --labels is a dataset's folder.

    Example: bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv
    """
    if model is None:
        if as_json:
            raise UserError("--json requires --model")
        execute("evaluate", choice, show_recipe=False)
        return
    _labels_for_model(choice)
    tracker = tracker_of(choice.home)
    from pipelines.inference.model_evaluation import evaluate_file

    figures, report = evaluate_file(
        tracker,
        named(model, choice.home),
        _labelled_by(choice),
        choice.task,
        context_of(choice.home).store,
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


def _labels_for_model(choice: Choice) -> str:
    """What --labels names; raises UserError for options that do not go with --model."""
    is_dataset = choice.labels is not None and Path(choice.labels).is_dir()
    is_for_recipe = (choice.heldout and not is_dataset) or any(
        not each.startswith(_OF_LABELS) for each in choice.overrides or ()
    )
    if choice.recipe is not None or choice.encoder or is_for_recipe:
        raise UserError(
            "--model evaluates an existing model: leave out the recipe, --encoder, --heldout and "
            f"every --set but {_OF_LABELS}…, or leave out --model"
        )
    if choice.labels is None:
        raise UserError("--model requires --labels: the items to evaluate the model on")
    if is_dataset and not choice.heldout:
        raise UserError(f"{choice.labels} is a dataset: name the split to evaluate with --heldout")
    return choice.labels


def _labelled_by(choice: Choice) -> "LabelledDataset | LabelledFile":
    """The items that a choice names; of a dataset those of the held-out split alone."""
    from pipelines.recipes.files import read_recipe
    from pipelines.recipes.models import EndToEndRecipe
    from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile

    source = read_recipe(EndToEndRecipe, choice.source, choice.all_overrides()).dataset.source
    if isinstance(source, LabelledDataset):
        return source.model_copy(update={"split": source.heldout_split, "heldout_split": ""})
    assert isinstance(source, LabelledFile), "--labels names a file or a dataset's folder"
    return source
