"""What an example is, for each objective: token shards in, ragged examples out.

`mlm_nsp` is BERT's (Devlin et al., 2019): [CLS] A [SEP] B [SEP]. A document's sentences are taken
in order. Enough for one example make a chunk, which is cut in two at random: in half of the
examples the second segment is what followed, in the others it comes from another document and the
sentences it replaced are put back. Other than in the reference implementation the random segment
never comes from the same document, the two kinds balance even where chunks of a single sentence
leave no choice, and truncation never removes a sentence whole.

`mlm` packs full sentences across documents (Liu et al., 2019, "full-sentences"): [CLS] text [SEP],
documents parted by [SEP]. `clm` cuts the stream [CLS] document [SEP] [CLS] ... into windows for a
left-to-right model.
"""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipelines.stages.examples.shards import Examples, TokenShard, ranges

_MAX_TRIES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """The special tokens that examples are put together with."""

    cls: int
    sep: int


def sentence_pairs(
    pool: Sequence[TokenShard],
    special: SpecialIds,
    *,
    max_tokens: int,
    short_fraction: float,
    seed: int,
) -> Examples:
    """`mlm_nsp` examples of `pool[0]`; random segments come from the whole pool."""
    room = max_tokens - 3
    pool = [shard.with_sentences_up_to(room) for shard in pool]
    tables = [
        SentenceTable(
            starts=shard.sentence_starts.tolist(),
            documents=shard.document_starts.tolist(),
            groups=shard.groups.tolist(),
        )
        for shard in pool
    ]
    pairs = PairPlanner(tables, max_tokens=room, short_fraction=short_fraction, seed=seed).plan()
    lengths = pairs.a_length + pairs.b_length + 3
    begins = np.cumsum(lengths) - lengths
    b_starts = pairs.a_length + 2
    input_ids = np.empty(int(lengths.sum()), dtype=np.int64)
    input_ids[begins] = special.cls
    input_ids[begins + b_starts - 1] = special.sep
    input_ids[begins + lengths - 1] = special.sep
    a_places = ranges(begins + 1, pairs.a_length)
    input_ids[a_places] = pool[0].ids[ranges(pairs.a_begin, pairs.a_length)]
    for index, shard in enumerate(pool):
        from_here = pairs.b_shard == index
        b_length = pairs.b_length[from_here]
        places = ranges((begins + b_starts)[from_here], b_length)
        input_ids[places] = shard.ids[ranges(pairs.b_begin[from_here], b_length)]
    return Examples(
        input_ids=input_ids,
        lengths=lengths,
        segment_b_start=b_starts,
        is_random_next=pairs.is_random,
    )


def full_sentences(shard: TokenShard, special: SpecialIds, *, max_tokens: int) -> Examples:
    """`mlm` examples: as many sentences as fit, across documents, none cut that would fit whole."""
    room = max_tokens - 2
    shard = shard.with_sentences_up_to(room - 1)  # a document's last one is followed by [SEP]
    ends_document = np.zeros(shard.sentence_starts.size - 1, dtype=np.int64)
    ends_document[shard.document_starts[1:] - 1] = 1
    stream, starts = _with_special_ids(shard, ends_document, None, special)
    first_sentences = [0]
    cumulative = starts.tolist()
    while first_sentences[-1] < ends_document.size:
        first = first_sentences[-1]
        first_sentences.append(bisect_right(cumulative, cumulative[first] + room, first + 1) - 1)
    edges = np.array(first_sentences)
    begins, lengths = starts[edges[:-1]], np.diff(starts[edges])
    needs_sep = 1 - ends_document[edges[1:] - 1]
    totals = lengths + 1 + needs_sep
    places = np.cumsum(totals) - totals
    input_ids = np.full(int(totals.sum()), special.sep, dtype=np.int64)
    input_ids[places] = special.cls
    input_ids[ranges(places + 1, lengths)] = stream[ranges(begins, lengths)]
    return Examples(input_ids=input_ids, lengths=totals, segment_b_start=totals)


