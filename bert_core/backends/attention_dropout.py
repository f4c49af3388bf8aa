"""Which attention probabilities are dropped: each sequence of a batch has a stream of its own.

Element (h, q, k) of a sequence of S tokens is word (h * S + q) * S + k of its stream, however its
batch is sorted, grouped or padded. N sequences, S tokens, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.dropout import (
    CHUNK,
    DropoutKey,
    Site,
    chunk_offsets,
    chunk_offsets_tensor,
    fold_in_tensor,
    threshold,
)
from bert_core.randomness import fold_in

_SITE = int(Site.ATTENTION_PROBABILITIES)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionDropout:
    """What is dropped of the probabilities of one layer's attention, at `rate`."""

    key: DropoutKey
    rate: float

    def signs(self, sequences: Sequence[tuple[int, int]], num_heads: int, size: int) -> Tensor:
        """[N * H, S, S] int16, negative where a probability is dropped; on the CPU.

        `sequences` holds the place in the batch and the length of each; those shorter than `size`
        fill the upper left corner of their squares.
        """
        longest = num_heads * size * size
        streams = fold_in(np.uint64(self.key.host_stream(_SITE)), [place for place, _ in sequences])
        offsets = chunk_offsets(streams, -(-longest // CHUNK)).swapaxes(0, 1)  # [N, 2, chunks]
        # By numpy: the squares of short sequences are so small that torch's calls would take longer
        # than what they do.
        pool = self.key.pool.numpy()
        words = np.zeros((len(sequences), num_heads, size, size), dtype=np.int16)
        for target, (_, length), stretches in zip(words, sequences, offsets, strict=True):
            corner = target[:, :length, :length]
            if longest <= CHUNK:
                left, right = (pool[begin:][: num_heads * length**2] for (begin,) in stretches)
                shape = corner.shape
                np.bitwise_xor(left.reshape(shape), right.reshape(shape), out=corner)
            else:
                corner[:] = _long_words(pool, corner.size, stretches).reshape(corner.shape)
        return torch.from_numpy(words).flatten(0, 1).sub_(threshold(self.rate))

    def scale(self, lengths: Tensor, num_heads: int, size: int, dtype: torch.dtype) -> Tensor:
        """[N, H, S, S] what probabilities are multiplied by: 0 or 1 / (1 - rate).

        The same draw as `signs`, as one expression, for all sequences of a batch; lengths [N].
        """
        pool = self.key.pool
        place = torch.arange(size, device=pool.device)
        head = torch.arange(num_heads, device=pool.device)[:, None, None]
        length = lengths.long()[:, None, None, None]
        element = (head * length + place[:, None]) * length + place  # [N, H, S, S]
        # What lies beyond the end of a sequence is read by nobody; it must stay within the table.
        element = torch.where(torch.maximum(place[:, None], place) < length, element, 0)
        num_chunks = -(-num_heads * size * size // CHUNK)
        streams = fold_in_tensor(
            self.key.stream(_SITE), torch.arange(lengths.numel(), device=pool.device)
        )
        lefts, rights = chunk_offsets_tensor(streams, num_chunks)  # [N, chunks]
        chunk, within = element // CHUNK, element % CHUNK
        chunk = (
            chunk
            + torch.arange(lengths.numel(), device=pool.device)[:, None, None, None] * num_chunks
        )
        words = pool[lefts.flatten()[chunk] + within] ^ pool[rights.flatten()[chunk] + within]
        return (words >= threshold(self.rate)).to(dtype) * (1 / (1 - self.rate))


def _long_words(
    pool: NDArray[np.int16], size: int, stretches: NDArray[np.int64]
) -> NDArray[np.int16]:
    """[size] words of one stream, whose chunks begin at `stretches` [2, chunks] of the pool."""
    words = np.empty(size, dtype=np.int16)
    for begin, left, right in zip(range(0, size, CHUNK), *stretches.tolist(), strict=False):
        part = words[begin : begin + CHUNK]
        np.bitwise_xor(pool[left:][: part.size], pool[right:][: part.size], out=part)
    return words


def attention_dropout(key: DropoutKey | None, rate: float) -> AttentionDropout | None:
    """What attention drops; None where it drops nothing."""
    return None if key is None or rate == 0.0 else AttentionDropout(key, rate)
