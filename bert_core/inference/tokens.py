"""A pretrained model's answers: which token a mask hides, and whether two sentences follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bert_core.backends.context import Precision
from bert_core.batch import RaggedBatch
from bert_core.inference.texts import encode_texts, run_batches, with_head
from bert_core.model.catalogue import LanguageModel, Model, NextSentencePredictor, PretrainingModel
from bert_core.randomness import random_bits, uniform
from bert_core.vocabulary import MASK, WordPieceTokenizer


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
    encoded = encode_texts(tokenizer, pairs, model.config.max_position_embeddings)
    probabilities = torch.empty(len(pairs))
    for members, _, logits in run_batches(
        model, encoded, partial(_next_sentence_logits, model), precision
    ):  # fmt: skip
        probabilities[members] = logits.softmax(dim=-1)[:, 0]
    return probabilities.tolist()


def _next_sentence_logits(model: Model, tokens: RaggedBatch) -> torch.Tensor:
    if isinstance(model, NextSentencePredictor):
        return model(tokens)
    if isinstance(model, PretrainingModel) and model.next_sentence:
        nowhere = torch.empty(0, dtype=torch.int64, device=tokens.input_ids.device)
        _, logits = model(tokens, nowhere)
        return logits
    raise ValueError(
        "next sentence prediction needs a model with a next sentence head, "
        f"got {model.head_name} with {model.head_settings()}"
    )


@torch.inference_mode()
def complete(
    model: Model,
    prompt_ids: Sequence[int],
    *,
    end_id: int,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    precision: Precision = "float32",
) -> list[int]:
    """`prompt_ids` (start token included) with what follows, up to and with `end_id`.

    At temperature 0 each token is the likeliest; above, tokens are drawn from
    softmax(logits / temperature), among the `top_k` likeliest where given. Equal arguments draw
    equal tokens. It ends without `end_id` after `max_new_tokens`, or where the model's positions
    end. Raises ValueError for a model with another head, an empty or too long prompt, a negative
    temperature, or a `top_k` beyond the vocabulary.
    """
    model = with_head(model, LanguageModel)
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, got {temperature}")
    if top_k is not None and not 1 <= top_k <= model.config.vocab_size:
        raise ValueError(f"top_k must lie in [1, {model.config.vocab_size}], got {top_k}")
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
            logits = model(tokens, last)[0].double().cpu()
            draw = float(uniform(random_bits(seed, "completion", index)))
            ids.append(_pick(logits, temperature, top_k, draw))
            if ids[-1] == end_id:
                break
    return ids


def _pick(logits: torch.Tensor, temperature: float, top_k: int | None, draw: float) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    best = logits.topk(top_k or logits.numel())
    cumulated = (best.values / temperature).softmax(dim=0).cumsum(dim=0)
    rank = int(torch.searchsorted(cumulated, draw * float(cumulated[-1]), right=True))
    return int(best.indices[min(rank, best.indices.numel() - 1)])
