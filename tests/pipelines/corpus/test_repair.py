"""Trouble with encodings is mended and counted."""

from collections import Counter

import pytest

from pipelines.config.errors import UserError
from pipelines.io.text import check_is_text, decode
from pipelines.stages.corpus.cleaning import mend


def clean(data: bytes) -> tuple[str, Counter[str]]:
    counts: Counter[str] = Counter()
    return mend(decode(data, counts), counts), +counts


def test_clean_text_passes_untouched():
    text = "One line.\nÜber die Straße. 東京。"
    assert clean(text.encode()) == (text, Counter())


def test_a_byte_order_mark_is_removed():
    assert clean(b"\xef\xbb\xbfword") == ("word", Counter({"byte order marks": 1}))


@pytest.mark.parametrize("data", [b"a\r\nb", b"a\rb"])
def test_carriage_returns_become_line_feeds(data):
    assert clean(data) == ("a\nb", Counter({"line breaks with \\r": 1}))


def test_bytes_that_are_not_utf8_are_read_as_windows_1252():
    text, counts = clean("naïve".encode() + b" caf\xe9 \x93quoted\x94")
    assert text == "naïve café “quoted”"
    assert counts == Counter({"bytes that were not UTF-8": 3})


def test_control_characters_are_removed_and_counted():
    assert clean(b"a\x00b\x07c\x7fd\xc2\x9fe") == ("abcde", Counter({"control characters": 4}))


def test_text_is_composed():
    text, counts = clean("e\u0301te\u0301".encode())
    assert text == "été"
    assert counts == Counter({"texts not in NFC": 1})


def test_white_space_inside_a_line_becomes_one_blank():
    assert clean("a \t b\u00a0\u3000c \n d".encode())[0] == "a b c\nd"


def test_other_line_separators_break_lines():
    assert clean("a\u2028b\u2029c\u0085d".encode())[0] == "a\nb\nc\nd"


def test_unicode_text_of_many_scripts_is_not_taken_for_binary():
    check_is_text("Ünïcödé 東京 हिन्दी עברית".encode() * 100, "file.txt")


def test_a_binary_file_is_refused_by_name():
    with pytest.raises(UserError, match=r"photo\.txt is not text"):
        check_is_text(bytes(range(256)) * 10, "photo.txt")


def test_utf16_is_refused_with_what_to_do():
    with pytest.raises(UserError, match="is UTF-16; convert it"):
        check_is_text("text".encode("utf-16"), "old.txt")


def test_half_a_surrogate_pair_becomes_a_question_mark():
    assert mend("a\ud800b", Counter()) == "a?b"
