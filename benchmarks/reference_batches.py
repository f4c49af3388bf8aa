"""Ragged batches in the reference's formats: padded, padded to one shape, or packed.

`transformers` packs sequences for flash attention only, which needs a GPU; but it accepts a custom
attention function, registered by name. This one pads only queries, keys and values, calls
`scaled_dot_product_attention`, and packs again: nothing else has padded tokens.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.batch import PretrainingBatch, RaggedBatch

PACKED_ATTENTION = "packed_sdpa"


def pad(values: Tensor, lengths: tuple[int, ...], padding: int, size: int | None = None) -> Tensor:
    """[T] -> [B, S], S the longest of the batch unless a `size` is given."""
    rows = values.new_full((len(lengths), size or max(lengths)), padding)
    for row, part in zip(rows, values.split(lengths), strict=True):
        row[: len(part)] = part
    return rows


def padded(batch: PretrainingBatch, size: int | None = None) -> dict[str, Tensor]:
    """A pretraining batch as arguments of the model's forward pass."""
    tokens, next_sentence_labels = batch.tokens, batch.next_sentence_labels
    assert next_sentence_labels is not None
    labels = torch.full((tokens.num_tokens,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    return {
        **padded_tokens(tokens, size),
        "labels": pad(labels, tokens.lengths, -100, size),
        "next_sentence_label": next_sentence_labels,
    }


def padded_tokens(tokens: RaggedBatch, size: int | None = None) -> dict[str, Tensor]:
    """Ids, segments and mask, [B, S] each."""
    return {
        "input_ids": pad(tokens.input_ids, tokens.lengths, 0, size),
        "token_type_ids": pad(tokens.token_type_ids, tokens.lengths, 0, size),
        "attention_mask": pad(torch.ones_like(tokens.input_ids), tokens.lengths, 0, size),
    }


def packed(tokens: RaggedBatch) -> dict[str, Any]:
    """Arguments of the encoder for one row of T tokens, with their positions for its attention."""
    lengths = torch.tensor(tokens.lengths)
    is_token = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, S]
    positions = is_token.flatten().nonzero().squeeze(1)  # [T]
    return {
        "input_ids": tokens.input_ids[None],
        "token_type_ids": tokens.token_type_ids[None],
        "position_ids": tokens.position_ids[None],
        "packing": None if bool(is_token.all()) else (is_token[:, None, None], positions),
        "num_sequences": len(tokens.lengths),
    }


def register_packed_attention() -> str:
    """Register the packed attention with `transformers`; returns its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PACKED_ATTENTION, packed_attention)
    AttentionMaskInterface.register(PACKED_ATTENTION, lambda **_: None)
    return PACKED_ATTENTION


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: tuple[Tensor, Tensor] | None,
    num_sequences: int,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Queries, keys and values [1, H, T, K] -> [1, T, H, K], each sequence by itself."""
    rows = torch.stack((query[0], key[0], value[0])).transpose(1, 2)  # [3, T, H, K]
    mask = None
    if packing is not None:
        mask, index = packing
        zeros = rows.new_zeros(3, num_sequences * mask.shape[-1], *rows.shape[2:])
        rows = zeros.index_copy(1, index, rows)
    query, key, value = rows.unflatten(1, (num_sequences, -1)).transpose(2, 3).unbind(0)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    flat = mixed.transpose(1, 2).flatten(0, 1)  # [B * S, H, K]
    return (flat if packing is None else flat[index])[None], None


def static_arguments(
    batch: PretrainingBatch, longest: int, most_masked: int, device: str
) -> tuple[Any, ...]:
    """Arguments of `Pretraining`, with the same shapes for every batch."""
    tokens, num_masked = batch.tokens, batch.masked_positions.numel()
    token_numbers = pad(torch.arange(tokens.num_tokens), tokens.lengths, -1, longest).flatten()
    row_of_token = token_numbers.new_zeros(tokens.num_tokens)
    row_of_token[token_numbers[token_numbers >= 0]] = (token_numbers >= 0).nonzero().squeeze(1)
    masked = F.pad(row_of_token[batch.masked_positions], (0, most_masked - num_masked))
    labels = F.pad(batch.masked_labels, (0, most_masked - num_masked), value=-100)
    assert batch.next_sentence_labels is not None
    inputs = {name: value.to(device) for name, value in padded_tokens(tokens, longest).items()}
    inputs["attention_mask"] = inputs["attention_mask"].bool()
    rest = row_of_token[tokens.first_positions], masked, labels, batch.next_sentence_labels
    return inputs, *(value.to(device) for value in rest)
