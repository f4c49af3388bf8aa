"""Scores against known answers, and by weights as often as items count, for every family."""

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from pipelines.tasks import FAMILIES, Answers, Items, family
from pipelines.tasks.multi_label import FAMILY as MULTI_LABEL
from pipelines.tasks.scoring import class_report, class_scores, figures_of, number_scores


def class_figures(
    answered: list[str], expected: list[str], classes: str | list[str] = ""
) -> dict[str, float]:
    classes = list(classes) or sorted({*answered, *expected})
    return figures_of(class_scores(answered, expected, classes), len(expected))


def number_figures(answered: list[float], expected: list[float]) -> dict[str, float]:
    return figures_of(number_scores(answered, expected), len(expected))


def test_figures_and_report_of_classes() -> None:
    expected, answered = ["a", "a", "a", "b"], ["a", "a", "b", "b"]
    assert class_figures(answered, expected) == {
        "eval/accuracy": 0.75,
        "eval/macro_f1": pytest.approx((0.8 + 2 / 3) / 2),
        # (2 * 1 - 1 * 0) / sqrt(2 * 2 * 3 * 1), Matthews' coefficient worked by hand.
        "eval/matthews": pytest.approx(2 / np.sqrt(12)),
    }
    report = class_report(answered, expected)
    assert report["confusion"] == [[2, 1], [0, 1]]
    assert report["by_label"][1] == {
        "label": "b", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "items": 1,
    }  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_scores_of_classes_are_scikit_learns(classes: int) -> None:
    random = np.random.default_rng(classes)
    names = [f"class {n}" for n in range(classes)]
    expected, other = (random.choice(names, 500).tolist() for _ in range(2))
    answered = [a if random.random() < 0.6 else b for a, b in zip(expected, other, strict=True)]
    found = class_figures(answered, expected)
    assert found.pop("eval/accuracy") == metrics.accuracy_score(expected, answered)
    macro = metrics.f1_score(expected, answered, average="macro")
    assert found.pop("eval/macro_f1") == pytest.approx(macro, rel=1e-14)
    matthews = metrics.matthews_corrcoef(expected, answered)
    assert found.pop("eval/matthews") == pytest.approx(matthews, rel=1e-14)
    assert not found  # of classes with names none is the positive one
    if classes == 2:
        digits = [[name[-1] for name in side] for side in (answered, expected)]
        second = metrics.f1_score(digits[1], digits[0], pos_label="1")
        assert class_figures(*digits)["eval/f1"] == pytest.approx(second, rel=1e-14)


def test_correlations_are_scipys_and_those_with_a_constant_are_nothing() -> None:
    random = np.random.default_rng(0)
    expected = random.normal(size=50)
    answered = expected + random.normal(size=50)
    figures = number_figures(answered.tolist(), expected.tolist())
    pearson, spearman = (f(answered, expected)[0] for f in (stats.pearsonr, stats.spearmanr))
    assert figures["eval/pearson"] == pytest.approx(pearson, rel=1e-14)
    assert figures["eval/spearman"] == pytest.approx(spearman, rel=1e-14)
    assert figures["eval/squared_error"] == pytest.approx(
        metrics.mean_squared_error(expected, answered)
    )
    assert number_figures([1.0, 2.0, 3.0], [10.0, 20.0, 31.0])["eval/spearman"] == pytest.approx(1)
    assert number_figures([2.0, 2.0], [1.0, 3.0])["eval/pearson"] == 0.0


_RNG = np.random.default_rng(3)
_TAGS = ["O", "B-a", "I-a", "B-b", "I-b"]
_LABELS = ("x", "y", "z")


def _class(name: str) -> tuple[dict[str, Any], Any]:
    return {"text": "t", "second_text": None, "label": name}, str(_RNG.choice(_LABELS))


def _drawn(name: str) -> tuple[dict[str, Any], Any]:
    if name == "classification":
        return _class(str(_RNG.choice(_LABELS)))
    if name == "multi_label":
        said, true = ([x for x in _LABELS if _RNG.random() < 0.4] for _ in range(2))
        return {"text": "t", "second_text": None, "labels": true}, said
    if name in ("regression", "sentence_embedding"):  # with ties, which ranks have to share
        return {"text": "t", "second_text": None, "value": float(_RNG.integers(5))}, float(
            _RNG.integers(4)
        )
    if name == "multiple_choice":
        return {"text": "t", "choices": ["a", "b"], "answer": int(_RNG.integers(2))}, int(
            _RNG.integers(2)
        )
    if name == "tagging":
        size = int(_RNG.integers(1, 8))
        said, true = (_RNG.choice(_TAGS, size).tolist() for _ in range(2))
        return {"words": ["w"] * size, "tags": true}, said
    words = ["the cat", "a dog", "dog and cat", ""]
    references = [str(_RNG.choice(words[:3]))] if _RNG.random() < 0.7 else []
    answer = {"text": str(_RNG.choice(words)), "begin": 0, "null_lead": float(_RNG.normal())}
    item = {"id": "", "question": "q", "context": "c", "answers": references, "starts": [0]}
    return item, answer


def _answered(name: str, size: int = 40) -> tuple[Answers, Items]:
    drawn = [_drawn(name) for _ in range(size)]
    labels = _LABELS if name in ("classification", "multi_label") else ()
    return Answers([answer for _, answer in drawn], 0), Items([item for item, _ in drawn], labels)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_weighted_score_is_that_of_the_items_as_often_as_they_count(name: str) -> None:
    task, (answers, items) = family(name), _answered(name)
    assert task.score in task.scores(answers, items)
    for weights in (
        np.ones(40, np.int64),
        *(np.bincount(_RNG.integers(0, 40, 40), minlength=40) for _ in range(20)),
    ):
        chosen = np.repeat(np.arange(40), weights)
        values = [answers.values[index] for index in chosen]
        rows = [items.rows[index] for index in chosen]
        figures = task.figures(Answers(values, 0), Items(rows, items.labels))
        for metric, score in task.scores(answers, items).items():
            assert score(weights) == pytest.approx(figures[metric], abs=1e-12), metric


def test_scores_of_label_sets_are_scikit_learns() -> None:
    answers, items = _answered("multi_label", 200)
    said, true = (
        [[label in found for label in _LABELS] for found in side]
        for side in (answers.values, [item["labels"] for item in items.rows])
    )
    figures = MULTI_LABEL.figures(answers, items)
    for average in ("micro", "macro"):
        theirs = metrics.f1_score(true, said, average=average)
        assert figures[f"eval/{average}_f1"] == pytest.approx(theirs, rel=1e-14)
    assert figures["eval/exact_match"] == metrics.accuracy_score(true, said)
