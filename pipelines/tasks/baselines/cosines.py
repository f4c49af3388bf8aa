"""How near two texts are without an encoder: by the words that they share, or their mean vector."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_core.training.state import read_weights
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.tasks import Item, Items
from pipelines.tasks.baselines.features import fitted_vectorizer

_TOKENS = "encoder.embeddings.token"
_TEXTS = ("text", "second_text")


def tfidf_cosines(train: Items, heldout: Items) -> dict[str, list[float]]:
    """The cosine of each pair's TF-IDF."""
    vectorizer = fitted_vectorizer([item[name] for name in _TEXTS for item in train.rows])
    if vectorizer is None:
        return {}
    first, second = (vectorizer.transform([item[name] for item in heldout.rows]) for name in _TEXTS)
    return {"TF-IDF cosine": np.asarray(first.multiply(second).sum(axis=1)).ravel().tolist()}


def mean_embedding_cosines(heldout: Items, encoder: Path) -> dict[str, list[float]]:
    """The cosine of each pair's mean token embeddings, as the encoder has them before its layers.

    `encoder` is its folder.
    """
    table = read_weights(encoder)[_TOKENS].float().numpy()
    tokenizer = WordPieceTokenizer.from_directory(encoder)
    first, second = (_means(heldout.rows, name, table, tokenizer) for name in _TEXTS)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products = (first * second).sum(axis=1)
    cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
    return {"mean token embedding": cosines.tolist()}


def _means(
    items: Sequence[Item], name: str, table: np.ndarray, tokenizer: WordPieceTokenizer
) -> np.ndarray:
    """[N, D]; zeros for a text of which the tokenizer leaves nothing."""
    means = np.zeros((len(items), table.shape[1]), np.float64)
    for place, ids in enumerate(tokenizer.encode_batch([item[name] for item in items])):
        if ids:
            means[place] = table[ids].mean(axis=0, dtype=np.float64)
    return means
