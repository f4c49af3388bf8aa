"""Labelled texts as the encoder takes them."""

from collections.abc import Iterator

import numpy as np

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.randomness import Permutation
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.labelled.stage import LabelledTexts


class EncodedTexts:
    """Labelled texts as token ids between [CLS] and [SEP], cut to `max_tokens`."""

    def __init__(
        self, labelled: LabelledTexts, tokenizer: WordPieceTokenizer, max_tokens: int
    ) -> None:
        encoded = tokenizer.encode_batch(labelled.texts)
        kept = max_tokens - 2
        self.num_truncated = sum(len(ids) > kept for ids in encoded)
        self._ids = [[tokenizer.cls_id, *ids[:kept], tokenizer.sep_id] for ids in encoded]
        self._labels = np.asarray(labelled.labels)

    def __len__(self) -> int:
        return len(self._ids)

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The texts at `indices`, in that order."""
        tokens = RaggedBatch.from_sequences([self._ids[index] for index in indices])
        return LabelledBatch.from_arrays(tokens, self._labels[indices])

    def batches(self, size: int, rank: int, world_size: int) -> Iterator[tuple[int, LabelledBatch]]:
        """This rank's share of the batches of all texts in order, `size` at a time, numbered."""
        for number in range(rank, -(-len(self) // size), world_size):
            yield number, self.batch(np.arange(number * size, min((number + 1) * size, len(self))))

    def shuffled(self, seed: int, step: int, examples_per_step: int) -> np.ndarray:
        """Indices of the texts that optimizer step `step` learns from.

        Every text comes once an epoch, in an order of its own for each epoch; a step may take the
        end of one and the beginning of the next.
        """
        stream = np.arange(step * examples_per_step, (step + 1) * examples_per_step)
        epochs, places = np.divmod(stream, len(self))
        chosen = np.empty_like(stream)
        for epoch in np.unique(epochs):
            order = Permutation(len(self), seed, "finetuning order", int(epoch))
            chosen[epochs == epoch] = order[places[epochs == epoch]]
        return chosen
