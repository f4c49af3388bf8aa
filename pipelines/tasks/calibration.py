"""Whether probabilities mean what they say, and how much can be answered at which precision.

N = answers, C = classes.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipelines.tasks import Answers, Probable

_BINS: Final = 10
# Those that are shown, and all that a request can be translated by.
SHOWN: Final = (0.9, 0.95, 0.99)
_PRECISIONS: Final = (*(round(0.5 + n / 100, 2) for n in range(50)), 0.995, 0.999)
_FEWEST_ANSWERS: Final = 20  # of which a precision says anything


def calibration_figures(probable: Probable, temperature: float) -> dict[str, float]:
    """Log loss and expected calibration error, and both without the temperature.

    The error (Naeini et al., 2015) is the mean distance of probability and accuracy in ten equally
    wide bins of the answers' probabilities.
    """
    figures = {}
    plain = probable.probabilities
    if temperature != 1.0:  # else dividing by the sum would round
        powers = plain**temperature
        plain = powers / powers.sum(axis=1, keepdims=True)
    for name, probabilities in (("", probable.probabilities), ("uncalibrated_", plain)):
        confidences, is_right = _answers(probabilities, probable.classes)
        losses = _log_losses(probabilities, probable.classes)
        figures[f"confidence/{name}log_loss"] = float(losses.mean())
        error = sum(
            row["items"] * abs(row["confidence"] - row["accuracy"])
            for row in _reliability(confidences, is_right)
        )
        figures[f"confidence/{name}calibration_error"] = float(error / len(is_right))
    return figures


def log_losses(answers: Answers) -> list[float] | None:
    """The log loss of each item; None without one probability of the right answer an item."""
    probable = answers.probable
    if probable is None or len(probable.classes) != len(answers.values):
        return None
    losses: list[float] = _log_losses(*probable).tolist()
    return losses


def _log_losses(
    probabilities: NDArray[np.float64], classes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """[N] negative logarithms of the probabilities of the right classes."""
    of_class = np.take_along_axis(probabilities, classes[:, None], axis=1)[:, 0]
    return np.asarray(-np.log(of_class.clip(min=1e-12)))


def confidence_report(probable: Probable) -> dict[str, Any]:
    """`reliability`: a row a bin; `precision`: from which probability on how many are answered."""
    confidences, is_right = _answers(probable.probabilities, probable.classes)
    return {
        "items": len(is_right),
        "reliability": _reliability(confidences, is_right),
        "precision": [_at_precision(confidences, is_right, each) for each in _PRECISIONS],
    }


def _answers(
    probabilities: NDArray[np.float64], classes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[N] probabilities of the likeliest classes, and whether these are right."""
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == classes


def _reliability(
    confidences: NDArray[np.float64], is_right: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Of each bin that holds answers their mean probability, accuracy and number."""
    bins = np.minimum((confidences * _BINS).astype(int), _BINS - 1)
    return [
        {
            "confidence": float(confidences[bins == place].mean()),
            "accuracy": float(is_right[bins == place].mean()),
            "items": int((bins == place).sum()),
        }
        for place in np.unique(bins)
    ]


def _at_precision(
    confidences: NDArray[np.float64], is_right: NDArray[np.bool_], precision: float
) -> dict[str, Any]:
    """The least probability from which on so many answers are right; None if there is none."""
    order = np.argsort(-confidences, kind="stable")
    ranked = confidences[order]
    reached = np.cumsum(is_right[order]) / np.arange(1, len(order) + 1)
    is_last = np.append(ranked[1:] < ranked[:-1], True)  # equal ones are answered together
    enough = is_last & (reached >= precision) & (np.arange(1, len(order) + 1) >= _FEWEST_ANSWERS)
    places = np.flatnonzero(enough)
    if not len(places):
        return {"precision": precision, "min_confidence": None, "answered": 0.0, "right": None}
    last = int(places[-1])
    return {
        "precision": precision,
        "min_confidence": float(ranked[last]),
        "answered": (last + 1) / len(order),
        "right": float(reached[last]),
    }


def confidence_rows(
    statistics: Mapping[str, Any], report: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
    """What is shown to people: a figure, its value, and what to compare it with."""
    rows = []
    for name, style in (("calibration_error", ".1%"), ("log_loss", ".3f")):
        value, before = (statistics[f"confidence/{part}{name}"] for part in ("", "uncalibrated_"))
        compared = "not calibrated" if value == before else f"before calibration {before:{style}}"
        rows.append((f"{name.replace('_', ' ')}, held-out", f"{value:{style}}", compared))
    for row in report["precision"]:
        if row["precision"] in SHOWN:
            least = row["min_confidence"]
            where = "never as good" if least is None else f"from probability {least:.3f} on"
            title = f"answered alone at {row['precision']:.0%} precision"
            rows.append((title, f"{row['answered']:.1%}", where))
    return rows
