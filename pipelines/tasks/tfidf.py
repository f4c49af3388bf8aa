"""TF-IDF of words and pairs of words, and linear models of it.

scikit-learn is imported where something is learned: reading a recipe does not need it.
"""

from collections.abc import Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.tasks import Item, Items

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

NAME = "TF-IDF"
_STEPS = 5_000  # it converges within hundreds
_FEW_TEXTS = 100  # of which every word counts
_WORDS = (r"(?u)\b\w\w+\b", r"(?u)\b\w+\b")  # scikit-learn's own; where it finds none, letters too
_MOST_WEIGHTS = 10_000_000  # of all outputs; their solver holds them two dozen times
_TEXTS = ("text", "second_text")


def classes(train: Items, heldout: Items) -> dict[str, list[str]]:
    """The most probable class of each text."""
    features = _text_features(train.rows, heldout.rows, len(train.labels))
    if features is None:
        return {}
    classes = [item["label"] for item in train.rows]
    if len(set(classes)) < 2:
        return {NAME: classes[:1] * len(heldout.rows)}
    model = _classifier().fit(features[0], classes)
    return {NAME: [str(label) for label in model.predict(features[1])]}


def label_sets(train: Items, heldout: Items) -> dict[str, list[list[str]]]:
    """The labels that are more probable than not, each learned for itself."""
    features = _text_features(train.rows, heldout.rows)
    if features is None:
        return {}
    chosen = [
        _chosen(*features, [label in item["labels"] for item in train.rows])
        for label in train.labels
    ]
    rows = np.array(chosen).reshape(len(train.labels), len(heldout.rows)).T
    return {NAME: [[train.labels[place] for place in np.flatnonzero(row)] for row in rows]}


def numbers(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The number of each text, by ridge regression."""
    from sklearn.linear_model import Ridge

    features = _text_features(train.rows, heldout.rows)
    if features is None:
        return {}
    model = Ridge().fit(features[0], [item["value"] for item in train.rows])
    return {NAME: model.predict(features[1]).tolist()}


def choices(train: Items, heldout: Items) -> dict[str, list[int]]:
    """The choice that looks most like a right one, by its words and those of its text."""
    features = _choice_features(train.rows, heldout.rows)
    if features is None:
        return {}
    is_right = [
        place == item["answer"] for item in train.rows for place in range(len(item["choices"]))
    ]
    scores = _classifier().fit(features[0], is_right).decision_function(features[1])
    ends = np.cumsum([len(item["choices"]) for item in heldout.rows])[:-1]
    return {NAME: [int(row.argmax()) for row in np.split(scores, ends)]}


def cosines(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The cosine of each pair's TF-IDF."""
    vectorizer = _fitted_vectorizer([item[name] for name in _TEXTS for item in train.rows])
    if vectorizer is None:
        return {}
    first, second = (vectorizer.transform([item[name] for item in heldout.rows]) for name in _TEXTS)
    return {"TF-IDF cosine": np.asarray(first.multiply(second).sum(axis=1)).ravel().tolist()}


def _classifier() -> "LogisticRegression":
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=10, solver="lbfgs", max_iter=_STEPS, random_state=0)


def _chosen(learned: Any, asked: Any, has_label: Sequence[bool]) -> np.ndarray:
    """[N] bool; a label that all training items have, or none, is always or never chosen."""
    if len(set(has_label)) < 2:
        return np.full(asked.shape[0], has_label[0])
    model = _classifier().fit(learned, has_label)
    decided: np.ndarray = model.decision_function(asked) >= 0.0  # a probability of 0.5
    return decided


def _fitted_vectorizer(texts: Sequence[str], num_weights: int = 1) -> "TfidfVectorizer | None":
    """Words and pairs of words that two texts have.

    Of few texts all; None where none has any. `num_weights` are learned for each feature: where all
    are too many the most frequent ones stay.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    rarest = (2, 1) if len(texts) >= _FEW_TEXTS else (1,)
    for pattern, min_df in product(_WORDS, rarest):
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            min_df=min_df,
            max_features=max(1, _MOST_WEIGHTS // num_weights),
            ngram_range=(1, 2),
            token_pattern=pattern,
        )
        try:
            return vectorizer.fit(texts)
        except ValueError:  # it leaves no words
            continue
    return None


def _text_features(
    train: Sequence[Item], heldout: Sequence[Item], num_outputs: int = 1
) -> "tuple[csr_array, csr_array] | None":
    """[N, F] of each part, by the words of the first; None where that has none.

    Of pairs both texts, how they differ and what they share.
    """
    is_pairs = any(item["second_text"] is not None for item in train)
    texts = [item["text"] for item in train]
    if is_pairs:
        texts += [item["second_text"] or "" for item in train]
    vectorizer = _fitted_vectorizer(texts, num_outputs * (4 if is_pairs else 1))
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
    train: Sequence[Item], heldout: Sequence[Item]
) -> "tuple[csr_array, csr_array] | None":
    """[N * C, F] of each part: of every choice its words, and those that its text has, too."""
    everything = chain.from_iterable((item["text"], *item["choices"]) for item in train)
    vectorizer = _fitted_vectorizer(list(everything), 2)
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
