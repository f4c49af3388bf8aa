"""Draws depend on what they are for and on nothing else."""

import numpy as np
import pytest

from bert_core.randomness import Permutation, fold_in, integers, random_bits, uniform


def test_a_draw_does_not_depend_on_what_is_drawn_with_it():
    together = random_bits(3, "masking", 7, np.arange(1000))
    alone = [int(random_bits(3, "masking", 7, index)) for index in range(1000)]
    assert together.tolist() == alone


def test_draws_are_frozen_for_ever():
    assert int(random_bits(0, "masking", 0, 0)) == 0xF978EA9B7F1105F5
    order = Permutation(10, 0, "example order", 0)[np.arange(10)].tolist()
    assert order == [6, 7, 1, 0, 8, 5, 3, 4, 2, 9]


def test_seeds_purposes_and_indices_all_matter():
    draws = {
        int(random_bits(seed, purpose, first, second))
        for seed in range(5)
        for purpose in ("masking", "pairs")
        for first in range(5)
        for second in range(-2, 3)
    }
    assert len(draws) == 5 * 2 * 5 * 5


def test_child_streams_are_the_same_as_longer_index_tuples():
    assert fold_in(random_bits(0, "x", 1), 2) == random_bits(0, "x", 1, 2)


def test_uniform_draws_fill_the_unit_interval_evenly():
    draws = uniform(random_bits(1, "uniform", np.arange(200_000)))
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    # 20 bins of 10,000: standard deviation 97.
    assert np.abs(counts - 10_000).max() < 5 * 97


def test_integers_stay_below_their_bound_and_reach_every_value():
    bits = random_bits(1, "integers", np.arange(100_000))
    counts = np.bincount(integers(bits, 7), minlength=7)
    assert counts.size == 7
    assert np.abs(counts - 100_000 / 7).max() < 5 * np.sqrt(100_000 / 7)
    assert integers(bits[:3], np.array([1, 1, 1])).tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 255, 256, 257, 10_007])
def test_a_permutation_visits_every_member_once(size):
    visited = Permutation(size, 0, "order", 3)[np.arange(size)]
    assert np.array_equal(np.sort(visited), np.arange(size))


def test_a_permutation_can_be_asked_anywhere():
    permutation = Permutation(10**12, 0, "order", 0)
    positions = np.array([0, 5, 10**12 - 1])
    together = permutation[positions]
    assert [int(permutation[position]) for position in positions] == together.tolist()
    assert together.max() < 10**12


def test_permutations_of_two_epochs_share_about_one_fixed_place():
    first, second = (Permutation(10_000, 0, "order", epoch)[np.arange(10_000)] for epoch in (0, 1))
    assert (first == second).sum() < 10
    assert abs(np.corrcoef(first, np.arange(10_000))[0, 1]) < 0.05


@pytest.mark.parametrize("position", [-1, 10])
def test_a_position_outside_is_refused(position):
    with pytest.raises(IndexError, match=r"positions must lie in \[0, 10\)"):
        Permutation(10, 0, "order")[position]
