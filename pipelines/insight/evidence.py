"""What a person wants to see of a registered model, as files beside its run in MLflow."""

import csv
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_core.hugging_face import export_model
from pipelines.artifacts import Artifact
from pipelines.insight.pictures import confusion_picture, draw, training_panels
from pipelines.registry.opening import opened
from pipelines.tracking.tracker import Tracker

_FOLDER = "hugging_face"  # of the run, opens with transformers' Auto classes
_MOST_CLASSES = 40  # of a matrix that can be read


def log_evidence(
    tracker: Tracker, run_id: str, model: Artifact, evaluation: Artifact | None = None
) -> list[str]:
    """Keep with the run pictures and tables of `model`; the names of the files.

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
