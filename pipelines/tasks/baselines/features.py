"""Texts, and pairs of texts, as TF-IDF of their words and pairs of words."""

from collections.abc import Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any

from pipelines.tasks import Item

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from sklearn.feature_extraction.text import TfidfVectorizer

_FEW_TEXTS = 100  # of which every word counts
_WORDS = (r"(?u)\b\w\w+\b", r"(?u)\b\w+\b")  # scikit-learn's own; where it finds none, letters too
_MOST_WEIGHTS = 10_000_000  # of all outputs; their solver holds them two dozen times


def fitted_vectorizer(texts: Sequence[str], num_weights: int = 1) -> "TfidfVectorizer | None":
    """The words and pairs of words that two texts have, of few texts all; None where none has any.

    `num_weights` are learned for each feature: where all are too many the most frequent ones stay.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    rarest = (2, 1) if len(texts) >= _FEW_TEXTS else (1,)
    for pattern, min_df in product(_WORDS, rarest):
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            ngram_range=(1, 2),
            min_df=min_df,
            max_features=max(1, _MOST_WEIGHTS // num_weights),
            token_pattern=pattern,
        )
        try:
            return vectorizer.fit(texts)
        except ValueError:  # it leaves no words
            continue
    return None


def text_features(
    train: Sequence[Item], heldout: Sequence[Item], num_outputs: int = 1
) -> "tuple[csr_array, csr_array] | None":
    """[N, F] of each part, by the words of the first; None where that has no words.

    Of pairs both texts, how they differ and what they share.
    """
    is_pairs = any(item["second_text"] is not None for item in train)
    texts = [item["text"] for item in train]
    if is_pairs:
        texts += [item["second_text"] or "" for item in train]
    vectorizer = fitted_vectorizer(texts, num_outputs * (4 if is_pairs else 1))
    if vectorizer is None:
        return None

    def of(items: Sequence[Item]) -> Any:
        first = vectorizer.transform([item["text"] for item in items])
        if not is_pairs:
            return first
        second = vectorizer.transform([item["second_text"] or "" for item in items])
        return beside(first, second, abs(first - second), first.multiply(second))

    return of(train), of(heldout)


def choice_features(
    train: Sequence[Item], heldout: Sequence[Item]
) -> "tuple[csr_array, csr_array] | None":
    """[N * C, F] of each part: of every choice its words, and those that its text has, too."""
    everything = chain.from_iterable((item["text"], *item["choices"]) for item in train)
    vectorizer = fitted_vectorizer(list(everything), 2)
    if vectorizer is None:
        return None

    def of(items: Sequence[Item]) -> Any:
        choices = vectorizer.transform([each for item in items for each in item["choices"]])
        texts = vectorizer.transform([item["text"] for item in items for _ in item["choices"]])
        return beside(choices, texts.multiply(choices))

    return of(train), of(heldout)


def beside(*parts: "csr_array") -> Any:
    """[N, sum of all F]."""
    from scipy.sparse import hstack

    return hstack(parts, format="csr")
