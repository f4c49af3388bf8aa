"""What a training leaves: the files of its model, and a run in the tracker."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Draft
from pipelines.core.machine import computing_machine
from pipelines.core.settings import Settings
from pipelines.core.stage import StageContext

MODEL_FOLDER = "model"  # inside a training checkpoint
HISTORY_FILE = "history.json"


def open_run(stage: str, settings: Settings, fingerprint: str, context: StageContext) -> str | None:
    """The tracker's run of this training, found again after a restart; None without a tracker."""
    if context.tracker is None:
        return None
    return context.tracker.open_run(
        f"{stage}-{fingerprint[:8]}",
        fingerprint,
        params=settings.model_dump(mode="json"),
        tags={"bertsmith.stage": stage},
    )


def recorded(
    run_id: str | None, context: StageContext, train: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Run the training and end its run: with the statistics it returns, as failed or as killed."""
    if run_id is None or context.tracker is None:
        return train()
    try:
        statistics = train()
    except BaseException as error:
        context.tracker.abandon(run_id, error)
        raise
    context.tracker.finish(run_id, numbers(statistics), computed_on=computing_machine())
    return statistics


def numbers(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The entries that a metric can hold."""
    return {
        key: float(value)
        for key, value in statistics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def publish_model(
    draft: Draft, checkpoint: Path, tokenizer: WordPieceTokenizer, told: Mapping[str, Any]
) -> None:
    """Put the model, its tokenizer and its training curve into the artifact."""
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        with draft.file(name) as target:
            shutil.copyfile(checkpoint / MODEL_FOLDER / name, target.path)
    for name, text in tokenizer.files().items():
        with draft.file(name) as target:
            target.path.write_text(text, encoding="utf-8")
    with draft.file(HISTORY_FILE) as curve:
        curve.path.write_text(json.dumps(told["history"]))


def throughput(told: Mapping[str, Any]) -> dict[str, Any]:
    """How long the training took, how fast it was and where it was taken up again."""
    seconds = told["training_seconds"]
    return {
        "training_seconds": round(seconds, 3),
        "num_tokens": round(told["num_tokens"]),
        "tokens_per_second": round(told["num_tokens"] / seconds) if seconds else 0,
        "resumed_from": told["resumed_from"],
    }
