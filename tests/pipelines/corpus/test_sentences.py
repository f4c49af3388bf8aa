"""Sentence boundaries in several scripts."""

import pytest

from pipelines.stages.corpus.cleaning import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. Smith left. He said so.", ["Dr. Smith left.", "He said so."]),
        ("It rose by 3.5 percent, e.g. in May. Then it fell.", 2),
        ('"Really?" he asked. "Yes."', 2),
        ("A line without a stop\nAnother line", ["A line without a stop", "Another line"]),
        ("这是第一句。这是第二句！", ["这是第一句。", "这是第二句！"]),
        ("“引用。”他说。", ["“引用。”", "他说。"]),
        ("「東京は。」日本です。", ["「東京は。」", "日本です。"]),
        ("〔東京は。〕日本です。", ["〔東京は。〕", "日本です。"]),
        ("वह घर गया।फिर सो गया। २।३ नहीं।", ["वह घर गया।", "फिर सो गया।", "२।३ नहीं।"]),
        ("他说：“什么？”她笑了。", ["他说：“什么？”", "她笑了。"]),
        ("Hän tuli. ”Hei”, hän sanoi.", ["Hän tuli.", "”Hei”, hän sanoi."]),
        ("Café.\n”Ny rad”, sa hon.", ["Café.", "”Ny rad”, sa hon."]),
        ("He said “Go!” and left. ’Tis true.", ["He said “Go!” and left.", "’Tis true."]),
        ("यह पहला वाक्य है। दूसरा वाक्य॥", ["यह पहला वाक्य है।", "दूसरा वाक्य॥"]),
        ("كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
        ("یہ پہلا جملہ ہے۔ دوسرا جملہ۔", ["یہ پہلا جملہ ہے۔", "دوسرا جملہ۔"]),
        ("उसने कहा “हाँ।” वह गया।", ["उसने कहा “हाँ।”", "वह गया।"]),
        ("", []),
        ("\n \n", []),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text, sentences):
    found = split_sentences(text)
    if isinstance(sentences, int):
        assert len(found) == sentences
    else:
        assert found == sentences


def test_nothing_but_white_space_is_lost():
    text = "First one. Second, e.g. this! Third?\nFourth — “quoted.” Fifth… 第六。第七"
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "").replace(
        "\n", ""
    )


@pytest.mark.parametrize("text", ["word " * 400_000, "x" * 2_000_000, "。" * 10_000])
def test_endless_sentences_break_nothing(text):
    assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")
