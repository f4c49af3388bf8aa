"""Scores by weights are the scores of the items as often as they count, for every family."""

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from pipelines.tasks import Answers, Items, family, family_names
from pipelines.tasks.multi_label import FAMILY as MULTI_LABEL

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


@pytest.mark.parametrize("name", family_names())
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


def test_two_classes_have_the_f1_of_the_second() -> None:
    task = family("classification")
    items = Items([_class(x)[0] for x in "ababbab"], ("a", "b"))
    answers = Answers(list("abbaaab"), 0)
    score = task.scores(answers, items)["eval/f1"]
    assert score(np.ones(7, np.int64)) == pytest.approx(task.figures(answers, items)["eval/f1"])


def test_scores_of_label_sets_are_scikit_learns() -> None:
    answers, items = _answered("multi_label", 200)
    said, true = (
        [[label in found for label in _LABELS] for found in side]
        for side in (answers.values, [item["labels"] for item in items.rows])
    )
    figures = MULTI_LABEL.figures(answers, items)
    for average in ("micro", "macro"):
        theirs = f1_score(true, said, average=average)
        assert figures[f"eval/{average}_f1"] == pytest.approx(theirs, rel=1e-14)


def test_a_correlation_with_a_constant_is_zero() -> None:
    task = family("regression")
    items = Items([{"text": "t", "second_text": None, "value": float(x)} for x in range(5)])
    for metric in ("eval/pearson", "eval/spearman"):
        assert task.scores(Answers([0.1] * 5, 0), items)[metric](np.ones(5, int)) == 0.0
