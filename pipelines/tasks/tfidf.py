"""TF-IDF of words and pairs of words, or of characters, and linear models of it.

scikit-learn is imported where something is learned: reading a recipe does not need it.
"""

from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipelines.tasks import Item, Items

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

NAME = "TF-IDF"
Unit = Literal["words", "characters"]
_STEPS = 5_000  # it converges within hundreds
_ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0)
_FOLDS = 3
_FEW_TEXTS = 100  # of which every word counts
_WORDS = (r"(?u)\b\w\w+\b", r"(?u)\b\w+\b")  # scikit-learn's own; where it finds none, letters too
_MOST_WEIGHTS = 10_000_000  # of all outputs; their solver holds them two dozen times
_MOST_CHARACTERS = 3_000_000  # of training texts, to learn from characters in a minute
_TEXTS = ("text", "second_text")


def classes(train: Items, heldout: Items) -> dict[str, list[str]]:
    """The most probable class of each text."""

    def answers(train: Items, unit: Unit) -> list[str] | None:
        features = _text_features(train.rows, heldout.rows, unit, len(train.labels))
        if features is None:
            return None
        classes = [item["label"] for item in train.rows]
        if len(set(classes)) < 2:
            return classes[:1] * len(heldout.rows)
        return [
            str(label) for label in _classifier().fit(features[0], classes).predict(features[1])
        ]

    return _by_unit(train, answers)


def class_probabilities(train: Items, asked: Items) -> np.ndarray:
    """[N, C] probabilities of the classes, the mean of those by words and by characters.

    A class that no training item has gets none; where there are no words all are equally probable.
    """
    units: list[np.ndarray] = []
    parts: tuple[tuple[Unit, Items], ...] = (("words", train), ("characters", _within(train)))
    for unit, learned in parts:
        features = _text_features(learned.rows, asked.rows, unit, len(train.labels))
        classes = [train.labels.index(item["label"]) for item in learned.rows]
        probabilities = np.zeros((len(asked.rows), len(train.labels)))
        if features is None:
            probabilities[:] = 1 / len(train.labels)
        elif len(set(classes)) < 2:
            probabilities[:, classes[:1]] = 1.0
        else:
            model = _classifier().fit(features[0], classes)
            probabilities[:, model.classes_] = model.predict_proba(features[1])
        units.append(probabilities)
    mean: np.ndarray = np.mean(units, axis=0)
    return mean


def label_sets(train: Items, heldout: Items) -> dict[str, list[list[str]]]:
    """The labels whose probability, each learned for itself, promises the best micro F1.

    Of a linear model rare labels seldom reach one half, and with that it is no opponent. From which
    probability on they are given follows from those of all texts that are asked, not from labels.
    """

    def answers(train: Items, unit: Unit) -> list[list[str]] | None:
        features = _text_features(train.rows, heldout.rows, unit)
        if features is None:
            return None
        probabilities = np.stack([
            _probabilities(*features, [label in item["labels"] for item in train.rows])
            for label in train.labels
        ], axis=1)  # fmt: skip
        chosen = probabilities >= _threshold(probabilities)
        return [[train.labels[place] for place in np.flatnonzero(row)] for row in chosen]

    return _by_unit(train, answers)


def numbers(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The number of each text; the regularization is chosen on the training items."""
    from sklearn.linear_model import Ridge, RidgeCV
    from sklearn.model_selection import PredefinedSplit

    def answers(train: Items, unit: Unit) -> list[float] | None:
        features = _text_features(train.rows, heldout.rows, unit)
        if features is None:
            return None
        size = len(train.rows)
        if size < 2 * _FOLDS:
            model = Ridge()
        else:
            model = RidgeCV(_ALPHAS, cv=PredefinedSplit(np.arange(size) % _FOLDS))
        values: list[float] = (
            model.fit(features[0], [item["value"] for item in train.rows])
            .predict(features[1])
            .tolist()
        )
        return values

    return _by_unit(train, answers)


def choices(train: Items, heldout: Items) -> dict[str, list[int]]:
    """The choice that looks most like a right one, by its words and those of its text."""

    def answers(train: Items, unit: Unit) -> list[int] | None:
        features = _choice_features(train.rows, heldout.rows, unit)
        if features is None:
            return None
        is_right = [
            place == item["answer"] for item in train.rows for place in range(len(item["choices"]))
        ]
        scores = _classifier().fit(features[0], is_right).decision_function(features[1])
        ends = np.cumsum([len(item["choices"]) for item in heldout.rows])[:-1]
        return [int(row.argmax()) for row in np.split(scores, ends)]

    return _by_unit(train, answers)


def _by_unit(
    train: Items, answers: Callable[[Items, Unit], list[Any] | None]
) -> dict[str, list[Any]]:
    """The answers by words, and those by characters within words, where there are any.

    Words of scikit-learn have no combining marks and end at blanks; characters know every script.
    """
    both = {
        NAME: answers(train, "words"),
        f"{NAME} of characters": answers(_within(train), "characters"),
    }
    return {name: values for name, values in both.items() if values is not None}


def cosines(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The cosine of each pair's TF-IDF."""
    vectorizer = _fitted_vectorizer([item[name] for name in _TEXTS for item in train.rows])
    if vectorizer is None:
        return {}
    first, second = (vectorizer.transform([item[name] for item in heldout.rows]) for name in _TEXTS)
    return {"TF-IDF cosine": np.asarray(first.multiply(second).sum(axis=1)).ravel().tolist()}


def _within(items: Items) -> Items:
    """The first items, up to `_MOST_CHARACTERS`."""
    lengths = [
        sum(
            len(text)
            for text in (item["text"], item.get("second_text"), *item.get("choices", ()))
            if text
        )
        for item in items.rows
    ]
    num_items = int(np.searchsorted(np.cumsum(lengths), _MOST_CHARACTERS)) + 1
    return items._replace(rows=items.rows[:num_items])


def _classifier() -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10, solver="lbfgs", max_iter=_STEPS, random_state=0)


