"""Examples of each objective, put together from token shards."""

import numpy as np

from pipelines.stages.examples.objectives import (
    SpecialIds,
    full_sentences,
    sentence_pairs,
    token_windows,
)
from pipelines.stages.examples.shards import TokenShard

CLS, SEP = 2, 3
SPECIAL = SpecialIds(cls=CLS, sep=SEP)


def shard(documents: list[list[int]], first_group: int = 0) -> TokenShard:
    """Documents given by their sentences' lengths; every token has an id of its own."""
    lengths = [length for document in documents for length in document]
    return TokenShard(
        ids=np.arange(10, 10 + sum(lengths)).astype(np.uint16),
        sentence_starts=np.concatenate([[0], np.cumsum(lengths)]),
        document_starts=np.concatenate([[0], np.cumsum([len(each) for each in documents])]),
        groups=np.arange(first_group, first_group + len(documents)).astype(np.uint64),
    )


def rows(examples) -> list[list[int]]:
    return [row.tolist() for row in np.split(examples.input_ids, np.cumsum(examples.lengths)[:-1])]


def test_long_sentences_are_cut_evenly_and_documents_keep_their_tokens():
    cut = shard([[5, 23], [7]]).with_sentences_up_to(10)
    assert np.diff(cut.sentence_starts).tolist() == [5, 7, 8, 8, 7]
    assert cut.document_starts.tolist() == [0, 4, 5]


def test_pairs_are_cls_a_sep_b_sep():
    pool = [shard([[4, 5, 6, 3, 8], [5, 9]]), shard([[6, 6]], first_group=10)]
    made = sentence_pairs(pool, SPECIAL, max_tokens=24, short_fraction=0.1, seed=0)
    assert made.is_random_next is not None
    for row, b_start in zip(rows(made), made.segment_b_start, strict=True):
        assert row[0] == CLS
        assert [index for index, token in enumerate(row) if token == SEP] == [
            b_start - 1, len(row) - 1,
        ]  # fmt: skip
        assert len(row) <= 24
        # Ids are places, so segments are runs of successive numbers.
        for segment in (row[1 : b_start - 1], row[b_start:-1]):
            assert segment == list(range(segment[0], segment[0] + len(segment)))


def test_full_sentences_pack_across_documents_and_lose_nothing():
    source = shard([[4, 5, 6], [3], [30, 2, 2]])
    made = full_sentences(source, SPECIAL, max_tokens=16)
    assert made.is_random_next is None
    assert made.lengths.max() <= 16
    text = [token for row in rows(made) for token in row if token > 3]
    assert text == source.ids.tolist()
    for row in rows(made):
        assert row[0] == CLS
        assert row[-1] == SEP
        assert CLS not in row[1:]
        assert row[-2] != SEP
    assert rows(made)[0] == [CLS, *range(10, 19), SEP]  # the third sentence does not fit
    assert SEP in rows(made)[1][:-1]  # two documents share an example
    assert np.array_equal(made.segment_b_start, made.lengths)


def test_windows_begin_and_end_every_document():
    made = token_windows(shard([[4, 5], [3]]), SPECIAL, max_tokens=8)
    stream = [CLS, *range(10, 19), SEP, CLS, 19, 20, 21, SEP]
    assert rows(made) == [stream[:8], stream[8:]]
