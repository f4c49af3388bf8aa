"""Calibration error, log loss and the table of precisions, on answers counted by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import log_loss

from bert_core.inference.confidence import CONFIDENCE_FILE, least_probability, withheld
from pipelines.tasks import Probable
from pipelines.tasks.calibration import (
    alone_rows,
    answered_alone,
    calibration_figures,
    calibration_rows,
    confidence_report,
    precision_rows,
)


def of(confidences: list[float], right: list[bool]) -> Probable:
    """Answers of two classes, the first one always the likelier."""
    first = np.array(confidences)
    classes = np.array([0 if each else 1 for each in right])
    return Probable(np.stack([first, 1 - first], axis=1), classes)


def test_figures_are_those_of_the_papers() -> None:
    probable = of([0.95] * 4 + [0.75] * 4, [True] * 3 + [False] + [True] * 3 + [False])
    figures = calibration_figures(probable, temperature=1.0)
    # Two bins of four answers, 0.95 and 0.75 sure, both right in three of four.
    assert figures["confidence/calibration_error"] == pytest.approx((0.2 + 0.0) / 2)
    expected = log_loss(probable.classes, probable.probabilities, labels=[0, 1])
    assert figures["confidence/log_loss"] == pytest.approx(expected)
    assert figures["confidence/uncalibrated_log_loss"] == pytest.approx(expected)


def test_what_was_before_the_temperature_is_computed_from_what_is_after() -> None:
    logits = np.random.default_rng(0).normal(size=(500, 4)) * 3
    classes = np.random.default_rng(1).integers(0, 4, 500)

    def softmax(values: np.ndarray) -> np.ndarray:
        powers = np.exp(values)
        return powers / powers.sum(axis=1, keepdims=True)

    plain = calibration_figures(Probable(softmax(logits), classes), temperature=1.0)
    for name in ("log_loss", "calibration_error"):  # to the last bit: else it seems calibrated
        assert plain[f"confidence/{name}"] == plain[f"confidence/uncalibrated_{name}"]
    after = calibration_figures(Probable(softmax(logits / 2.5), classes), temperature=2.5)
    before = calibration_figures(Probable(softmax(logits), classes), temperature=1.0)
    for name in ("log_loss", "calibration_error"):
        assert after[f"confidence/uncalibrated_{name}"] == pytest.approx(
            before[f"confidence/{name}"]
        )
    assert after["confidence/log_loss"] < before["confidence/log_loss"]


def test_a_precision_is_translated_to_the_least_probability_that_gave_it(tmp_path: Path) -> None:
    # Had one more been wrong: 100 of 101, and 192 of 201.
    confidences = [0.99] * 100 + [0.8] * 100 + [0.6] * 50
    right = [True] * 100 + [True] * 92 + [False] * 8 + [False] * 50
    report = confidence_report(of(confidences, right))
    statistics = calibration_figures(of(confidences, right), temperature=1.0)
    assert [compared for *_, compared in calibration_rows(statistics)] == [
        "not calibrated", "not calibrated",
    ]  # fmt: skip
    assert precision_rows(report) == [
        ("answered alone at 90% precision, from probability 0.800 on", "80.0%", ""),
        ("answered alone at 95% precision, from probability 0.800 on", "80.0%", ""),
        ("answered alone at 99% precision, from probability 0.990 on", "40.0%", ""),
    ]
    (tmp_path / CONFIDENCE_FILE).write_text(json.dumps(report))
    # Below it by what another batch may compute otherwise.
    assert least_probability(tmp_path, 0.95) == pytest.approx(0.8 - 1e-6, abs=1e-9)
    assert least_probability(tmp_path, 0.951) == pytest.approx(0.99 - 1e-6, abs=1e-9)
    assert [row["items"] for row in report["reliability"]] == [50, 100, 100]
    assert report["reliability"][1]["accuracy"] == pytest.approx(0.92)


def test_a_threshold_close_to_one_is_not_rounded_up_to_it() -> None:
    report = confidence_report(of([0.99991] * 150 + [0.9] * 50, [True] * 150 + [False] * 50))
    name, share, compared = precision_rows(report)[-1]
    assert name == "answered alone at 99% precision, from probability 0.999909 on"
    assert (share, compared) == ("75.0%", "")


def test_what_answers_every_text_says_why() -> None:
    report = confidence_report(of([0.99] * 190 + [0.9] * 10, [True] * 195 + [False] * 5))
    assert [row[1:] for row in precision_rows(report)] == [
        ("100.0%", "all texts: accuracy is higher than that"),
        ("100.0%", "all texts: accuracy is higher than that"),
        ("95.0%", ""),
    ]


def test_a_class_that_is_never_answered_is_named() -> None:
    # Nobody is 95% sure of the second class, and nothing is ever the third.
    sure, unsure = [[0.97, 0.02, 0.01]] * 60, [[0.1, 0.8, 0.1]] * 40
    probable = Probable(np.array(sure + unsure), np.array([0] * 60 + [1] * 32 + [2] * 8))
    rows = precision_rows(confidence_report(probable, ["spam", "работа", "other"]))
    assert [row[1:] for row in rows] == [
        ("100.0%", "all texts: accuracy is higher than that; none is labelled 'other'"),
        ("60.0%", "none is labelled 'работа' or 'other'"),
        ("none", ""),
    ]
    many = [f"label {number}" for number in range(9)]
    wide = Probable(np.eye(9)[[0] * 200] * 0.9 + 0.01, np.zeros(200, int))
    assert precision_rows(confidence_report(wide, many))[0][2] == (
        "all texts: accuracy is higher than that; none is labelled 'label 1' or 'label 2' or "
        "'label 3' or 'label 4' or 'label 5' or 3 more"
    )
    assert sum("never" in row for row in confidence_report(wide, many)["precision"]) == 3


def test_a_threshold_stands_between_the_last_answer_and_the_next() -> None:
    confidences = [0.9] * 30 + [0.9 - 1e-7] * 30
    report = confidence_report(of(confidences, [True] * 30 + [False] * 30))
    least = next(row for row in report["precision"] if row["precision"] == 0.95)
    assert 0.9 - 1e-7 < least["min_confidence"] < 0.9


def test_a_precision_holds_on_other_items_on_average() -> None:
    generator = np.random.default_rng(0)
    precisions = []
    for _ in range(400):
        confidences = generator.uniform(0.5, 1, size=2200)
        is_right = generator.uniform(size=2200) < confidences
        heldout = of(confidences[:200].tolist(), is_right[:200].tolist())
        row = next(r for r in confidence_report(heldout)["precision"] if r["precision"] == 0.9)
        if row["min_confidence"] is not None:
            others = of(confidences[200:].tolist(), is_right[200:].tolist())
            alone = answered_alone(others, row["min_confidence"])
            precisions.append(alone["precision"])
    assert len(precisions) > 350
    assert np.mean(precisions) == pytest.approx(0.9, abs=0.005)


def test_a_precision_that_was_never_reached_is_refused(tmp_path: Path) -> None:
    report = confidence_report(of([0.9] * 100, [True] * 80 + [False] * 20))
    assert not any(row["answered"] for row in report["precision"] if row["precision"] > 0.8)
    assert precision_rows(report)[0] == ("answered alone at 90% precision", "none", "")
    (tmp_path / CONFIDENCE_FILE).write_text(json.dumps(report))
    with pytest.raises(
        ValueError, match=r"no probability gives a precision of 0.9 .*best is 0.79;"
    ):
        least_probability(tmp_path, 0.9)
    # Nineteen right answers say nothing of a precision.
    few = confidence_report(of([0.9] * 19 + [0.6] * 81, [True] * 19 + [False] * 81))
    assert few["precision"][-1]["min_confidence"] is None
    with pytest.raises(ValueError, match="has no table of precisions"):
        least_probability(tmp_path / "none", 0.9)


def test_answers_that_are_not_sure_enough_are_none_beside_the_guess() -> None:
    answers = {"label": ["a", "b", "c"], "probability": [0.9, 0.8999, 0.3]}
    assert withheld(answers, 0.9) == {
        "label": ["a", None, None], "probability": [0.9, 0.8999, 0.3], "guess": ["a", "b", "c"],
    }  # fmt: skip


def test_of_what_is_answered_alone_the_precision_has_its_interval() -> None:
    probable = of([0.95] * 488 + [0.7] * 384, [True] * 465 + [False] * 23 + [True] * 384)
    alone = answered_alone(probable, 0.915)
    assert (alone["answered"], alone["items"]) == (488, 872)
    # Wilson's interval by its formula.
    share, z, n = 465 / 488, 1.959964, 488
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    assert (alone["low"], alone["high"]) == pytest.approx((middle - half, middle + half))
    assert alone_rows(alone) == [
        ("answered alone, from probability 0.915 on", "56.0%", "488 of 872"),
        ("right, of those", "95.3%", "95% interval 93.0% to 96.8%"),
    ]
    assert alone["by_label"] == []
    by_label = answered_alone(probable, 0.915, ("да", "нет"))["by_label"]
    assert sum(row["answered"] for row in by_label) == 488
    right = sum(row["answered"] * row["precision"] for row in by_label if row["answered"])
    assert right == pytest.approx(465)
    asked = alone_rows({**alone, "min_precision": 0.95})[1]
    assert asked[2] == "asked for 95.0%, 95% interval 93.0% to 96.8%"
    nothing = answered_alone(probable, 0.99)
    assert alone_rows(nothing) == [
        ("answered alone, from probability 0.990 on", "0.0%", "0 of 872")
    ]
