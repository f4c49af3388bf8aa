"""Sentences to piece ids at the speed of a look-up: most words of a text were met before.

BERT's rules never look past white space, so the pieces of a word do not depend on the words around
it. Each distinct word goes through the tokenizer once; the rest is indexing.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bert_core.vocabulary import WordPieceTokenizer

_MAX_WORDS: Final = 2**20  # then the memory of words begins anew: it stays below about 0.3 GB
_END_OF_SENTENCE: Final = "\n"


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first asked for."""

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


class SentenceEncoder:
    """Encodes clean sentences: words parted by single blanks, no line breaks."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self._forget()

    def encode(self, sentences: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all sentences in a row, and the number of pieces of each sentence."""
        if len(self._numbers) > _MAX_WORDS:
            self._forget()
        if not sentences:
            return np.empty(0, dtype=np.uint32), np.empty(0, dtype=np.int64)
        words = f" {_END_OF_SENTENCE} ".join([*sentences, ""]).split(" ")[:-1]
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int32, len(words))
        self._learn_new_words()
        counts = self._counts[numbers]
        ends = np.cumsum(counts)
        # Every word's pieces lie together in `_pieces`: copy the ranges one after the other.
        shift = np.repeat(self._starts[numbers] - (ends - counts), counts)
        ids = self._pieces[shift + np.arange(ends[-1])]
        totals = ends[numbers == 0]  # pieces up to the end of each sentence
        return ids, np.diff(totals, prepend=0)

    def _forget(self) -> None:
        self._numbers = _Numbers({_END_OF_SENTENCE: 0})
        self._counts = np.zeros(1, dtype=np.int64)
        self._starts = np.zeros(1, dtype=np.int64)
        self._pieces = np.empty(0, dtype=np.uint32)

    def _learn_new_words(self) -> None:
        known = self._counts.size
        new = list(self._numbers)[known:]
        if not new:
            return
        encoded = self.tokenizer.encode_batch(new)
        counts = np.fromiter(map(len, encoded), np.int64, len(new))
        starts = self._pieces.size + np.cumsum(counts) - counts
        pieces = np.fromiter(
            (piece for word in encoded for piece in word), np.uint32, int(counts.sum())
        )
        self._counts = np.concatenate([self._counts, counts])
        self._starts = np.concatenate([self._starts, starts])
        self._pieces = np.concatenate([self._pieces, pieces])
