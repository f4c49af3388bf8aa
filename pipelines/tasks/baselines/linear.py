"""Linear models of TF-IDF: logistic regression for classes, ridge regression for numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.tasks import Items
from pipelines.tasks.baselines.features import choice_features, text_features

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

NAME = "TF-IDF"
_STEPS = 5_000  # it converges within hundreds
_ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
_FOLDS = 3


def classes(train: Items, heldout: Items) -> dict[str, list[str]]:
    """The most probable class of each text."""
    found = text_features(train.rows, heldout.rows, len(train.labels))
    if found is None:
        return {}
    model = _classifier().fit(found[0], [item["label"] for item in train.rows])
    return {NAME: [str(label) for label in model.predict(found[1])]}


def label_sets(train: Items, heldout: Items) -> dict[str, list[list[str]]]:
    """The labels that are more probable than not, each learned for itself."""
    found = text_features(train.rows, heldout.rows)
    if found is None:
        return {}
    chosen = [
        _chosen(*found, [label in item["labels"] for item in train.rows]) for label in train.labels
    ]
    rows = np.array(chosen).reshape(len(train.labels), len(heldout.rows)).T
    return {NAME: [[train.labels[place] for place in np.flatnonzero(row)] for row in rows]}


def numbers(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The number of each text; how strongly it is held back is chosen among the training items."""
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.model_selection import PredefinedSplit

    found = text_features(train.rows, heldout.rows)
    if found is None:
        return {}
    size = len(train.rows)
    if size < 2 * _FOLDS:
        model = Ridge()
    else:
        model = RidgeCV(_ALPHAS, cv=PredefinedSplit(np.arange(size) % _FOLDS))
    model.fit(found[0], [item["value"] for item in train.rows])
    return {NAME: model.predict(found[1]).tolist()}


def choices(train: Items, heldout: Items) -> dict[str, list[int]]:
    """The choice that looks most like a right one, by its words and those of its text."""
    found = choice_features(train.rows, heldout.rows)
    if found is None:
        return {}
    is_right = [
        place == item["answer"] for item in train.rows for place in range(len(item["choices"]))
    ]
    scores = _classifier().fit(found[0], is_right).decision_function(found[1])
    ends = np.cumsum([len(item["choices"]) for item in heldout.rows])[:-1]
    return {NAME: [int(row.argmax()) for row in np.split(scores, ends)]}


def _classifier() -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10, solver="lbfgs", max_iter=_STEPS, random_state=0)


def _chosen(learned: Any, asked: Any, has_label: Sequence[bool]) -> np.ndarray:
    """[N] bool; a label that all training items have, or none, tells nothing else."""
    if len(set(has_label)) < 2:
        return np.full(asked.shape[0], has_label[0])
    model = _classifier().fit(learned, has_label)
    decided: np.ndarray = model.decision_function(asked) >= 0.0  # a probability of 0.5
    return decided
