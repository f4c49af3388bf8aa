"""How many bytes the layers keep for their backward passes and hold while they run.

Counted from what the operations of the backends save. R = rows, the T ragged tokens; P = rows that
the last layer is read at; M = predicted tokens; B = sequences; S = tokens of the longest; D =
hidden size, I = intermediate size, H = heads, V = vocabulary.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from bert_core.config import EncoderConfig

Backend = Literal["cpu", "plain", "flash"]

FLOAT32_BYTES = 4
# Of the CPU backend: what it computes at a time, whose probabilities it saves, how many rows of
# logits it saves, and from how many on it packs the weights of a product.
_CHUNK_ELEMENTS = 1 << 20
_LONGEST_SAVED = 256
_SAVED_ROWS = 4096
_PACKED_ROWS = 1024
# Of the plain backend: words of 8 bytes that an element's random number takes on its way.
_WORDS_DRAWING = 6
_INDEX_BYTES = 6 * 8  # a token: its ids and its places


class Phase(NamedTuple):
    """Bytes that are there together at one moment of a step."""

    activations: int  # kept for the backward pass
    logits: int  # over the vocabulary
    working: int  # comes and goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """One micro-batch on its way through an encoder."""

    config: EncoderConfig
    lengths: tuple[int, ...]  # B numbers of tokens
    num_read: int  # P; R where all are read
    num_predicted: int  # M
    checkpointed_layers: int  # of the lowest, which keep their input alone
    size: int  # bytes of a number in the format that layers compute in
    backend: Backend

    def phases(self) -> tuple[Phase, ...]:
        """The moments of a step of which one is the worst."""
        return (
            self._at_the_loss(),
            self._in_the_last_layer(),
            self._in_the_layer_below(),
            self._drawing_dropout(),
        )

    def forward(self) -> int:
        """The most that a forward pass holds which keeps nothing for a backward pass."""
        hidden, wide = self._hidden, self.size * self.num_tokens * self.config.intermediate_size
        mixing = 9 * hidden + (0 if self.backend == "flash" else 2 * self._chunk)
        if self.backend == "plain":
            mixing += 3 * self._padded_hidden + self._probabilities
        feeding = 4 * hidden + 2 * wide
        if self.backend == "cpu" and self.num_tokens >= _PACKED_ROWS:
            feeding += self.size * self.config.hidden_size * self.config.intermediate_size
        embedding = 3 * self._precise_hidden
        return _INDEX_BYTES * self.num_tokens + max(mixing, feeding, embedding)

    @property
    def num_tokens(self) -> int:
        """R."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        """S."""
        return max(self.lengths)

    @property
    def _hidden(self) -> int:
        """[R, D]."""
        return self.size * self.num_tokens * self.config.hidden_size

    @property
    def _padded_hidden(self) -> int:
        """[B * S, D], to which the plain backend pads what attention reads."""
        return self.size * len(self.lengths) * self.longest * self.config.hidden_size

    @property
    def _precise_hidden(self) -> int:
        """[R, D] in float32."""
        return FLOAT32_BYTES * self.num_tokens * self.config.hidden_size

    @property
    def _probabilities(self) -> int:
        """[S, S] of each head of each sequence; a CPU pads to the longest of a group alone."""
        if self.backend == "plain":
            num_pairs = len(self.lengths) * self.longest**2
        else:
            num_pairs = sum(count * size**2 for count, size in _groups(self.lengths))
        return self.size * self.config.num_attention_heads * num_pairs

    @property
    def _saved_probabilities(self) -> int:
        """Those that the CPU backend keeps for the backward pass."""
        groups = _groups(self.lengths)
        num_pairs = sum(count * size**2 for count, size in groups if size <= _LONGEST_SAVED)
        return self.size * self.config.num_attention_heads * num_pairs

    @property
    def _chunk(self) -> int:
        """The probabilities that are computed at a time."""
        if self.backend == "plain":
            return self._probabilities
        one = self.config.num_attention_heads * self.longest**2
        return min(self._probabilities, self.size * max(one, _CHUNK_ELEMENTS))

    def _attention(self) -> int:
        """Saved by attention: its input, queries, keys and values, and more by backend."""
        saved = 4 * self._hidden
        if self.backend == "flash":
            # The logarithm of each softmax's sum.
            return saved + FLOAT32_BYTES * self.num_tokens * self.config.num_attention_heads
        if self.backend == "plain":
            # The softmax; with dropout what it is multiplied by, too, and the product.
            num_kept = 3 if self.config.attention_dropout else 1
            return self._hidden + 3 * self._padded_hidden + num_kept * self._probabilities
        return saved + self._saved_probabilities

    def _after_attention(self, num_rows: int) -> int:
        """Saved of `num_rows` rows by the projection, two normalizations and feed-forward."""
        width, wide = self.config.hidden_size, self.config.intermediate_size
        statistics = 4 * FLOAT32_BYTES
        if self.backend == "cpu":
            return num_rows * (self.size * (4 * width + wide) + statistics)
        # Sums and what dropout multiplies with are float32; GELU's output is kept, too.
        precise = (4 if self.config.hidden_dropout else 2) * FLOAT32_BYTES * width
        return num_rows * (self.size * (2 * width + 2 * wide) + precise + statistics)

    def _layer(self) -> int:
        return self._attention() + self._after_attention(self.num_tokens)

    def _last_layer(self) -> int:
        return self._attention() + self._after_attention(self.num_read)

    def _kept(self, num_layers: int) -> int:
        """Bytes that the embeddings and the lowest `num_layers` layers keep."""
        embeddings = self._precise_hidden + (self._hidden if self.config.hidden_dropout else 0)
        has_last = num_layers == self.config.num_layers
        stack = [self._layer()] * (num_layers - has_last) + [self._last_layer()] * has_last
        num_recomputed = min(self.checkpointed_layers, num_layers)
        stack[:num_recomputed] = [self._hidden] * num_recomputed
        return embeddings + _INDEX_BYTES * self.num_tokens + sum(stack)

    def _at_the_loss(self) -> Phase:
        """All layers' activations are kept, and the logits are there."""
        kept = self._kept(self.config.num_layers)
        width, vocabulary = self.config.hidden_size, self.config.vocab_size
        if not self.num_predicted:
            return Phase(kept, 0, 0)
        predicted = self.size * self.num_predicted * width  # [M, D]
        kept += self.size * self.num_read * width + 4 * predicted
        if self.backend != "cpu":
            # The logarithms of the softmax and two gradients, all float32.
            return Phase(kept, 3 * FLOAT32_BYTES * self.num_predicted * vocabulary, predicted)
        packed = self.size * vocabulary * width if self.num_predicted >= _PACKED_ROWS else 0
        # A product in a lower precision is cast before it is added.
        is_cast = self.size < FLOAT32_BYTES
        chunk = min(_CHUNK_ELEMENTS, vocabulary * width) if is_cast else 0
        working = max(packed, 2 * predicted + (self.size + FLOAT32_BYTES) * chunk)
        # Those of one chunk are still there when the next one's are made.
        num_rows = min(self.num_predicted, 2 * _SAVED_ROWS)
        return Phase(kept, self.size * num_rows * vocabulary, working)

    def _in_the_last_layer(self) -> Phase:
        """The backward pass of the last layer's attention, all lower layers kept."""
        return Phase(self._kept_in_the_last_layer(), 0, self._attention_working())

    def _drawing_dropout(self) -> Phase:
        """Uncompiled, the plain backend draws what a layer's attention drops in whole numbers."""
        if self.backend != "plain" or not self.config.attention_dropout:
            return Phase(0, 0, 0)
        kept = self._kept_in_the_last_layer() - 2 * self._probabilities
        return Phase(kept, 0, _WORDS_DRAWING * 8 * (self._probabilities // self.size))

    def _kept_in_the_last_layer(self) -> int:
        """While its attention is computed: what lower layers keep, and it itself up to there."""
        num_layers = self.config.num_layers
        kept = self._kept(num_layers)
        if self.checkpointed_layers == num_layers:
            kept += self._last_layer()  # once more
        return kept - self._after_attention(self.num_read)

    def _attention_working(self) -> int:
        gradients = 5 * self._hidden  # of the output, of the input, and [R, 3 D]
        if self.backend == "flash":
            return gradients
        if self.backend == "plain":
            return 2 * self._hidden + 3 * self._padded_hidden + 2 * self._probabilities
        tokens = self._chunk // (self.config.num_attention_heads * self.longest)
        num_chunks = 5 if self.longest <= _LONGEST_SAVED else 7
        return gradients + num_chunks * self._chunk + 4 * tokens * self.config.hidden_size

    def _in_the_layer_below(self) -> Phase:
        """The backward pass of the feed-forward network in the highest layer of R rows."""
        reads_all = self.num_read >= self.num_tokens
        num_layers = self.config.num_layers - (0 if reads_all else 1)
        if num_layers == 0:
            return Phase(0, 0, 0)
        kept = self._kept(num_layers)
        if self.checkpointed_layers >= num_layers:
            kept += self._layer()
        wide = self.size * self.num_tokens * self.config.intermediate_size
        if self.backend == "cpu":
            return Phase(kept, 0, 3 * self._hidden + wide)
        return Phase(kept, 0, 3 * self._precise_hidden + 2 * wide)


@lru_cache(maxsize=8)
def _groups(lengths: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """How many sequences each group of the CPU backend has, and tokens of its longest."""
    # Asked of that backend alone, without which all others work.
    from bert_core.backends.cpu.layout import group_bounds

    sizes = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    return tuple((last - first, int(sizes[first])) for first, last in group_bounds(sizes))
