"""The command that evaluates a model on a person's own labelled items."""

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.cli.options import (
    AsJson,
    Home,
    LabelColumn,
    SecondTextColumn,
    Store,
    TextColumn,
    asked_confidence,
    context_of,
    named,
    registry_of,
    say,
    tracker_of,
)
from flows.cli.run import as_overrides, labelled_source
from pipelines.errors import UserError
from pipelines.registry.find import is_folder

# Settings of labelled items that divide a file; `evaluate` takes all of its items.
_OF_A_SPLIT = frozenset(
    {"heldout_path", "heldout_split", "heldout_fraction", "group_column", "seed"}
)


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
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    label_column: LabelColumn = None,
    slice_column: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="COLUMN",
            help="Also the score of the items with each value of this column, with its interval.",
        ),
    ] = None,
    num_suspects: Annotated[
        int,
        typer.Option(
            "--suspects",
            min=0,
            metavar="N",
            help="Also write the N items whose labels are most likely to be wrong to a CSV file "
            "here, called as the labels with -suspects.",
            show_default=False,
        ),
    ] = 0,
    min_confidence: Annotated[
        float,
        typer.Option(
            show_default=False,
            help="Also the share of items whose answer is at least so probable, and how many of "
            "these answers are right.",
        ),
    ] = 0.0,
    min_precision: Annotated[
        float,
        typer.Option(
            show_default=False,
            help="Like --min-confidence, with the probability from which on this share of the "
            "held-out answers was right, such as 0.95.",
        ),
    ] = 0.0,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="dataset.source.KEY=VALUE",
            help="How --labels is read, as in dataset.source.encoding=cp1252; repeatable.",
        ),
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a fine-tuned model on labelled items.

    Each item of the file counts, as the figures of a run count held-out ones. With --min-precision
    it also says how many items the model answers alone, and how many of those answers are right.
    A recipe's own model is evaluated on its held-out items by bertsmith run --until evaluation.

    Example: bertsmith evaluate --model bertsmith-classifier@champion --labels more.csv
    """
    if Path(labels).is_dir() and not split:
        raise UserError(f"{labels} is a dataset: name the split to evaluate with --split")
    if split and not Path(labels).is_dir():
        raise UserError(f"--split is for a dataset's folder, and {labels} is none; leave it out")
    options = labelled_source(labels, None, text_column, second_text_column, label_column) or {}
    for override in overrides or ():
        section, _, key = override.partition("=")[0].rpartition(".")
        if section != "dataset.source" or key in _OF_A_SPLIT:
            raise UserError(
                f"--set {override} does not say how --labels is read; set dataset.source.KEY=VALUE"
            )
        if key in options or key == "split":
            raise UserError(f"--set {override}: an option says that already; leave one of them out")
    settings: dict[str, object] = {"dataset.source": options, "dataset.source.split": split}
    confidence = asked_confidence(min_confidence, min_precision)
    target = Path(f"{Path(labels).stem}-suspects.csv")
    if num_suspects and target.exists():
        raise UserError(f"{target} exists; move it away first")
    reference = named(model, home, store)
    tracker = tracker_of(home) if is_folder(reference) else registry_of(home)
    from pipelines.predict.model_evaluation import SUSPECT_COLUMNS, evaluate_file
    from pipelines.recipes.files import read_recipe
    from pipelines.registry.package import Confidence, versioned
    from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile

    changes = [*as_overrides(settings), *(overrides or ())]
    source = read_recipe("own-encoder", changes).dataset.source
    assert isinstance(source, LabelledFile | LabelledDataset)
    artifacts = context_of(home, store).store
    reference = versioned(tracker, reference)
    figures, report = evaluate_file(
        tracker, reference, source, artifacts, slice_column or "", num_suspects,
        Confidence(*confidence),
    )  # fmt: skip
    say(f"model: {reference}")
    if num_suspects:
        try:
            with target.open("x", encoding="utf-8-sig", newline="") as file:  # as Excel reads it
                writer = csv.DictWriter(file, SUSPECT_COLUMNS)
                writer.writeheader()
                writer.writerows(report["suspects"])
        except OSError as error:
            raise UserError(f"{target} cannot be written here ({error.strerror})") from error
    if as_json:
        print(json.dumps({**figures, **report}, ensure_ascii=False))
        return
    _print_figures(figures, report, slice_column)
    if num_suspects:
        print(
            f"{len(report['suspects'])} labels most likely to be wrong, by "
            f"{' and '.join(report['judges'])}: {target}"
        )


def _print_figures(
    figures: dict[str, Any], report: dict[str, Any], slice_column: str | None
) -> None:
    """Tables for people: figures, classes, slices; then what to know about the items."""
    from pipelines.stages.figures import HEADER, aligned, style_of, task_rows
    from pipelines.tasks.calibration import alone_rows, calibration_rows

    rows = task_rows({**figures, "score": report["score"]}, figures) + calibration_rows(figures)
    if "alone" in report:
        rows += alone_rows(report["alone"])
    tables = [aligned(HEADER, rows)]
    if by_label := report.get("by_label"):
        shares = ("precision", "recall", "f1")
        header = ["label", *shares, "items"]
        lines = [
            [row["label"], *(f"{row[name]:.1%}" for name in shares), f"{row['items']:,}"]
            for row in by_label
        ]
        if alone := {row["label"]: row for row in report.get("alone", {}).get("by_label", ())}:
            header += ["answered alone", "right of those"]
            for line in lines:
                row = alone[line[0]]
                right = "" if row["precision"] is None else f"{row['precision']:.1%}"
                line += [f"{row['answered']:,}", right]
        tables.append(aligned(header, lines))
    if slices := report.get("slices"):
        score = report["score"].removeprefix("eval/")
        style = style_of(score, figures[report["score"]])
        tables.append(
            aligned(
                (slice_column or "", score.replace("_", " "), "95% interval", "items"),
                [
                    (
                        row["value"] or "(none)", f"{row['score']:{style}}",
                        f"{row['low']:{style}} to {row['high']:{style}}", f"{row['items']:,}",
                    )
                    for row in slices
                ],
            )
        )  # fmt: skip
    print("\n\n".join("\n".join(table) for table in tables))
    print(f"\n{figures['items']:,} items")
    if figures["items_truncated"]:
        print(
            f"{figures['items_truncated']:,} of them are longer than the model reads and were cut"
        )
    if figures.get("items_trained_on"):
        print(
            f"{figures['items_trained_on']:,} of them are training items of the model, which make "
            "these figures too high"
        )