def token_windows(shard: TokenShard, special: SpecialIds, *, max_tokens: int) -> Examples:
    """`clm` examples: windows of `max_tokens` over the documents, each begun and ended."""
    ends_document = np.zeros(shard.sentence_starts.size - 1, dtype=np.int64)
    begins_document = ends_document.copy()
    ends_document[shard.document_starts[1:] - 1] = 1
    begins_document[shard.document_starts[:-1]] = 1
    stream, _ = _with_special_ids(shard, ends_document, begins_document, special)
    edges = np.append(np.arange(0, stream.size, max_tokens), stream.size)
    lengths = np.diff(edges)
    if lengths.size > 1 and lengths[-1] == 1:  # one token predicts nothing
        stream, lengths = stream[:-1], lengths[:-1]
    return Examples(input_ids=stream, lengths=lengths, segment_b_start=lengths)


def _with_special_ids(
    shard: TokenShard,
    ends_document: NDArray[np.int64],
    begins_document: NDArray[np.int64] | None,
    special: SpecialIds,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All tokens with [SEP] after (and [CLS] before) each document, and the sentences' starts."""
    before = np.zeros_like(ends_document) if begins_document is None else begins_document
    lengths = np.diff(shard.sentence_starts)
    starts = np.concatenate([[0], np.cumsum(before + lengths + ends_document)])
    stream = np.full(int(starts[-1]), special.sep, dtype=np.int64)
    stream[starts[:-1][before == 1]] = special.cls
    stream[ranges(starts[:-1] + before, lengths)] = shard.ids[: shard.sentence_starts[-1]]
    return stream, starts


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTable:
    """Where sentences and documents begin among the tokens of a shard.

    `starts[i]` is the first token of sentence i and `starts[-1]` the number of tokens;
    `documents[d]` is the first sentence of document d and `documents[-1]` the number of sentences;
    `groups[d]` is shared by the pieces of one document.
    """

    starts: list[int]
    documents: list[int]
    groups: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Token ranges of the examples: A in the shard itself, B in `pool[b_shard]`."""

    a_begin: NDArray[np.int64]
    a_length: NDArray[np.int64]
    b_shard: NDArray[np.int64]
    b_begin: NDArray[np.int64]
    b_length: NDArray[np.int64]
    is_random: NDArray[np.bool_]


class PairPlanner:
    """Plans the examples of a shard; `pool[0]` is the shard, random segments come from all.

    `max_tokens` is the room for both segments, without special tokens; no sentence may be longer.
    """

    def __init__(
        self, pool: Sequence[SentenceTable], *, max_tokens: int, short_fraction: float, seed: int
    ) -> None:
        self._pool = pool
        self._max_tokens = max_tokens
        self._short_fraction = short_fraction
        self._random = random.Random(seed)
        self._candidates = [
            (shard, document, group)
            for shard, table in enumerate(pool)
            for document, group in enumerate(table.groups)
        ]
        self._unbalanced = 0  # examples that had to be random and await a true one in return
        self._opposite: bool | None = None  # of the last coin, for the next example

    def plan(self) -> Pairs:
        """All examples of the shard, in the order of its documents."""
        rows: list[tuple[int, int, int, int, int, bool]] = []
        for document in range(len(self._pool[0].groups)):
            self._plan_document(document, rows)
        columns = np.array(rows, dtype=np.int64).reshape(-1, 6).T
        a_begin, a_length, b_shard, b_begin, b_length, is_random = columns
        return Pairs(a_begin, a_length, b_shard, b_begin, b_length, is_random.astype(np.bool_))

    def _plan_document(
        self, document: int, rows: list[tuple[int, int, int, int, int, bool]]
    ) -> None:
        table = self._pool[0]
        starts, group = table.starts, table.groups[document]
        first, end = table.documents[document], table.documents[document + 1]
        while first < end:
            target = self._target()
            middle, after = self._chunk(first, end, target)
            a_begin, a_length = starts[first], starts[middle] - starts[first]
            a_spare, a_limits = _spare(starts, first, middle)
            is_random = self._decide(has_choice=after > middle)
            if is_random:
                shard, b_begin, b_length = self._random_segment(group, target - a_length)
                b_spare, b_limits = b_length - 1, (b_length, b_length)
            else:
                shard, b_begin, b_length = 0, starts[middle], starts[after] - starts[middle]
                b_spare, b_limits = _spare(starts, middle, after)
            a_cut, b_cut = cuts(a_length, b_length, self._max_tokens, a_spare, b_spare)
            a_begin += self._front_share(a_cut, a_limits)
            b_begin += self._front_share(b_cut, b_limits)
            rows.append((a_begin, a_length - a_cut, shard, b_begin, b_length - b_cut, is_random))
            first = middle if is_random else after  # what a random segment replaced is put back

    def _target(self) -> int:
        """Tokens to fill: all there is room for, now and then fewer."""
        if self._random.random() < self._short_fraction:
            return 2 + self._below(self._max_tokens - 1)
        return self._max_tokens

    def _chunk(self, first: int, end: int, target: int) -> tuple[int, int]:
        """Sentences [first, middle) for A, [middle, after) for B; B is empty if one is all."""
        starts = self._pool[0].starts
        # The fewest sentences that reach the target, or what is left of the document.
        after = min(bisect_left(starts, starts[first] + target, first + 1), end)
        if after - first == 1:
            return after, after
        middle = first + 1 + self._below(after - first - 1)
        excess = starts[after] - starts[first] - self._max_tokens
        if excess > _spare(starts, first, middle)[0] + _spare(starts, middle, after)[0]:
            after -= 1  # else a sentence would vanish: the last one begins the next chunk
            middle = max(first + 1, min(middle, after - 1))
        return middle, after

    def _decide(self, *, has_choice: bool) -> bool:
        """Whether B is random: a coin decides for two examples, one of each kind.

        Examples without choice are made up for by true ones.
        """
        if not has_choice:
            self._unbalanced += 1
            return True
        if self._unbalanced:
            self._unbalanced -= 1
            return False
        if self._opposite is None:
            is_random = self._random.random() < 0.5
            self._opposite = not is_random
            return is_random
        is_random, self._opposite = self._opposite, None
        return is_random

    def _random_segment(self, group: int, target: int) -> tuple[int, int, int]:
        """Shard, first token and length of successive sentences of another document."""
        index = self._below(len(self._candidates))
        for _ in range(_MAX_TRIES):
            if self._candidates[index][2] != group:
                break
            index = self._below(len(self._candidates))
        else:  # one document makes up most of the pool
            while self._candidates[index][2] == group:
                index = (index + 1) % len(self._candidates)
        shard, document, _ = self._candidates[index]
        table = self._pool[shard]
        begin, end = table.documents[document], table.documents[document + 1]
        first = begin + self._below(end - begin)
        reach = table.starts[first] + max(target, 1)
        after = min(bisect_left(table.starts, reach, first + 1), end)
        return shard, table.starts[first], table.starts[after] - table.starts[first]

    def _front_share(self, cut: int, limits: tuple[int, int]) -> int:
        """How many of `cut` tokens go from the front, each at even odds, within the limits."""
        if not cut:
            return 0
        front = self._random.getrandbits(cut).bit_count()
        return min(max(front, cut - limits[1]), limits[0])

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)


def cuts(
    a_length: int, b_length: int, max_tokens: int, a_spare: int, b_spare: int
) -> tuple[int, int]:
    """Tokens that A and B lose so that both fit: the longer one first, then both in turn.

    Neither loses more than it can spare, if that is possible.
    """
    excess = a_length + b_length - max_tokens
    if excess <= 0:
        return 0, 0
    from_longer = min(excess, abs(a_length - b_length))
    rest = excess - from_longer
    a_cut = rest // 2 + (from_longer if a_length > b_length else 0)
    a_cut = min(max(a_cut, excess - b_spare), a_spare)
    return a_cut, excess - a_cut


def _spare(starts: list[int], first: int, after: int) -> tuple[int, tuple[int, int]]:
    """What a segment can lose without losing a sentence: in all, and at its front and back."""
    front = starts[first + 1] - starts[first] - 1
    back = starts[after] - starts[after - 1] - 1
    return (front if after - first == 1 else front + back), (front, back)
