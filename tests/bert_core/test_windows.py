"""Windows over long texts: every word is spoken for once, every short span is whole somewhere."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bert_core.inference.texts import question_windows, word_windows


class Ids:
    cls_id, sep_id = 101, 102


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 9), max_size=40), st.integers(3, 20))
@example([2, 2, 4], 6)  # the second window ends where the first does
def test_every_word_is_spoken_for_once_at_its_first_token(sizes, max_tokens):
    tokens = [[1000 * word + place for place in range(size)] for word, size in enumerate(sizes)]
    windows = word_windows(Ids(), tokens, max_tokens)
    assert sorted(word for window in windows for word in window.words) == list(range(len(sizes)))
    for window in windows:
        assert window.words
        assert len(window.sequence) <= max_tokens
        assert (window.sequence[0], window.sequence[-1]) == (101, 102)
        firsts = [window.sequence[place] for place in window.places]
        assert firsts == [1000 * word for word in window.words]


def test_a_word_is_spoken_for_where_most_around_it_is_seen():
    windows = word_windows(Ids(), [[word] for word in range(12)], max_tokens=8)
    assert [window.sequence[1:-1] for window in windows] == [
        [0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [6, 7, 8, 9, 10, 11],
    ]  # fmt: skip
    # Nothing stands before the first word or after the last one, so their windows see all there is.
    assert [window.words for window in windows] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]]


def test_a_text_that_fits_is_one_window_and_no_text_is_none():
    (window,) = word_windows(Ids(), [[1, 2], [3]], max_tokens=5)
    assert window == ([101, 1, 2, 3, 102], [0, 1], [1, 3])
    assert word_windows(Ids(), [], max_tokens=5) == []
    with pytest.raises(ValueError, match="must allow for a token"):
        word_windows(Ids(), [[1]], max_tokens=2)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 200), st.integers(12, 40))
def test_every_span_of_half_a_window_is_whole_in_one(num_tokens, max_tokens):
    encoded, windows = question_windows(Ids(), [7, 7, 7], list(range(num_tokens)), max_tokens)
    assert all(len(sequence) <= max_tokens for sequence in encoded.sequences)
    size = (max_tokens - 6) // 2
    for first in range(max(1, num_tokens - size)):
        assert any(
            window.first_token <= first
            and first + min(size, num_tokens) <= window.first_token + window.num_tokens
            for window in windows
        )
