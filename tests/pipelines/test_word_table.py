"""The table numbers words as a dictionary would."""

import numpy as np
import pytest

from pipelines.stages.vocabulary import word_table
from pipelines.stages.vocabulary.word_table import WordTable


@pytest.mark.parametrize("num_words", [3, 1000, 100_000])
def test_words_are_numbered_in_the_order_of_their_first_appearance(num_words, monkeypatch):
    monkeypatch.setattr(word_table, "_FIRST_SLOTS", 16)
    rng = np.random.default_rng(0)
    table = WordTable()
    expected: dict[tuple[int, int], int] = {}
    for _ in range(3):
        keys = rng.integers(0, 50, (num_words, 2)).astype(np.uint64)
        keys[:, 0] += rng.integers(0, max(1, num_words // 100), num_words).astype(np.uint64)
        before = len(expected)
        numbers, new_keys = table.number(keys)
        for row in keys.tolist():
            expected.setdefault(tuple(row), len(expected))
        assert numbers.tolist() == [expected[tuple(row)] for row in keys.tolist()]
        assert [tuple(row) for row in new_keys.tolist()] == list(expected)[before:]
        assert len(table) == len(expected)


def test_words_whose_hashes_meet_are_told_apart(monkeypatch):
    monkeypatch.setattr(word_table, "_hash", lambda keys: np.zeros(len(keys), dtype=np.uint64))
    table = WordTable()
    keys = np.array([[1, 0], [2, 0], [1, 0], [0, 1], [2, 0]], dtype=np.uint64)
    assert table.number(keys)[0].tolist() == [0, 1, 0, 2, 1]
    assert table.number(keys[::-1])[0].tolist() == [1, 2, 0, 1, 0]
