"""Pairs of texts of which each is read for itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.inference.texts import EncodedTexts, encode_texts
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """N pairs with a label each, some with a third text that is known not to fit.

    A batch holds the first texts, then the second ones, then the third ones that there are.
    """

    encoded: EncodedTexts  # N first texts, N second ones, then the others
    labels: np.ndarray  # [N]
    others: Sequence[int | None]  # of each pair: where its third text stands

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
