"""How many bytes an encoder needs to read a batch without gradients, said before it does."""

from typing import Literal

import torch

from bert_core.config import EncoderConfig

Backend = Literal["cpu", "plain", "flash"]

_FLOAT32_BYTES = 4
_INDEX_BYTES = 6 * 8  # a token: its ids and its positions


def forward_memory(
    config: EncoderConfig,
    *,
    num_tokens: int,
    longest: int,
    num_sequences: int | None = None,
    dtype: torch.dtype = torch.float32,
    backend: Backend = "plain",
) -> int:
    """The bytes that the encoder needs beside its weights to read a batch without gradients.

    Counted from the operations of the plain backend, which pads every sequence to the longest;
    "flash" never holds attention's probabilities, and "cpu" needs no more than "plain". As many
    sequences as can be are taken to be as long as the longest; with `num_sequences` of None all
    are. Raises ValueError where no sequences fit the numbers.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    if not 1 <= longest <= num_tokens:
        raise ValueError(f"longest must lie in [1, {num_tokens}], got {longest}")
    fewest, most = -(-num_tokens // longest), num_tokens - longest + 1
    count = fewest if num_sequences is None else num_sequences
    if not fewest <= count <= most:
        raise ValueError(f"num_sequences must lie in [{fewest}, {most}], got {count}")
    width = config.hidden_size
    hidden = dtype.itemsize * num_tokens * width  # [T, D]
    attending = 9 * hidden
    if backend != "flash":
        padded = dtype.itemsize * count * longest * width  # [B * S, D]
        # [B, H, S, S]
        probabilities = dtype.itemsize * config.num_attention_heads * count * longest**2
        attending += 3 * padded + 3 * probabilities
    feeding = 4 * hidden + 2 * dtype.itemsize * num_tokens * config.intermediate_size
    embedding = 3 * _FLOAT32_BYTES * num_tokens * width
    return _INDEX_BYTES * num_tokens + max(attending, feeding, embedding)
