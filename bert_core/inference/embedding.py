"""Texts as vectors, which vectors are near each other, and what attends to what.

N = texts or vectors, B = sequences of a batch, T = ragged tokens, D = hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.context import Precision
from bert_core.batch import RaggedBatch
from bert_core.config import EmbeddingConfig, Pooling
from bert_core.inference.texts import Text, encode_texts, parts_of, run_batches
from bert_core.model.catalogue import Model
from bert_core.model.encoder import attention_probabilities
from bert_core.model.trainable import pooled
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedded:
    """The vectors of texts, in the order of the texts."""

    vectors: NDArray[np.float32]  # [N, D]
    num_truncated: int  # texts longer than the model can read, whose end was left out


def embed(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
    precision: Precision = "float32",
) -> Embedded:
    """One vector per text. Arguments override the model's own settings: see `EmbeddingConfig`.

    A model without settings gives the mean of the hidden states, of length 1. The mean counts
    [CLS] and [SEP], as in sentence-transformers. With `normalize` every vector has length 1, so
    that a dot product is a cosine similarity. Raises ValueError for an unknown pooling, for
    more tokens than the model reads, and for what is not a list of texts.
    """
    given: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "max_tokens": max_tokens}
    given = {name: value for name, value in given.items() if value is not None}
    how = replace(model.embedding or EmbeddingConfig(), **given)
    readable = model.config.max_position_embeddings
    if (how.max_tokens or 0) > readable:
        raise ValueError(
            f"max_tokens must be at most the {readable} that the model reads, got {how.max_tokens}"
        )
    vectors, num_truncated = torch.empty(len(texts), model.config.hidden_size), 0

    def vectors_of(tokens: RaggedBatch) -> Tensor:
        vectors = pooled(model, tokens, how.pooling)
        return torch.nn.functional.normalize(vectors, dim=-1) if how.normalize else vectors

    for first, part in parts_of(texts):
        if how.lowercase:
            part = [_lowered(text) for text in part]
        encoded = encode_texts(tokenizer, part, how.max_tokens or readable)
        num_truncated += encoded.num_truncated
        for members, _, found in run_batches(model, encoded, vectors_of, precision):
            vectors[first + members] = found
    return Embedded(vectors=vectors.numpy(), num_truncated=num_truncated)


def _lowered(text: Text) -> Text:
    return text.lower() if isinstance(text, str) else (text[0].lower(), text[1].lower())


def cosine_similarity(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, M] the cosine of the angle between each of N and each of M vectors."""
    return _unit(left) @ _unit(right).T


def nearest(
    query: NDArray[np.float32], vectors: NDArray[np.float32], top_k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """[N, top_k] indices of the vectors nearest to each query, nearest first, and the cosines.

    Raises ValueError if there are fewer than `top_k` vectors.
    """
    if not 1 <= top_k <= len(vectors):
        raise ValueError(f"top_k must lie in [1, {len(vectors)}], got {top_k}")
    similarity = cosine_similarity(np.atleast_2d(query), vectors)
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :top_k]
    return order, np.take_along_axis(similarity, order, axis=1)


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return (vectors / np.maximum(length, np.finfo(np.float32).tiny)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionMaps:
    """Row i of a map says how much token i reads of each token; it sums up to 1."""

    tokens: list[str]  # S tokens, special ones included
    probabilities: NDArray[np.float32]  # [L, H, S, S] of L layers
    is_truncated: bool


@torch.inference_mode()
def attention_maps(
    model: Model, tokenizer: WordPieceTokenizer, text: Text, precision: Precision = "float32"
) -> AttentionMaps:
    """The attention probabilities of all layers and heads for a text or a pair of texts.

    Raises ValueError for what is neither.
    """
    encoded = encode_texts(tokenizer, [text], model.config.max_position_embeddings)
    tokens = RaggedBatch.from_sequences(encoded.sequences, encoded.segment_b_start)
    with model.inference(precision):
        layers = [
            attention_probabilities(qkv.float(), causal=model.config.causal)
            for qkv in model.encoder.queries_keys_values(tokens.to(model.device))
        ]
    return AttentionMaps(
        tokens=[tokenizer.id_to_token(index) for index in encoded.sequences[0]],
        probabilities=torch.stack(layers).cpu().numpy(),
        is_truncated=encoded.num_truncated > 0,
    )
