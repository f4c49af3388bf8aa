"""Whether probabilities mean what they say, and how much can be answered at which precision.

N = answers, C = classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pipelines.tasks import Answers, Probable

_BINS: Final = 10
# Those that are shown, and all that a request can be translated by.
SHOWN: Final = (0.9, 0.95, 0.99)
_PRECISIONS: Final = (*(round(0.5 + n / 100, 2) for n in range(50)), 0.995, 0.999)
_FEWEST_ANSWERS: Final = 20  # of which a precision says anything
_ROUNDING: Final = 1e-6
_MOST_SHOWN: Final = 5  # labels


def calibration_figures(probable: Probable, temperature: float | None = None) -> dict[str, float]:
    """Log loss and expected calibration error; with the `temperature` both without it, too.

    The error (Naeini et al., 2015) is the mean distance of probability and accuracy in ten equally
    wide bins of the answers' probabilities.
    """
    figures, sides = {}, {"": probable.probabilities}
    if temperature is not None:
        plain = probable.probabilities
        if temperature != 1.0:  # else dividing by the sum would round
            powers = plain**temperature
            plain = powers / powers.sum(axis=1, keepdims=True)
        sides["uncalibrated_"] = plain
    for name, probabilities in sides.items():
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


def confidence_report(probable: Probable, labels: Sequence[str] = ()) -> dict[str, Any]:
    """`reliability`: a row a bin; `precision`: from which probability on how many are answered.

    The rows that are shown name the `labels` (C of them) that no answer from there on has: one
    threshold for all may leave a whole class to people.
    """
    confidences, is_right = _answers(probable.probabilities, probable.classes)
    order = np.argsort(-confidences, kind="stable")
    ranked, num_right = confidences[order], np.cumsum(is_right[order], dtype=np.int64)
    rows = [_at_precision(ranked, num_right, each) for each in _PRECISIONS]
    answers = probable.probabilities.argmax(axis=1)
    for row in rows:
        if row["precision"] in SHOWN and row["min_confidence"] is not None:
            given = {*answers[confidences >= row["min_confidence"]].tolist()}
            row["never"] = [label for place, label in enumerate(labels) if place not in given]
    return {
        "items": len(is_right),
        "reliability": _reliability(confidences, is_right),
        "precision": rows,
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
    ranked: NDArray[np.float64], num_right: NDArray[np.int64], precision: float
) -> dict[str, Any]:
    """The least probability from which on so many answers are right; None if there is none.

    [N] `ranked` are the probabilities from the greatest on, `num_right` how many of so many answers
    are right. One wrong answer more is counted than there are, since the threshold is chosen on the
    items that it is measured on. Conformal risk control (Angelopoulos et al., 2022) corrects its
    losses alike.
    """
    num_answered = np.arange(1, len(ranked) + 1)
    is_last = np.append(ranked[1:] < ranked[:-1], True)  # equal ones are answered together
    is_reached = num_right / (num_answered + 1) >= precision
    places = np.flatnonzero(is_last & is_reached & (num_answered >= _FEWEST_ANSWERS))
    if not len(places):
        return {"precision": precision, "min_confidence": None, "answered": 0.0, "right": None}
    last = int(places[-1])
    # The same text in another batch may get a probability that differs in its last digits.
    margin = _ROUNDING if last + 1 == len(ranked) else (ranked[last] - ranked[last + 1]) / 2
    return {
        "precision": precision,
        "min_confidence": float(ranked[last] - min(_ROUNDING, margin)),
        "answered": (last + 1) / len(ranked),
        "right": float(num_right[last] / num_answered[last]),
    }


def answered_alone(
    probable: Probable, min_confidence: float, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """How many answers are at least so probable, and how many of those are right.

    With the 95% interval of their precision (Wilson, 1927), and both for the answers of each of the
    `labels`, since one threshold for all gives each its own precision. None where nothing is
    answered.
    """
    from scipy.stats import binomtest  # half a second

    confidences, is_right = _answers(probable.probabilities, probable.classes)
    given = confidences >= min_confidence
    num_answered, num_right = int(given.sum()), int(is_right[given].sum())
    precision = low = high = None
    if num_answered:
        interval = binomtest(num_right, num_answered).proportion_ci(method="wilson")
        precision, low, high = num_right / num_answered, float(interval.low), float(interval.high)
    answers = probable.probabilities.argmax(axis=1)
    by_label = []
    for place, label in enumerate(labels):
        of_label = is_right[given & (answers == place)]
        share = float(of_label.mean()) if len(of_label) else None
        by_label.append({"label": label, "answered": len(of_label), "precision": share})
    return {
        "by_label": by_label,
        "min_confidence": min_confidence,
        "items": len(given),
        "answered": num_answered,
        "precision": precision,
        "low": low,
        "high": high,
    }


def alone_rows(alone: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What people read of `answered_alone`, and their 95% interval."""
    num_answered, num_items = alone["answered"], alone["items"]
    rows = [
        (
            f"answered alone, {_from(alone['min_confidence'])}",
            f"{num_answered / num_items:.1%}",
            f"{num_answered:,} of {num_items:,}",
        )
    ]
    if num_answered:
        asked = f"asked for {alone['min_precision']:.1%}, " if alone.get("min_precision") else ""
        interval = f"95% interval {alone['low']:.1%} to {alone['high']:.1%}"
        rows.append(("right, of those", f"{alone['precision']:.1%}", f"{asked}{interval}"))
    return rows


def calibration_rows(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What people read of `calibration_figures`: a figure, its value, and that before."""
    rows = []
    for name, style in (("calibration_error", ".1%"), ("log_loss", ".3f")):
        value, before = (figures.get(f"confidence/{part}{name}") for part in ("", "uncalibrated_"))
        if value is None:
            continue
        if before is None:
            compared = ""
        elif before == value:
            compared = "not calibrated"
        else:
            compared = f"before calibration {before:{style}}"
        rows.append((name.replace("_", " "), f"{value:{style}}", compared))
    return rows


def precision_rows(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What people read of `confidence_report`: which share is answered at each precision."""
    rows = []
    for row in report["precision"]:
        if row["precision"] in SHOWN:
            least, title = row["min_confidence"], f"at {row['precision']:.0%} precision"
            if least is None:
                rows.append((f"answered alone {title}", "none", ""))
            else:
                share, never = row["answered"], [repr(label) for label in row["never"]]
                if len(never) > _MOST_SHOWN:
                    never[_MOST_SHOWN:] = [f"{len(never) - _MOST_SHOWN} more"]
                why = "; ".join(
                    ["all texts: accuracy is higher than that"] * (share == 1)
                    + [f"none is labelled {' or '.join(never)}"] * bool(never)
                )
                rows.append((f"answered alone {title}, {_from(least)}", f"{share:.1%}", why))
    return rows


def _from(min_confidence: float) -> str:
    # Close to 1 three digits would round up to it, and a probability of 1 is never reached.
    digits = 3 if min_confidence < 0.9995 else 6
    return f"from probability {min_confidence:.{digits}f} on"
