"""Which attention probabilities are dropped: each sequence of a batch has a stream of its own.

Element (h, q, k) of a sequence of S tokens is word (h * S + q) * S + k of its stream, however its
batch is sorted, grouped or padded. N sequences, S tokens, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bert_core.backends.dropout import (
    CHUNK,
    DropoutKey,
    Site,
    chunk_offsets,
    chunk_offsets_tensor,
    draw_into,
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
        places = [place for place, _ in sequences]
        longest = num_heads * size * size
        streams = fold_in(np.uint64(self.key.host_stream(_SITE)), places)
        offsets = chunk_offsets(streams, -(-longest // CHUNK))
        result = torch.empty(len(sequences), num_heads, size, size, dtype=torch.int16)
        for number, (_, length) in enumerate(sequences):
            target = result[number]
            if length == size:
                draw_into(target.view(-1), self.key.pool, offsets[:, number])
                continue
            words = torch.empty(num_heads * length * length, dtype=torch.int16)
            num_chunks = -(-words.numel() // CHUNK)
            draw_into(words, self.key.pool, offsets[:, number, :num_chunks])
            target.zero_()[:, :length, :length] = words.view(num_heads, length, length)
        return result.flatten(0, 1).sub_(threshold(self.rate))

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


def attention_dropout(key: DropoutKey | None, rate: float) -> AttentionDropout | None:
    """What attention drops; None where it drops nothing."""
    return None if key is None or rate == 0.0 else AttentionDropout(key, rate)
