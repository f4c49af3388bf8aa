"""Sentences to token ids at the speed of a look-up: most words of a text occurred before.

BERT's rules never look past white space, nor past ASCII punctuation next to ASCII letters, so the
tokens of such a word do not depend on what is around it. Each distinct word goes through the
tokenizer once; Arrow finds the distinct ones.
"""

from itertools import chain, count
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.vocabulary import WordPieceTokenizer

_MAX_WORDS: Final = 2**20  # then the table of words is emptied: it stays below about 0.3 GB
_BLANK, _LETTER, _PUNCTUATION, _OTHER_SCRIPT = range(4)
_KINDS: Final = np.full(256, _OTHER_SCRIPT, dtype=np.uint8)
_KINDS[:128] = _PUNCTUATION
_KINDS[[ord(each) for each in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]] = (
    _LETTER
)
_KINDS[ord(" ")] = _BLANK


class SentenceEncoder:
    """Encodes clean sentences: blanks for white space, no control characters."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self._forget()

    def encode(self, sentences: pa.StringArray) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all sentences in a row, and the number of tokens of each sentence."""
        if len(self._row_of_word) > _MAX_WORDS:
            self._forget()
        text, offsets = _text_of(sentences)
        edges = word_edges(text, offsets)
        words = pa.BinaryArray.from_buffers(
            pa.binary(), edges.size - 1, [None, pa.py_buffer(edges), pa.py_buffer(text)]
        ).dictionary_encode()
        rows = self._rows_of(words.dictionary.to_pylist())[words.indices.to_numpy()]
        counts = self._counts[rows]
        last = np.cumsum(counts)
        # Every word's tokens lie together in `_ids`: copy the ranges one after the other.
        shift = np.repeat(self._begins[rows] - (last - counts), counts)
        ids = self._ids[shift + np.arange(shift.size)]
        totals = np.concatenate([[0], last])[np.searchsorted(edges[:-1], offsets)]
        return ids, np.diff(totals)

    def _forget(self) -> None:
        self._row_of_word: dict[bytes, int] = {}
        # Of each row: how many tokens the word has, and where they begin in `_ids`.
        self._counts = np.empty(0, dtype=np.int64)
        self._begins = np.empty(0, dtype=np.int64)
        self._ids = np.empty(0, dtype=np.uint32)

    def _rows_of(self, words: list[bytes]) -> NDArray[np.int64]:
        """The row of each word; new words are encoded first."""
        new = [word for word in words if word not in self._row_of_word]
        if new:
            encoded = self.tokenizer.encode_batch([word.decode() for word in new])
            counts = np.fromiter(map(len, encoded), np.int64, len(encoded))
            ids = np.fromiter(chain.from_iterable(encoded), np.uint32, int(counts.sum()))
            self._row_of_word.update(zip(new, count(self._counts.size), strict=False))
            self._begins = np.append(self._begins, self._ids.size + np.cumsum(counts) - counts)
            self._counts = np.append(self._counts, counts)
            self._ids = np.append(self._ids, ids)
        return np.fromiter(map(self._row_of_word.__getitem__, words), np.int64, len(words))


def word_edges(text: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.int32]:
    """Where each word, or run of blanks, begins, and the end of the text.

    A word is a run of ASCII letters and digits, a punctuation mark, or, where other scripts are
    among it, all that is between two blanks. Sentences (which begin at `offsets`) share none.
    """
    kinds = _spread_other_scripts(_KINDS[text], offsets)
    differs = np.append(True, kinds[1:] != kinds[:-1])[: kinds.size]
    differs |= kinds == _PUNCTUATION
    differs[offsets[offsets < kinds.size]] = True
    return np.append(np.flatnonzero(differs), kinds.size).astype(np.int32)


def _spread_other_scripts(
    kinds: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Mark all of a stretch between blanks (or sentences) where one of its bytes is not ASCII."""
    others = np.flatnonzero(kinds == _OTHER_SCRIPT)
    if not others.size:
        return kinds
    is_edge = kinds == _BLANK
    begins = is_edge.copy()
    begins[offsets[offsets < kinds.size]] = True
    stretch = np.cumsum(begins)
    marked = np.zeros(int(stretch[-1]) + 1, dtype=np.bool_)
    marked[stretch[others]] = True
    return np.where(marked[stretch] & ~is_edge, np.uint8(_OTHER_SCRIPT), kinds)


def _text_of(sentences: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of all sentences in a row, and where each begins, and the end."""
    _, offset_buffer, data = sentences.buffers()
    first = sentences.offset
    offsets = np.frombuffer(offset_buffer, np.int32)[first : first + len(sentences) + 1]
    if data is None or not len(sentences):
        return np.empty(0, dtype=np.uint8), np.zeros(len(sentences) + 1, dtype=np.int64)
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return text, offsets.astype(np.int64) - int(offsets[0])
