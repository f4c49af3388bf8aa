"""Labels that are probably wrong: what models that have not learned them answer to their items.

N = items, C = classes, D = hidden size. A model that was trained on a wrong label repeats it, so
every judge answers for items that it was not fitted on (out-of-fold predictions, as in Northcutt et
al., 2021), nor on any that belongs together with them.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_core.randomness import Permutation
from pipelines.errors import UserError
from pipelines.tasks import Items, tfidf

_FOLDS: Final = 5
_LEAST: Final = 1e-6  # no judge alone rules a class out
# Of the places of items to learn from, and of those to answer for, to [n, C] probabilities.
_Judge = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Suspect(NamedTuple):
    """An item whose label is probably wrong."""

    row: int
    label: str
    suggestion: str  # the likeliest class
    probability: float  # of the label


def suspects(
    items: Items, groups: Sequence[str], vectors: np.ndarray | None, count: int
) -> list[Suspect]:
    """The at most `count` items whose labels are least probable, the least first.

    `groups` say what each item belongs to, as for a split: a text that comes twice is judged by
    none that has learned its label. Raises UserError where there are fewer groups than folds.
    Judges are TF-IDF, of words and of characters, and a linear model of `vectors` [N, D], which an
    encoder made that has not seen the labels. The probability of a class is the geometric mean of
    what they say. An item whose label is its likeliest class is none of them, and neither is one
    whose class no judge has learned.
    """
    classes = np.array([items.labels.index(item["label"]) for item in items.rows])

    def by_words(learned: np.ndarray, asked: np.ndarray) -> np.ndarray:
        parts = (items._replace(rows=[items.rows[i] for i in each]) for each in (learned, asked))
        return tfidf.class_probabilities(*parts)

    def by_vectors(learned: np.ndarray, asked: np.ndarray) -> np.ndarray:
        assert vectors is not None
        return _linear_probabilities(
            vectors[learned], classes[learned], vectors[asked], len(items.labels)
        )

    folds = _folds(groups)
    judges = [_out_of_fold(by_words, folds)]
    if vectors is not None:
        judges.append(_out_of_fold(by_vectors, folds))
    probabilities = np.exp(np.mean([np.log(judge.clip(_LEAST)) for judge in judges], axis=0))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    of_label = probabilities[np.arange(len(classes)), classes]
    likeliest = probabilities.argmax(axis=1)
    # A class that only one fold has was learned by no judge of it.
    learned = [{*classes[folds != fold].tolist()} for fold in range(_FOLDS)]
    judged = np.array([kind in learned[fold] for kind, fold in zip(classes, folds, strict=True)])
    order = np.argsort(of_label, kind="stable")
    return [
        Suspect(
            row=int(index),
            label=items.labels[classes[index]],
            suggestion=items.labels[likeliest[index]],
            probability=float(of_label[index]),
        )
        for index in order[(likeliest != classes)[order] & judged[order]][:count]
    ]


def _folds(groups: Sequence[str]) -> np.ndarray:
    """[N] the fold of each item: a fifth of the groups each."""
    numbers = {group: number for number, group in enumerate(sorted(set(groups)))}
    of_items = np.array([numbers[group] for group in groups])
    if len(numbers) < _FOLDS:
        raise UserError(
            f"--suspects judges items by others and needs at least {_FOLDS} that differ, found "
            f"{len(numbers)}; give a file with more, or leave it out"
        )
    return np.asarray(Permutation(len(numbers), 0, "suspects")[of_items] % _FOLDS)


def _out_of_fold(judge: _Judge, folds: np.ndarray) -> np.ndarray:
    """[N, C] answers, each learned from the items of the other folds."""
    answers = [
        judge(np.flatnonzero(folds != fold), np.flatnonzero(folds == fold))
        for fold in range(_FOLDS)
    ]
    return np.concatenate(answers)[np.argsort(np.argsort(folds, kind="stable"), kind="stable")]


def _linear_probabilities(
    learned: np.ndarray, classes: np.ndarray, asked: np.ndarray, num_classes: int
) -> np.ndarray:
    """[n, C] of the vectors `asked`; a class that was not learned has none."""
    from sklearn.linear_model import LogisticRegression

    probabilities = np.zeros((len(asked), num_classes))
    known = np.unique(classes)
    if len(known) == 1:
        probabilities[:, known] = 1.0
        return probabilities
    model = LogisticRegression(max_iter=5_000).fit(learned, classes)
    probabilities[:, model.classes_] = model.predict_proba(asked)
    return probabilities
