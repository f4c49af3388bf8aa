"""The word cache gives the tokenizer's own ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_core.vocabulary import SPECIAL_TOKENS, Normalization, WordPieceTokenizer
from pipelines.stages.corpus.cleaning import mend, split_sentences
from pipelines.stages.vocabulary import encoding
from pipelines.stages.vocabulary.encoding import SentenceEncoder

DATA = Path(__file__).parents[3] / "shared" / "data"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"-()[]$€éüß中文字हिन्दी"
TOKENS = [*SPECIAL_TOKENS, *sorted(set(LETTERS)), *(f"##{each}" for each in sorted(set(LETTERS)))]

TOKENIZERS = {
    lowercase: WordPieceTokenizer(TOKENS, Normalization(lowercase=lowercase))
    for lowercase in (True, False)
}


def encoded_one_by_one(tokenizer: WordPieceTokenizer, sentences: list[str]):
    ids = [tokenizer.encode(sentence) for sentence in sentences]
    return [index for each in ids for index in each], [len(each) for each in ids]


@pytest.mark.parametrize("lowercase", [True, False])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_ids_equal_the_tokenizers_on_any_clean_text(lowercase, data):
    tokenizer = TOKENIZERS[lowercase]
    raw = data.draw(st.lists(st.text(), max_size=5))
    sentences = [line for text in raw for line in mend(text).split("\n") if line]
    ids, lengths = SentenceEncoder(tokenizer).encode(pa.array(sentences, pa.string()))
    assert (ids.tolist(), lengths.tolist()) == encoded_one_by_one(tokenizer, sentences)


@pytest.mark.parametrize(("name", "lowercase"), [("uncased_en", True), ("zh", True)])
def test_ids_equal_the_tokenizers_on_real_text_of_13_languages(name, lowercase):
    vocabulary = DATA / "vocab" / f"google_{name}_vocab.txt"
    if not vocabulary.is_file():
        pytest.skip(f"{vocabulary} is not there; it holds Google's published vocabulary")
    tokens = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokenizer = WordPieceTokenizer(tokens, Normalization(lowercase=lowercase))
    encoder = SentenceEncoder(tokenizer)
    for path in sorted((DATA / "corpus" / "multilingual").glob("*.txt")):
        sentences = split_sentences(mend(path.read_text(encoding="utf-8")))
        ids, lengths = encoder.encode(pa.array(sentences))
        expected = tokenizer.encode_batch(sentences)
        assert lengths.tolist() == [len(each) for each in expected], path.name
        assert ids.tolist() == [index for each in expected for index in each], path.name


@pytest.mark.parametrize(
    "sentence",
    [
        "It's 3.5%, isn't it? (Yes!) [CLS] a_b-c...",
        "mixed café, naïve-ish “quoted” text—with dashes",
        "x" * 16 + " " + "y" * 17 + " " + "z" * 100 + " " + "w" * 101,
        "中文字 और हिन्दी mixed,with中文 punct.",
        "e\u0301 a\u0301,b !\u0301 c",
        "",
        "\u200b",
    ],
)
def test_words_end_where_the_tokenizer_ends_them(sentence):
    tokenizer = TOKENIZERS[True]
    sentences = ["before", sentence, "after"]
    ids, lengths = SentenceEncoder(tokenizer).encode(pa.array(sentences))
    assert (ids.tolist(), lengths.tolist()) == encoded_one_by_one(tokenizer, sentences)


def test_a_full_memory_begins_anew_with_the_same_ids(monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_WORDS", 3)
    encoder = SentenceEncoder(WordPieceTokenizer(TOKENS))
    sentences = ["one two three four", "five six", "one two"]
    first = encoder.encode(pa.array(sentences))
    second = encoder.encode(pa.array(sentences))
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
