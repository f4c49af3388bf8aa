"""Examples that are sequences of tokens or pairs of them: their batches, the order of an epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from bert_core.batch import Batch, LabelledBatch
from bert_core.inference.texts import EncodedTexts, encode_texts
from bert_core.ragged import RaggedBatch
from bert_core.randomness import Permutation
from bert_core.vocabulary import WordPieceTokenizer
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """N pairs with a label each, some with a third text that is known not to fit.

    A batch holds the first texts, then the second ones, then the third ones that there are.
    """

    encoded: EncodedTexts  # N first texts, N second ones, then the others
    labels: np.ndarray  # [N], or [N, 2] numbers of both texts
    others: Sequence[int | None]  # of each pair: where its third text is

    @property
    def num_truncated(self) -> int:
        """Texts whose end was left out."""
        return self.encoded.num_truncated

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The examples at `indices`, in that order."""
        pairs = np.asarray(indices).tolist()
        places = [*pairs, *(len(self) + pair for pair in pairs)]
        places += [place for pair in pairs if (place := self.others[pair]) is not None]
        tokens = RaggedBatch.from_sequences([self.encoded.sequences[place] for place in places])
        return LabelledBatch.from_arrays(tokens, self.labels[indices])

    def longest(self, size: int) -> LabelledBatch:
        """The `size` examples of most tokens."""
        lengths = [len(sequence) for sequence in self.encoded.sequences]
        of_pairs = np.array(lengths[: len(self)]) + lengths[len(self) : 2 * len(self)]
        of_pairs += [0 if place is None else lengths[place] for place in self.others]
        return self.batch(np.argsort(-of_pairs, kind="stable")[:size])


def encoded_pairs(
    first: Sequence[str],
    second: Sequence[str],
    third: Sequence[str | None],
    labels: np.ndarray,
    tokenizer: WordPieceTokenizer,
    max_tokens: int,
) -> Pairs:
    """The texts of N pairs, each cut to `max_tokens`; None where a pair has no third text."""
    places: list[int | None] = []
    more: list[str] = []
    for text in third:
        places.append(None if text is None else 2 * len(first) + len(more))
        more += [] if text is None else [text]
    encoded = encode_texts(tokenizer, [*first, *second, *more], max_tokens)
    return Pairs(encoded=encoded, labels=labels, others=places)


def batches(
    examples: TaskExamples, size: int, rank: int, world_size: int
) -> Iterator[tuple[int, Batch]]:
    """This rank's share of the batches of all examples in order, `size` at a time, numbered."""
    for number in range(rank, -(-len(examples) // size), world_size):
        last = min((number + 1) * size, len(examples))
        yield number, examples.batch(np.arange(number * size, last))


def shuffled(num_examples: int, seed: int, step: int, global_batch_size: int) -> np.ndarray:
    """Indices of the examples that optimizer step `step` learns from.

    Every example comes once an epoch, in an order of its own for each epoch; a step may take the
    end of one and the beginning of the next.
    """
    stream = np.arange(step * global_batch_size, (step + 1) * global_batch_size)
    epochs, places = np.divmod(stream, num_examples)
    chosen = np.empty_like(stream)
    for epoch in np.unique(epochs):
        order = Permutation(num_examples, seed, "finetuning order", int(epoch))
        chosen[epochs == epoch] = order[places[epochs == epoch]]
    return chosen
