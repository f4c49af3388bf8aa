"""How many bytes an encoder needs to read a batch without gradients, said before it does."""

import torch

from bert_core.config import EncoderConfig
from bert_core.model.activation_memory import Activations, Backend


def forward_memory(
    config: EncoderConfig,
    *,
    num_tokens: int,
    longest: int,
    num_sequences: int | None = None,
    dtype: torch.dtype = torch.float32,
    backend: Backend = "cpu",
) -> int:
    """The bytes that the encoder needs beside its weights to read a batch without gradients.

    The batch is that of `worst_lengths`, which says what is raised.
    """
    way = Activations(
        config=config,
        lengths=worst_lengths(num_tokens, longest, num_sequences),
        num_read=num_tokens,
        num_predicted=0,
        checkpointed_layers=0,
        size=dtype.itemsize,
        backend=backend,
    )
    return way.forward()


def worst_lengths(
    num_tokens: int, longest: int, num_sequences: int | None = None
) -> tuple[int, ...]:
    """The lengths that need the most memory among those that fit the numbers.

    As many sequences as can be are as long as the longest; None: so are all, up to the last one.
    Raises ValueError where no sequences fit the numbers.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    if not 1 <= longest <= num_tokens:
        raise ValueError(f"longest must lie in [1, {num_tokens}], got {longest}")
    fewest, most = -(-num_tokens // longest), num_tokens - longest + 1
    count = fewest if num_sequences is None else num_sequences
    if not fewest <= count <= most:
        raise ValueError(f"num_sequences must lie in [{fewest}, {most}], got {count}")
    if longest == 1:
        return (1,) * num_tokens
    num_full, rest = divmod(num_tokens - count, longest - 1)  # every sequence has one token anyway
    lengths = (longest,) * num_full + (1 + rest,) * (rest > 0)
    return lengths + (1,) * (count - len(lengths))
