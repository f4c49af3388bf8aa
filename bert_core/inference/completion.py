"""Left-to-right text from a causal language model."""

from collections.abc import Sequence

import torch

from bert_core.backends.precision import Precision
from bert_core.inference.asking import with_head
from bert_core.model.catalogue import LanguageModel, Model
from bert_core.ragged import RaggedBatch
from bert_core.randomness import random_bits, uniform


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
