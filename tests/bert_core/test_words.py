"""The words of a text: what marks at their ends, blanks and ideographs are separated from."""

import sys
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_core.inference.words import places_of_words

MARKS = "([{<)]}>\"'`“‘„”’«‹»›¿¡.,;:!?…，。（）、「」：・।॥،؟؛٪״—–-%#@_&*/\\၊።\U0001e95e"
ALONE = "語北\U00020001\U0002f800，。（）、「」："
OTHERS = "aЖखि्ไยกتَー2\u200d\u0301\ufe0f😀\U0001f468"
BLANKS = " \n\u00a0\u3000"


def words_of(text: str) -> list[str]:
    return [text[begin:end] for begin, end in places_of_words(text)]


def expected_words(text: str) -> list[str]:
    """The same, step by step."""
    spaced = "".join(f" {letter} " if letter in ALONE else letter for letter in text)
    words: list[str] = []
    for run in spaced.split():
        behind = run.lstrip(MARKS)
        word = behind.rstrip(MARKS)
        words += run[: len(run) - len(behind)]
        words += [word] if word else []
        words += behind[len(word) :]
    return words


@settings(max_examples=500, deadline=None)
@given(st.text(st.sampled_from(MARKS + ALONE + OTHERS + BLANKS), max_size=24))
@example("«Don't!» he said…")
@example("북語北a.b.語.")
def test_words_are_what_is_left_when_marks_and_ideographs_are_taken_off(text: str) -> None:
    assert words_of(text) == expected_words(text)


def test_all_punctuation_of_unicode_is_separated_at_the_ends_of_a_word_and_stays_within() -> None:
    for mark in filter(
        lambda letter: unicodedata.category(letter).startswith("P"),
        map(chr, range(sys.maxunicode + 1)),
    ):
        *ends, within = words_of(f"{mark}ab{mark} a{mark}b")[:4]
        assert ends == [mark, "ab", mark]
        is_wide = unicodedata.east_asian_width(mark) in "WFH"
        assert within == f"a{mark}b" or (within == "a" and is_wide)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("في باريس، زار", ["في", "باريس", "،", "زار"]),
        ("（Beijing）。", ["（", "Beijing", "）", "。"]),
        ("，Paris，", ["，", "Paris", "，"]),
        ("वह दिल्ली। गया॥", ["वह", "दिल्ली", "।", "गया", "॥"]),
        ("「東京」・タワー、", ["「", "東", "京", "」", "・", "タワー", "、"]),
        (
            "ホンダ、トヨタ（カー・オブ・ザ）",
            ["ホンダ", "、", "トヨタ", "（", "カー・オブ・ザ", "）"],
        ),
        ("Beijing，Paris：ab", ["Beijing", "，", "Paris", "：", "ab"]),
        ("ใน “กรุงเทพฯ” ๏", ["ใน", "“", "กรุงเทพฯ", "”", "๏"]),
        ("Анна — из-за №5…", ["Анна", "—", "из-за", "№5", "…"]),
        ("10% of $5+ isn't #1", ["10", "%", "of", "$5+", "isn't", "#", "1"]),
    ],
)
def test_words_of_other_scripts_hold_no_marks(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize("text", ["a" + "." * 20_000 + "b", "." * 20_000, "a." * 10_000])
def test_the_time_for_a_long_word_is_linear(text: str) -> None:
    started = time.thread_time()  # other threads of this process have no part in it
    assert "".join(words_of(text)) == text
    assert time.thread_time() - started < 2  # that of the square was 25 seconds
