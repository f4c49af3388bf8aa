"""What a person wants to see of a registered model, as files beside its run in MLflow."""

import csv
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bert_core.hugging_face import export_model
from pipelines.artifacts import Artifact
from pipelines.core.tracking.tracker import Tracker
from pipelines.insight.pictures import draw, training_panels
from pipelines.insight.png import png_of
from pipelines.registry.opening import opened

_FOLDER = "hugging_face"  # of the run, opens with transformers' Auto classes
_MOST_CLASSES = 40  # of a matrix that can be read


def log_evidence(
    tracker: Tracker, run_id: str, model: Artifact, evaluation: Artifact | None = None
) -> list[str]:
    """Keep with the run what can be drawn and told of `model`; the names of the files.

    Its curves; of an evaluation the report, a table by label and the confusion matrix; and the
    model as `transformers` opens it, or why that cannot be. Raises MlflowException where the
    tracker does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="bertsmith-evidence-") as scratch:
        folder = Path(scratch) / "files"
        folder.mkdir()
        if "history.json" in model.names():
            history = json.loads(model.local("history.json").read_text())
            panels = training_panels(history, model.statistics)
            if panels:
                (folder / "curves.png").write_bytes(draw(panels))
        if evaluation is not None:
            text = evaluation.local("report.json").read_text(encoding="utf-8")
            (folder / "report.json").write_text(text, encoding="utf-8")
            _write_tables(folder, json.loads(text))
        try:
            export_model(folder / _FOLDER, *opened(model.local_folder()))
        except (ValueError, KeyError) as error:  # a head that no class of theirs has
            said = f"transformers has no class for this model: {error}\n"
            (folder / f"{_FOLDER}.txt").write_text(said, encoding="utf-8")
        tracker.client().log_artifacts(run_id, str(folder))
        return sorted(
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        )


def confusion_picture(labels: Sequence[str], confusion: Sequence[Sequence[int]]) -> bytes:
    """The confusion matrix as a PNG: a row an expected, a column an answered class."""
    size = 2.5 + 0.45 * len(labels)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(confusion, cmap="Blues")
    axes.set_xticks(range(len(labels)), labels, rotation=90)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("answered")
    axes.set_ylabel("expected")
    most = max((max(row) for row in confusion), default=0)
    for row, counts in enumerate(confusion):
        for column, count in enumerate(counts):
            colour = "white" if 2 * count > most else "black"
            axes.text(column, row, f"{count:,}", ha="center", va="center", color=colour)
    return png_of(figure)


def _write_tables(folder: Path, report: Mapping[str, Any]) -> None:
    if report.get("by_label"):
        with (folder / "by_label.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(report["by_label"][0]))
            writer.writeheader()
            writer.writerows(report["by_label"])
    if "confusion" in report:
        labels, confusion = report["labels"], report["confusion"]
        with (folder / "confusion.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["expected \\ answered", *labels])
            rows.writerows([label, *row] for label, row in zip(labels, confusion, strict=True))
        if len(labels) <= _MOST_CLASSES:
            (folder / "confusion.png").write_bytes(confusion_picture(labels, confusion))
