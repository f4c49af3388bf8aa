"""What any encoder and the heads of pretraining say: vectors, attention, masks, completions.

N = texts or vectors, B = sequences of a batch, T = ragged tokens, D = hidden size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.context import Precision
from bert_core.batch import RaggedBatch
from bert_core.config import EmbeddingConfig, Pooling
from bert_core.inference.texts import Text, check_texts, encode_texts, run_batches, with_head
from bert_core.model.catalogue import LanguageModel, Model, PretrainingModel
from bert_core.model.encoder import attention_probabilities
from bert_core.model.trainable import pooled
from bert_core.randomness import random_bits, uniform
from bert_core.vocabulary import MASK, WordPieceTokenizer

# Texts whose answers any change of weights, vocabulary or arithmetic changes.
PROBES: Final = (
    "The quick brown fox jumps over the lazy dog.",
    'In 1687, Newton\'s "Principia" cost 7 shillings; today it is worth $3,700,000.',
    "Où est la bibliothèque? Straße, señor, ŁÓDŹ and naïve café.",
    "東京で会いましょう。你好,世界。",
    "a b c [MASK] <b> </b> e-mail@example.org http://x.y/z?q=1&r=%20 x_1 == y**2 !!!",
    "Supercalifragilisticexpialidocious antidisestablishmentarianism.",
    "no",
    "long text " * 400,
)


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
    precision: Precision = "float32",
) -> Embedded:
    """One vector per text. Arguments override the model's own settings: see `EmbeddingConfig`.

    A model without settings gives the mean of the hidden states, of length 1. The mean counts
    [CLS] and [SEP], as in sentence-transformers. With `normalize` every vector has length 1, so
    that a dot product is a cosine similarity. Raises ValueError for an unknown pooling, and for
    what is not a list of texts.
    """
    options: dict[str, Any] = {"pooling": pooling, "normalize": normalize}
    options = {name: value for name, value in options.items() if value is not None}
    how = replace(model.embedding or EmbeddingConfig(), **options)
    if how.lowercase:
        check_texts(texts)
        texts = [t.lower() if isinstance(t, str) else (t[0].lower(), t[1].lower()) for t in texts]
    encoded = encode_texts(tokenizer, texts, how.max_tokens or model.config.max_position_embeddings)
    vectors = torch.empty(len(texts), model.config.hidden_size)

    def vectors_of(tokens: RaggedBatch) -> Tensor:
        vectors = pooled(model, tokens, how.pooling)
        return F.normalize(vectors, dim=-1) if how.normalize else vectors

    for members, _, values in run_batches(model, encoded, vectors_of, precision):
        vectors[members] = values
    return Embedded(vectors=vectors.numpy(), num_truncated=encoded.num_truncated)


def cosine_similarity(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, M] the cosine of the angle between each of N and each of M vectors."""
    left, right = (F.normalize(torch.tensor(each), dim=-1).numpy() for each in (left, right))
    return left @ right.T


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that could replace [MASK]."""

    token: str
    probability: float


@torch.inference_mode()
def fill_mask(
    model: Model,
    tokenizer: WordPieceTokenizer,
    text: str,
    top_k: int = 5,
    precision: Precision = "float32",
) -> list[list[Candidate]]:
    """The `top_k` likeliest tokens for each [MASK] in `text`, likeliest first.

    Raises ValueError for a model with another head, a text that holds no [MASK] or more tokens
    than the model can read, or a `top_k` beyond the vocabulary.
    """
    model = with_head(model, PretrainingModel)
    if not 1 <= top_k <= tokenizer.vocab_size:
        raise ValueError(f"top_k must lie in [1, {tokenizer.vocab_size}], got {top_k}")
    ids = [tokenizer.cls_id]
    for index, part in enumerate(text.split(MASK)):
        ids += ([tokenizer.mask_id] if index else []) + tokenizer.encode(part)
    ids.append(tokenizer.sep_id)
    positions = [index for index, token in enumerate(ids) if token == tokenizer.mask_id]
    if not positions:
        raise ValueError(f"no {MASK} in {text!r}; put it in place of a word")
    if len(ids) > model.config.max_position_embeddings:
        raise ValueError(
            f"the text must hold at most {model.config.max_position_embeddings - 2} tokens, got "
            f"{len(ids) - 2}; shorten it around the mask"
        )
    tokens = RaggedBatch.from_sequences([ids]).to(model.device)
    with model.inference(precision):
        logits, _ = model(tokens, torch.tensor(positions, device=model.device))
    # The table may have rows that are no tokens.
    best = logits.float().softmax(dim=-1)[:, : tokenizer.vocab_size].topk(top_k, dim=-1)
    return [
        [
            Candidate(token=tokenizer.id_to_token(index), probability=probability)
            for index, probability in zip(indices, probabilities, strict=True)
        ]
        for indices, probabilities in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def next_sentence_probability(
    model: Model,
    tokenizer: WordPieceTokenizer,
    pairs: Sequence[tuple[str, str]],
    precision: Precision = "float32",
) -> list[float]:
    """Of each pair of texts, how likely the second follows the first.

    Raises ValueError for a model without a next sentence head, and for what is not a list of pairs.
    """
    head, pooler = (getattr(model, name, None) for name in ("next_sentence_head", "pooler"))
    if head is None or pooler is None:
        raise ValueError(
            "next sentence prediction needs a model with a next sentence head, "
            f"got {model.head_name} with {model.head_settings()}"
        )
    encoded = encode_texts(tokenizer, pairs, model.config.max_position_embeddings)
    probabilities = torch.empty(len(pairs))

    def logits_of(tokens: RaggedBatch) -> Tensor:
        first = model.encoder(tokens, None, tokens.first_positions)
        logits: Tensor = head(pooler(first), None)
        return logits

    for members, _, logits in run_batches(model, encoded, logits_of, precision):
        probabilities[members] = logits.softmax(dim=-1)[:, 0]
    return probabilities.tolist()


@torch.inference_mode()
def complete(
    model: Model,
    prompt_ids: Sequence[int],
    *,
    end_id: int,
    num_tokens: int | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    precision: Precision = "float32",
) -> list[int]:
    """`prompt_ids` (start token included) with what follows, up to and with `end_id`.

    At temperature 0 each token is the likeliest; above, tokens are drawn from
    softmax(logits / temperature), of all in the model's table or of the first `num_tokens`: a table
    may be padded beyond its vocabulary. Equal arguments draw equal tokens. It ends without `end_id`
    after `max_new_tokens`, or where the model's positions end. Raises ValueError for a model with
    another head, an empty or too long prompt, or a negative temperature.
    """
    model = with_head(model, LanguageModel)
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    ids = list(prompt_ids)
    num_free = model.config.max_position_embeddings - len(ids)
    if not ids or num_free < 0:
        raise ValueError(
            f"a prompt must hold 1 to {model.config.max_position_embeddings} tokens, got {len(ids)}"
        )
    num_new = num_free if max_new_tokens is None else min(num_free, max_new_tokens)
    with model.inference(precision):
        for index in range(num_new):
            tokens = RaggedBatch.from_sequences([ids]).to(model.device)
            last = torch.tensor([len(ids) - 1], device=model.device)
            logits = model(tokens, last)[0, :num_tokens].double().cpu()
            draw = float(uniform(random_bits(seed, "completion", index)))
            ids.append(_pick(logits, temperature, draw))
            if ids[-1] == end_id:
                break
    return ids


def _pick(logits: Tensor, temperature: float, draw: float) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    best = logits.sort(descending=True)
    cumulated = (best.values / temperature).softmax(dim=0).cumsum(dim=0)
    rank = int(torch.searchsorted(cumulated, draw * float(cumulated[-1]), right=True))
    return int(best.indices[min(rank, best.indices.numel() - 1)])


@torch.inference_mode()
def probe(
    model: Model, tokenizer: WordPieceTokenizer, texts: Sequence[str] = PROBES
) -> tuple[float, int]:
    """The weighted root mean square of all outputs of `model` for `texts`, and their number.

    Outputs are its hidden states and those of its head, computed text by text in float32. Every
    position has another weight, so that swapped numbers show. Raises ValueError for what is no
    list of texts.
    """
    total, count = 0.0, 0
    for text in texts:
        encoded = encode_texts(tokenizer, [text], model.config.max_position_embeddings)
        _, tokens = next(encoded.batches(model.config.max_position_embeddings))
        tokens = tokens.to(model.device)
        everywhere = torch.arange(tokens.num_tokens, device=model.device)
        if isinstance(model, PretrainingModel | LanguageModel):
            outputs = model(tokens, everywhere)
        else:
            outputs = model(tokens)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        for values in (model.encoder(tokens), *outputs):
            if values is None:
                continue
            numbers = values.double().cpu().flatten()
            weights = 1.5 + torch.cos(torch.arange(numbers.numel(), dtype=torch.float64))
            total += float((weights * numbers).square().sum())
            count += numbers.numel()
    return math.sqrt(total / count), count
