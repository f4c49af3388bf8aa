"""Sentences to piece ids at the speed of a look-up: most words of a text were met before.

BERT's rules never look past white space, nor past ASCII punctuation next to ASCII letters, so the
pieces of such a word do not depend on what stands around it. Each distinct word goes through the
tokenizer once; finding the words and looking them up is arithmetic on the text's bytes.
"""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.vocabulary.word_table import MAX_BYTES, WordTable

_MAX_WORDS: Final = 2**20  # then the memory of words begins anew: it stays below about 0.3 GB
_BLANK, _LETTER, _PUNCTUATION, _OTHER_SCRIPT = range(4)
_KINDS: Final = np.full(256, _OTHER_SCRIPT, dtype=np.uint8)
_KINDS[:128] = _PUNCTUATION
_KINDS[[ord(each) for each in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"]] = (
    _LETTER
)
_KINDS[ord(" ")] = _BLANK
# The bytes of a 64-bit number that belong to a word of 0 to 8 bytes.
_KEPT: Final = np.array([(1 << 8 * count) - 1 for count in range(8)] + [2**64 - 1], dtype=np.uint64)


class SentenceEncoder:
    """Encodes clean sentences: blanks for white space, no control characters."""

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self._forget()

    def encode(self, sentences: pa.StringArray) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Ids of all sentences in a row, and the number of pieces of each sentence."""
        if self.tokenizer.added_tokens:
            return self._encode_whole(sentences)
        if len(self._counts) > _MAX_WORDS:
            self._forget()
        text, offsets = _text_of(sentences)
        starts, ends, is_long = find_words(text, offsets)
        words = self._number(text, starts, ends, is_long)
        counts = self._counts[words]
        last = np.cumsum(counts)
        # Every word's pieces lie together in `_pieces`: copy the ranges one after the other.
        shift = np.repeat(self._begins[words] - (last - counts), counts)
        ids = self._pieces[shift + np.arange(shift.size)]
        totals = np.concatenate([[0], last])[np.searchsorted(starts, offsets)]
        return ids, np.diff(totals)

    def _encode_whole(
        self, sentences: pa.StringArray
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """The same sentence by sentence: added tokens may hold blanks and marks."""
        encoded = self.tokenizer.encode_batch(sentences.to_pylist())
        counts = np.fromiter(map(len, encoded), np.int64, len(encoded))
        pieces = (piece for sentence in encoded for piece in sentence)
        return np.fromiter(pieces, np.uint32, int(counts.sum())), counts

    def _forget(self) -> None:
        self._table = WordTable()
        self._long_words: dict[bytes, int] = {}
        self._row_of_key = np.empty(0, dtype=np.int64)  # of each word in the table
        # Of each row: how many pieces the word has, and where they begin in `_pieces`.
        self._counts = np.empty(0, dtype=np.int64)
        self._begins = np.empty(0, dtype=np.int64)
        self._pieces = np.empty(0, dtype=np.uint32)

    def _number(
        self,
        text: NDArray[np.uint8],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        is_long: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """The row of each word; new words are encoded first."""
        rows = np.empty(starts.size, dtype=np.int64)
        short = np.flatnonzero(~is_long)
        numbers, new_keys = self._table.number(_keys(text, starts[short], ends[short]))
        if len(new_keys):
            self._row_of_key = np.append(
                self._row_of_key, len(self._counts) + np.arange(len(new_keys))
            )
            words = new_keys.astype("<u8", copy=False).view(f"S{MAX_BYTES}").ravel().tolist()
            self._learn(words)
        rows[short] = self._row_of_key[numbers]
        long = np.flatnonzero(is_long)
        if long.size:
            data = text.tobytes()
            found = [
                data[begin:end]
                for begin, end in zip(starts[long].tolist(), ends[long].tolist(), strict=True)
            ]
            new_words = list(dict.fromkeys(each for each in found if each not in self._long_words))
            for row, word in enumerate(new_words, start=len(self._counts)):
                self._long_words[word] = row
            self._learn(new_words)
            rows[long] = [self._long_words[word] for word in found]
        return rows

    def _learn(self, words: list[bytes]) -> None:
        """Append the pieces of new words."""
        if not words:
            return
        encoded = self.tokenizer.encode_batch([word.decode() for word in words])
        counts = np.fromiter(map(len, encoded), np.int64, len(words))
        pieces = np.fromiter(
            (piece for word in encoded for piece in word), np.uint32, int(counts.sum())
        )
        self._begins = np.append(self._begins, self._pieces.size + np.cumsum(counts) - counts)
        self._counts = np.append(self._counts, counts)
        self._pieces = np.append(self._pieces, pieces)


def find_words(
    text: NDArray[np.uint8], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Where each word begins and ends, and whether it is long or not ASCII.

    A word is a run of ASCII letters and digits, a punctuation mark, or, where other scripts are
    among it, all that stands between two blanks. Sentences (which begin at `offsets`) share none.
    """
    kinds = _KINDS[text]
    kinds = _spread_other_scripts(kinds, offsets)
    differs = np.append(True, kinds[1:] != kinds[:-1])[: kinds.size]
    differs |= kinds == _PUNCTUATION
    differs[offsets[(offsets < kinds.size)]] = True
    edges = np.append(np.flatnonzero(differs), kinds.size)
    starts, ends = edges[:-1], edges[1:]
    is_word = kinds[starts] != _BLANK
    starts, ends = starts[is_word], ends[is_word]
    is_long = (ends - starts > MAX_BYTES) | (kinds[starts] == _OTHER_SCRIPT)
    return starts, ends, is_long


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


def _keys(
    text: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The bytes of words of at most 16 bytes as two numbers each."""
    padded = np.append(text, np.zeros(MAX_BYTES, dtype=np.uint8))
    # Eight bytes from any place on, aligned or not.
    eight = np.ndarray((padded.size - 7,), dtype="<u8", buffer=padded, strides=(1,))
    lengths = ends - starts
    keys = np.empty((starts.size, 2), dtype=np.uint64)
    keys[:, 0] = eight[starts] & _KEPT[np.minimum(lengths, 8)]
    keys[:, 1] = eight[starts + 8] & _KEPT[np.clip(lengths - 8, 0, 8)]
    return keys


def _text_of(sentences: pa.StringArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The UTF-8 bytes of all sentences in a row, and where each begins, and the end."""
    _, offset_buffer, data = sentences.buffers()
    first = sentences.offset
    offsets = np.frombuffer(offset_buffer, np.int32)[first : first + len(sentences) + 1]
    if data is None or not len(sentences):
        return np.empty(0, dtype=np.uint8), np.zeros(len(sentences) + 1, dtype=np.int64)
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return text, offsets.astype(np.int64) - int(offsets[0])
