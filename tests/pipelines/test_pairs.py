"""Sentence pairs keep the published promises, and the known faults stay out."""

import numpy as np
import pytest

from pipelines.stages.examples.objectives import PairPlanner, Pairs, SentenceTable, cuts

ROOM = 61


def table(sentence_counts: list[int], first_group: int, seed: int) -> SentenceTable:
    """A shard whose documents have these numbers of sentences, of random lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(1 / 12, sum(sentence_counts)), ROOM)
    return SentenceTable(
        starts=[0, *np.cumsum(lengths).tolist()],
        documents=[0, *np.cumsum(sentence_counts).tolist()],
        groups=list(range(first_group, first_group + len(sentence_counts))),
    )


def plan(pool: list[SentenceTable], seed: int = 0, short_fraction: float = 0.1) -> Pairs:
    return PairPlanner(pool, max_tokens=ROOM, short_fraction=short_fraction, seed=seed).plan()


@pytest.fixture(scope="module")
def pool() -> list[SentenceTable]:
    rng = np.random.default_rng(0)
    counts = [1, 2, 1, 40, 3, *rng.integers(1, 80, 100).tolist()]
    return [table(counts, 0, seed=1), table([5, 9, 1], 1000, seed=2)]


@pytest.fixture(scope="module")
def pairs(pool) -> Pairs:
    return plan(pool)


def groups_of_tokens(shard: SentenceTable) -> np.ndarray:
    sizes = np.diff(np.array(shard.starts)[np.array(shard.documents)])
    return np.repeat(shard.groups, sizes)


def test_the_random_segment_never_comes_from_the_same_document(pool, pairs):
    groups = [groups_of_tokens(shard) for shard in pool]
    assert pairs.is_random.any()
    for a, shard, b in zip(
        pairs.a_begin[pairs.is_random],
        pairs.b_shard[pairs.is_random],
        pairs.b_begin[pairs.is_random],
        strict=True,
    ):
        assert groups[0][a] != groups[shard][b]


def test_pieces_of_one_document_do_not_pass_for_two():
    first = table([30, 30], 0, seed=1)
    pieces = SentenceTable(starts=first.starts, documents=first.documents, groups=[7, 7])
    other = table([4], 8, seed=3)
    planned = plan([pieces, other])
    assert set(planned.b_shard[planned.is_random]) == {1}


def test_the_true_segment_follows_in_the_same_document(pool, pairs):
    groups = groups_of_tokens(pool[0])
    true = ~pairs.is_random
    a_end = pairs.a_begin + pairs.a_length
    assert (pairs.b_begin[true] >= a_end[true]).all()
    assert (groups[pairs.a_begin[true]] == groups[pairs.b_begin[true]]).all()
    # Only truncation stands between A and B: less than a sentence of each.
    assert (pairs.b_begin[true] - a_end[true]).max() < 2 * ROOM


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_enters_an_example_in_every_pass(pool, seed):
    planned = plan(pool, seed=seed, short_fraction=0.3)
    shard = pool[0]
    covered = np.zeros(shard.starts[-1], dtype=bool)
    own_b = ~planned.is_random
    for begins, lengths in (
        (planned.a_begin, planned.a_length),
        (planned.b_begin[own_b], planned.b_length[own_b]),
    ):
        for begin, length in zip(begins, lengths, strict=True):
            assert not covered[begin : begin + length].any(), "a token was used twice"
            covered[begin : begin + length] = True
    per_sentence = np.add.reduceat(covered.astype(int), shard.starts[:-1])
    assert per_sentence.min() >= 1


@pytest.mark.parametrize("counts", [[60] * 200, [1] * 300 + [60] * 100])
def test_the_two_kinds_balance_even_with_documents_of_one_sentence(counts):
    planned = plan([table(counts, 0, seed=4)])
    assert abs(planned.is_random.mean() - 0.5) < 0.01


def test_most_pairs_fill_their_room_and_the_wanted_share_is_short():
    planned = plan([table([2000] * 10, 0, seed=6)], short_fraction=0.1)
    lengths = planned.a_length + planned.b_length
    assert 0.86 < (lengths >= ROOM - 12).mean() < 0.97
    assert lengths.min() < 20


def test_truncation_takes_from_either_end_at_even_odds():
    starts = list(range(0, 40 * 3001, 40))
    shard = SentenceTable(starts=starts, documents=[0, 3000], groups=[0])
    other = SentenceTable(starts=starts, documents=[0, 3000], groups=[1])
    planned = plan([shard, other], short_fraction=0.0)
    random_a = planned.is_random
    front = (planned.a_begin % 40)[random_a].sum()
    lost = (40 - planned.a_length[random_a]).sum()
    assert lost > 1000
    assert abs(front / lost - 0.5) < 5 * 0.5 / np.sqrt(lost)


def test_equal_seeds_give_equal_pairs_and_others_fresh_ones(pool, pairs):
    again, other = plan(pool), plan(pool, seed=1)
    assert np.array_equal(pairs.b_begin, again.b_begin)
    assert not np.array_equal(pairs.b_begin[:50], other.b_begin[:50])


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(20, 30, (0, 0)), (80, 10, (29, 0)), (10, 80, (0, 29)), (40, 40, (9, 10)), (50, 40, (19, 10))],
)
def test_the_longer_segment_is_cut_first_then_both_in_turn(a, b, expected):
    assert cuts(a, b, ROOM, a - 1, b - 1) == expected
