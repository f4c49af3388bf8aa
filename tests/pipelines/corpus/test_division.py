"""Held-out documents are drawn by content, duplicates found across files."""

import numpy as np
import pytest

from bert_core.randomness import random_bits
from pipelines.errors import UserError
from pipelines.stages.corpus.selection import (
    KEY_TYPE,
    copies,
    find_repeated,
    heldout_draws,
    heldout_threshold,
)


def groups(count: int) -> np.ndarray:
    return random_bits(7, "groups", np.arange(count))


def test_about_the_wanted_share_is_held_out():
    threshold = heldout_threshold([groups(20_000)], 0.05, seed=0)
    share = (heldout_draws(groups(20_000), 0) <= threshold).mean()
    assert abs(share - 0.05) < 5 * np.sqrt(0.05 * 0.95 / 20_000)


def test_other_documents_do_not_move_a_document_to_the_other_side():
    few, many = groups(1000), groups(2000)
    first = heldout_draws(few, 0) <= heldout_threshold([few], 0.05, 0)
    second = heldout_draws(many, 0) <= heldout_threshold([many], 0.05, 0)
    assert np.array_equal(first, second[:1000])


@pytest.mark.parametrize("count", [4, 5, 20])
@pytest.mark.parametrize("fraction", [1e-9, 0.5, 0.999999])
def test_at_least_two_are_held_out_and_two_are_left_to_learn_from(count, fraction):
    for seed in range(20):
        threshold = heldout_threshold([groups(count)], fraction, seed)
        assert 2 <= (heldout_draws(groups(count), seed) <= threshold).sum() <= count - 2


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_corpus_that_cannot_be_divided_is_refused(count):
    with pytest.raises(UserError, match=f"at least 4 documents.*has {count or 'none'}; "):
        heldout_threshold([np.repeat(groups(count), 3)], 0.05, seed=0)


def test_weights_repeat_and_thin_out_documents():
    assert copies(groups(100), 1.0, 0).tolist() == [1] * 100
    assert abs(copies(groups(10_000), 2.5, 0).mean() - 2.5) < 0.03
    assert set(copies(groups(10_000), 2.5, 0)) == {2, 3}
    assert abs(copies(groups(10_000), 0.25, 0).mean() - 0.25) < 0.03


@pytest.mark.parametrize("at_once", [10**6, 37])
def test_duplicates_are_found_across_files_and_the_first_one_stays(monkeypatch, at_once):
    monkeypatch.setattr("pipelines.stages.corpus.selection._KEYS_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    contents = rng.integers(0, 60, 200)
    keys = np.zeros(200, dtype=KEY_TYPE)
    keys["high"], keys["low"] = contents // 7, random_bits(0, "low", contents)
    files = np.split(keys, [50, 50, 120])
    found = find_repeated(files.__getitem__, [len(each) for each in files])
    seen: set[int] = set()
    expected = [content in seen or seen.add(content) is not None for content in contents.tolist()]
    assert np.concatenate(found).tolist() == expected
