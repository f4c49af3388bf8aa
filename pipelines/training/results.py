"""What a training run leaves: the files of its model and its statistics."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_core.model.rows import CODE_FILE
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Draft

# Inside a checkpoint.
MODEL_FOLDER = "model"  # what the training run goes on from
AVERAGED_FOLDER = "averaged"  # the model to publish, where an average of the weights is kept
BEST_FOLDER = "best"  # the model to publish, where the training run stops early
HISTORY_FILE = "history.json"

# What `publish_model` puts into an artifact.
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
MODEL_FILES = (WEIGHTS_FILE, CONFIG_FILE, *TOKENIZER_FILES, HISTORY_FILE)


def numbers(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The entries that a metric can hold."""
    return {
        key: float(value)
        for key, value in statistics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def publish_model(
    draft: Draft, checkpoint: Path, tokenizer: WordPieceTokenizer, result: Mapping[str, Any]
) -> None:
    """Put the model, its tokenizer and its training curve into the artifact.

    The model is the best one, or the average of the weights, where the last checkpoint holds one.
    """
    choices = (BEST_FOLDER, AVERAGED_FOLDER, MODEL_FOLDER)
    folder = next(checkpoint / name for name in choices if (checkpoint / name).is_dir())
    for name in (WEIGHTS_FILE, CONFIG_FILE, CODE_FILE):
        if (folder / name).is_file():
            with draft.file(name) as target:
                shutil.copyfile(folder / name, target.path)
    for name, text in tokenizer.files().items():
        with draft.file(name) as target:
            target.path.write_text(text, encoding="utf-8")
    with draft.file(HISTORY_FILE) as curve:
        curve.path.write_text(json.dumps(result["history"]))


def throughput(result: Mapping[str, Any]) -> dict[str, Any]:
    """How long the training run took, how fast it was and where it was resumed."""
    seconds = result["training_seconds"]
    return {
        "training_seconds": round(seconds, 3),
        "num_tokens": round(result["num_tokens"]),
        "tokens_per_second": round(result["num_tokens"] / seconds) if seconds else 0,
        "resumed_from": result["resumed_from"],
        "first_step_seconds": result["first_step_seconds"],
        # Only where something was found: a healthy training has none.
        **{name: result[name] for name in ("skipped", "rollbacks") if result[name]},
    }
