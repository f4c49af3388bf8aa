"""When a model may answer alone: the probability below which it gives no answer.

A model that was evaluated carries a table (`confidence.json`): by precision, the least probability
from which on so large a share of its held-out answers was right, had one more been wrong.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CONFIDENCE_FILE: Final = "confidence.json"
GUESS: Final = "guess"  # the column of what would have been answered


def least_probability(folder: Path, precision: float) -> float:
    """The probability from which on at least `precision` of the held-out answers were right.

    Raises ValueError where the model in `folder` has no such table, or never was as good.
    """
    path = folder / CONFIDENCE_FILE
    if not path.is_file():
        raise ValueError(
            "the model has no table of precisions (it gives no probabilities, was imported, is no "
            "registered version, or is older); name a probability with min_confidence"
        )
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["precision"]
    for row in rows:
        if row["precision"] >= precision and row["min_confidence"] is not None:
            return float(row["min_confidence"])
    best = max((row["precision"] for row in rows if row["min_confidence"] is not None), default=0)
    raise ValueError(
        f"no probability gives a precision of {precision:g} on the held-out items, the best is "
        f"{best:g}; ask for less"
    )


def withheld(answers: Mapping[str, list[Any]], min_confidence: float) -> dict[str, list[Any]]:
    """The answers, of which those below `min_confidence` are None; `guess` holds all of them."""
    name = next(iter(answers))
    kept = [
        answer if probability >= min_confidence else None
        for answer, probability in zip(answers[name], answers["probability"], strict=True)
    ]
    return {**answers, name: kept, GUESS: answers[name]}
