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
    offsets_on,
    threshold,
)

_SITE = int(Site.ATTENTION_PROBABILITIES)


@dataclass(frozen=True, slots=True, eq=False)
class AttentionDropout:
    """What is dropped of the probabilities of one layer's attention, at `rate`."""

    key: DropoutKey
    rate: float

    @property
    def factor(self) -> float:
        """What kept probabilities are multiplied by, 1 / (1 - rate)."""
        return 1 / (1 - self.rate)

    def offsets(self, num_sequences: int, num_heads: int, longest: int) -> NDArray[np.int64]:
        """[N, 2, chunks] where in the pool the words of each sequence of the batch begin."""
        num_chunks = -(-num_heads * longest**2 // CHUNK)
        return self.key.offsets(_SITE, num_chunks, num_sequences).swapaxes(0, 1)

    def signs(
        self,
        offsets: NDArray[np.int64],
        sequences: Sequence[tuple[int, int]],
        num_heads: int,
        size: int,
    ) -> Tensor:
        """[N * H, S, S] int16, negative where a probability is dropped; on the CPU.

        `offsets` are those of the whole batch; `sequences` holds the place in it and the length of
        each of N. Those shorter than `size` fill the upper left corner of their squares.
        """
        # By numpy: the squares of short sequences are so small that torch's calls would take longer
        # than what they do.
        pool = self.key.pool.numpy()
        words = np.zeros((len(sequences), num_heads, size, size), dtype=np.int16)
        for square, (place, length) in zip(words, sequences, strict=True):
            if num_heads * length**2 <= CHUNK:
                (left, *_), (right, *_) = offsets[place].tolist()
                shape, end = (num_heads, length, length), num_heads * length**2
                np.bitwise_xor(
                    pool[left : left + end].reshape(shape),
                    pool[right : right + end].reshape(shape),
                    out=square if length == size else square[:, :length, :length],
                )
            else:
                long = _long_words(pool, num_heads * length**2, offsets[place])
                square[:, :length, :length] = long.reshape(num_heads, length, length)
        return torch.from_numpy(words).flatten(0, 1).sub_(threshold(self.rate))

    def kept(self, lengths: Tensor, num_heads: int, size: int, dtype: torch.dtype) -> Tensor:
        """[N, H, S, S] 0 where a probability is dropped, 1 elsewhere.

        The same draw as `signs`, as one expression, for all sequences of a batch; lengths [N].
        """
        device, num_sequences = lengths.device, lengths.numel()
        place = torch.arange(size, device=device)
        head = torch.arange(num_heads, device=device)[:, None, None]
        length = lengths.long()[:, None, None, None]
        element = (head * length + place[:, None]) * length + place  # [N, H, S, S]
        # Elements beyond the end of a sequence are not used, but must index within the table.
        element = torch.where(torch.maximum(place[:, None], place) < length, element, 0)
        num_chunks = -(-num_heads * size * size // CHUNK)
        offsets = offsets_on(
            device, self.key.bits, self.key.layer, _SITE, num_chunks, num_sequences
        )
        first = torch.arange(num_sequences, device=device)[:, None, None, None] * num_chunks
        words = self.key.words_at(element + first * CHUNK, offsets.flatten(1))
        return (words >= threshold(self.rate)).to(dtype)


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
    """What attention drops; None if it drops nothing."""
    return None if key is None or rate == 0.0 else AttentionDropout(key, rate)
