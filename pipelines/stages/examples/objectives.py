"""What an example is, for each objective: token shards in, ragged examples out.

`mlm_nsp` is BERT's (Devlin et al., 2019): [CLS] A [SEP] B [SEP]. `mlm` packs full sentences across
documents (Liu et al., 2019, "full-sentences"): [CLS] text [SEP], documents parted by [SEP]. `clm`
cuts the stream [CLS] document [SEP] [CLS] ... into windows for a left-to-right model.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipelines.stages.examples.pairs import PairPlanner, SentenceTable
from pipelines.stages.examples.token_shards import TokenShard, ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """The special tokens that examples are put together with."""

    cls: int
    sep: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """Examples one after the other: B examples of T tokens in all."""

    input_ids: NDArray[np.int64]  # [T]
    lengths: NDArray[np.int64]  # [B]
    segment_b_start: NDArray[np.int64]  # [B] the length where there is one segment
    is_random_next: NDArray[np.bool_] | None = None  # [B]
    figures: dict[str, int] = field(default_factory=dict)


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
        figures={
            "truncated_tokens": pairs.num_truncated_tokens,
            "examples_without_choice": pairs.num_without_choice,
            "random_next": int(pairs.is_random.sum()),
        },
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