def _threshold(probabilities: np.ndarray) -> float:
    """The probability from which on labels are given for the highest expected micro F1.

    It is half of that F1 (Lipton, Elkan and Naryanaswamy, 2014), and asks for no labels.
    """
    falling = np.sort(probabilities, axis=None)[::-1]
    given = np.arange(1, len(falling) + 1)
    return float((2 * np.cumsum(falling) / (given + falling.sum())).max() / 2)


def _probabilities(learned: Any, asked: Any, has_label: Sequence[bool]) -> np.ndarray:
    """[N] of having the label; one that all training items have, or none, is certain."""
    if len(set(has_label)) < 2:
        return np.full(asked.shape[0], float(has_label[0]))
    model = _classifier().fit(learned, has_label)
    probabilities: np.ndarray = model.predict_proba(asked)[:, 1]
    return probabilities


def _fitted_vectorizer(
    texts: Sequence[str], num_weights: int = 1, unit: Unit = "words"
) -> "TfidfVectorizer | None":
    """Words and pairs of words, or up to four characters of a word, that two texts have.

    Of few texts all; None where none has any. `num_weights` are learned for each feature: where all
    are too many the most frequent ones stay.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    rarest = (2, 1) if len(texts) >= _FEW_TEXTS else (1,)
    kinds: list[dict[str, Any]] = [
        {"ngram_range": (1, 2), "token_pattern": pattern} for pattern in _WORDS
    ]
    if unit == "characters":
        kinds = [{"ngram_range": (1, 4), "analyzer": "char_wb"}]
    for kind, min_df in product(kinds, rarest):
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            min_df=min_df,
            max_features=max(1, _MOST_WEIGHTS // num_weights),
            **kind,
        )
        try:
            return vectorizer.fit(texts)
        except ValueError:  # it leaves no words
            continue
    return None


def _text_features(
    train: Sequence[Item], heldout: Sequence[Item], unit: Unit, num_outputs: int = 1
) -> "tuple[csr_array, csr_array] | None":
    """[N, F] of each part, by the words or characters of the first; None where that has none.

    Of pairs both texts, how they differ and what they share.
    """
    is_pairs = any(item["second_text"] is not None for item in train)
    texts = [item["text"] for item in train]
    if is_pairs:
        texts += [item["second_text"] or "" for item in train]
    vectorizer = _fitted_vectorizer(texts, num_outputs * (4 if is_pairs else 1), unit)
    if vectorizer is None:
        return None

    def of(items: Sequence[Item]) -> Any:
        first = vectorizer.transform([item["text"] for item in items])
        if not is_pairs:
            return first
        second = vectorizer.transform([item["second_text"] or "" for item in items])
        return _beside(first, second, abs(first - second), first.multiply(second))

    return of(train), of(heldout)


def _choice_features(
    train: Sequence[Item], heldout: Sequence[Item], unit: Unit
) -> "tuple[csr_array, csr_array] | None":
    """[N * C, F] of each part: of every choice its words, and those that its text has, too."""
    everything = chain.from_iterable((item["text"], *item["choices"]) for item in train)
    vectorizer = _fitted_vectorizer(list(everything), 2, unit)
    if vectorizer is None:
        return None

    def of(items: Sequence[Item]) -> Any:
        choices = vectorizer.transform([each for item in items for each in item["choices"]])
        texts = vectorizer.transform([item["text"] for item in items for _ in item["choices"]])
        return _beside(choices, texts.multiply(choices))

    return of(train), of(heldout)


def _beside(*parts: "csr_array") -> Any:
    """[N, sum of all F]."""
    from scipy.sparse import hstack

    return hstack(parts, format="csr")
