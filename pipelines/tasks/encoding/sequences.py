"""Examples that are sequences of tokens: batches of them, and the order of an epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.inference.texts import EncodedTexts
from bert_core.randomness import Permutation
from pipelines.tasks import TaskExamples


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """N examples, each of `per_example` sequences and one label.

    `labels` holds what `LabelledBatch` takes: an array of N rows, or N arrays, one for each token
    of a sequence, which a batch joins.
    """

    encoded: EncodedTexts
    labels: np.ndarray | Sequence[np.ndarray]
    per_example: int = 1

    @property
    def num_truncated(self) -> int:
        """Sequences whose end was left out."""
        return self.encoded.num_truncated

    def __len__(self) -> int:
        return len(self.encoded.sequences) // self.per_example

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The examples at `indices`, in that order."""
        each = np.arange(self.per_example)
        places = (np.asarray(indices)[:, None] * self.per_example + each).reshape(-1)
        tokens = RaggedBatch.from_sequences(
            [self.encoded.sequences[place] for place in places],
            [self.encoded.segment_b_start[place] for place in places],
        )
        return LabelledBatch.from_arrays(tokens, self._labels_of(indices))

    def longest(self, size: int) -> LabelledBatch:
        """The `size` examples of most tokens."""
        lengths = np.fromiter(map(len, self.encoded.sequences), np.int64)
        of_examples = lengths.reshape(len(self), self.per_example).sum(axis=1)
        return self.batch(np.argsort(-of_examples, kind="stable")[:size])

    def _labels_of(self, indices: np.ndarray) -> ArrayLike:
        if isinstance(self.labels, np.ndarray):
            return self.labels[indices]
        return np.concatenate([self.labels[index] for index in indices])


def batches(
    examples: TaskExamples, size: int, rank: int, world_size: int
) -> Iterator[tuple[int, LabelledBatch]]:
    """This rank's share of the batches of all examples in order, `size` at a time, numbered."""
    for number in range(rank, -(-len(examples) // size), world_size):
        last = min((number + 1) * size, len(examples))
        yield number, examples.batch(np.arange(number * size, last))


def shuffled(num_examples: int, seed: int, step: int, examples_per_step: int) -> np.ndarray:
    """Indices of the examples that optimizer step `step` learns from.

    Every example comes once an epoch, in an order of its own for each epoch; a step may take the
    end of one and the beginning of the next.
    """
    stream = np.arange(step * examples_per_step, (step + 1) * examples_per_step)
    epochs, places = np.divmod(stream, num_examples)
    chosen = np.empty_like(stream)
    for epoch in np.unique(epochs):
        order = Permutation(num_examples, seed, "finetuning order", int(epoch))
        chosen[epochs == epoch] = order[places[epochs == epoch]]
    return chosen
