"""The word cache gives the tokenizer's own ids."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_core.vocabulary import SPECIAL_PIECES, Normalization, WordPieceTokenizer
from pipelines import encoding
from pipelines.corpus.repair import mend
from pipelines.corpus.sentences import split_sentences
from pipelines.encoding import SentenceEncoder

DATA = Path(__file__).parents[3] / "shared" / "data"
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"-()[]$€éüß中文字हिन्दी"
PIECES = [*SPECIAL_PIECES, *sorted(set(LETTERS)), *(f"##{each}" for each in sorted(set(LETTERS)))]


def encoded_one_by_one(tokenizer: WordPieceTokenizer, sentences: list[str]):
    ids = [tokenizer.encode(sentence) for sentence in sentences]
    return [piece for each in ids for piece in each], [len(each) for each in ids]


@pytest.mark.parametrize("lowercase", [True, False])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ids_equal_the_tokenizers_on_any_clean_text(lowercase, data):
    from collections import Counter

    tokenizer = WordPieceTokenizer(PIECES, Normalization(lowercase=lowercase))
    raw = data.draw(st.lists(st.text(), max_size=5))
    sentences = [line for text in raw for line in mend(text, Counter()).split("\n") if line]
    ids, lengths = SentenceEncoder(tokenizer).encode(sentences)
    assert (ids.tolist(), lengths.tolist()) == encoded_one_by_one(tokenizer, sentences)


@pytest.mark.parametrize(("name", "lowercase"), [("uncased_en", True), ("zh", True)])
def test_ids_equal_the_tokenizers_on_real_text_of_13_languages(name, lowercase):
    vocabulary = DATA / "vocab" / f"google_{name}_vocab.txt"
    if not vocabulary.is_file():
        pytest.skip(f"{vocabulary} is not there; it holds Google's published vocabulary")
    pieces = vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    tokenizer = WordPieceTokenizer(pieces, Normalization(lowercase=lowercase))
    encoder = SentenceEncoder(tokenizer)
    for path in sorted((DATA / "corpus" / "multilingual").glob("*.txt")):
        from collections import Counter

        sentences = split_sentences(mend(path.read_text(encoding="utf-8"), Counter()))
        ids, lengths = encoder.encode(sentences)
        expected = tokenizer.encode_batch(sentences)
        assert lengths.tolist() == [len(each) for each in expected], path.name
        assert ids.tolist() == [piece for each in expected for piece in each], path.name


def test_no_sentences_give_no_ids():
    ids, lengths = SentenceEncoder(WordPieceTokenizer(PIECES)).encode([])
    assert ids.size == lengths.size == 0


def test_a_full_memory_begins_anew_with_the_same_ids(monkeypatch):
    monkeypatch.setattr(encoding, "_MAX_WORDS", 3)
    encoder = SentenceEncoder(WordPieceTokenizer(PIECES))
    sentences = ["one two three four", "five six", "one two"]
    first = encoder.encode(sentences)
    second = encoder.encode(sentences)
    assert np.array_equal(first[0], second[0])
    assert np.array_equal(first[1], second[1])
