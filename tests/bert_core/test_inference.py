"""What the loaded model says of texts, against the plain computation one text at a time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bert_core.batch import RaggedBatch
from bert_core.inference.answers import answer, assign_labels, choose, classify, rate, tag
from bert_core.inference.pretrained import (
    attention_maps,
    complete,
    cosine_similarity,
    embed,
    fill_mask,
    next_sentence_probability,
)
from bert_core.inference.texts import text_windows
from bert_core.model.catalogue import build_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from tests.bert_core.batches import small_config

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TEXTS = ["a short one", "b", "one of a rather greater length than the others have", "middling one"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Of four texts in several batches."""
    monkeypatch.setattr("bert_core.inference.texts.BATCH_TOKENS", 20)


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(
        [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "one", "."]
    )


def new_model(head, **settings):
    causal = settings.pop("causal", False)
    torch.manual_seed(0)
    return build_model(
        head, small_config(causal=causal, vocab_size=59, initializer_range=0.2), **settings
    )


def alone(tokenizer, text):
    ids = [tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]
    return RaggedBatch.from_sequences([ids], [len(ids)])


def test_masks_are_filled_with_the_likeliest_tokens(tokenizer):
    model = new_model("pretraining")
    masks = fill_mask(model, tokenizer, "a [MASK] b [MASK]", top_k=3)
    ids = [tokenizer.token_to_id(p) for p in ("[CLS]", "a", "[MASK]", "b", "[MASK]", "[SEP]")]
    logits, _ = model(RaggedBatch.from_sequences([ids]), torch.tensor([2, 4]))
    probabilities = logits.softmax(-1)
    assert [len(candidates) for candidates in masks] == [3, 3]
    for candidates, row in zip(masks, probabilities, strict=True):
        assert candidates[0].token == tokenizer.id_to_token(int(row.argmax()))
        assert candidates[0].probability == pytest.approx(float(row.max().detach()), abs=1e-6)
        assert candidates[0].probability >= candidates[1].probability >= candidates[2].probability


def test_a_text_without_a_mask_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"no \[MASK\] in "):
        fill_mask(new_model("pretraining"), tokenizer, "nothing here")


def test_a_text_too_long_to_fill_is_refused(tokenizer):
    with pytest.raises(ValueError, match="at most 62 tokens, got 63"):
        fill_mask(new_model("pretraining"), tokenizer, "[MASK] " + "a " * 62)


def test_pairs_are_judged_by_both_models_that_can(tokenizer):
    pairs = [("a b", "c"), ("one", "one one"), ("x", "a rather great length")]
    for head in ("pretraining", "next_sentence"):
        model = new_model(head)
        probabilities = next_sentence_probability(model, tokenizer, pairs)
        for (first, second), probability in zip(pairs, probabilities, strict=True):
            ids = [tokenizer.cls_id, *tokenizer.encode(first), tokenizer.sep_id]
            start = len(ids)
            ids += [*tokenizer.encode(second), tokenizer.sep_id]
            tokens = RaggedBatch.from_sequences([ids], [start])
            logits = model(tokens, torch.tensor([0]))[1] if head == "pretraining" else model(tokens)
            assert probability == pytest.approx(logits.softmax(-1)[0, 0].item(), abs=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_embeddings_come_in_the_order_of_the_texts_whatever_the_batches(tokenizer, pooling):
    model = new_model("encoder")
    embedded = embed(model, tokenizer, TEXTS, pooling=pooling, normalize=False)
    assert embedded.num_truncated == 0
    for text, vector in zip(TEXTS, embedded.vectors, strict=True):
        tokens = alone(tokenizer, text)
        hidden = model(tokens)
        expected = hidden[0] if pooling == "cls" else hidden.mean(0)
        np.testing.assert_allclose(vector, expected.detach().numpy(), atol=1e-5)


def test_texts_that_are_too_long_lose_their_end_and_are_counted(tokenizer):
    model = new_model("encoder")
    long = "a " * 100
    embedded = embed(model, tokenizer, [long, "b", ("a " * 50, "b " * 50)])
    assert embedded.num_truncated == 2
    whole = embed(model, tokenizer, ["a " * 62])
    assert whole.num_truncated == 0
    np.testing.assert_allclose(embedded.vectors[0], whole.vectors[0], atol=1e-6)


def test_the_cosine_is_of_each_with_each():
    vectors = np.array([[1, 0], [0, 1], [2, 2]], dtype=np.float32)
    cosines = cosine_similarity(np.array([[5, 0]], dtype=np.float32), vectors)
    np.testing.assert_allclose(cosines, [[1, 0, 0.5**0.5]], atol=1e-6)


def test_classes_come_with_names_and_probabilities(tokenizer):
    model = new_model("sequence_classification", num_labels=3, labels=("x", "y", "z"))
    result = classify(model, tokenizer, TEXTS)
    for text, label, probabilities in zip(TEXTS, result.labels, result.probabilities, strict=True):
        expected = model(alone(tokenizer, text)).softmax(-1)[0]
        np.testing.assert_allclose(probabilities, expected.detach().numpy(), atol=1e-6)
        assert label == ("x", "y", "z")[int(expected.argmax())]


@pytest.mark.parametrize("head", ["sequence_classification", "multi_label_classification"])
def test_long_texts_are_answered_by_the_mean_of_their_windows(tokenizer, head, monkeypatch):
    model = new_model(head, num_labels=3, reads_windows=True)
    ask = classify if head == "sequence_classification" else assign_labels
    room = model.config.max_position_embeddings
    long = " ".join(["a", "b", "c", "d", "e"] * room)
    texts = ["one a", long, ("a b", long)]
    windows = text_windows(tokenizer, texts, room)
    assert windows.num_windows[[0, 2]].tolist() == [1, 1]
    assert windows.num_windows[1] > 2
    assert max(map(len, windows.encoded.sequences)) <= room
    tokens = tokenizer.encode_batch([long])[0]
    shown = [each[1:-1] for each, text in zip(windows.encoded.sequences, windows.texts, strict=True)
             if text == 1]  # fmt: skip
    assert shown[0] == tokens[: room - 2]
    assert shown[-1] == tokens[len(tokens) - len(shown[-1]) :]  # nothing is left out
    result = ask(model, tokenizer, texts)
    for index in range(len(texts)):
        rows = []
        for place in np.flatnonzero(windows.texts == index):
            sequence = windows.encoded.sequences[place]
            start = windows.encoded.segment_b_start[place]
            logits = model(RaggedBatch.from_sequences([sequence], [start]))[0]
            is_one = head == "sequence_classification"
            rows.append((logits.softmax(-1) if is_one else logits.sigmoid()).detach().numpy())
        np.testing.assert_allclose(result.probabilities[index], np.mean(rows, 0), atol=1e-6)
    assert result.num_truncated == 1  # the pair
    monkeypatch.setattr("bert_core.inference.texts.BATCH_TOKENS", room)
    again = ask(model, tokenizer, texts)
    np.testing.assert_allclose(again.probabilities, result.probabilities, atol=1e-6)
    model.reads_windows = False
    cut = ask(model, tokenizer, texts)
    assert cut.num_truncated == 2
    np.testing.assert_allclose(cut.probabilities[::2], result.probabilities[::2], atol=1e-6)
    assert not np.allclose(cut.probabilities[1], result.probabilities[1], atol=1e-4)


def test_numbers_are_those_of_the_model(tokenizer):
    model = new_model("regression")
    result = rate(model, tokenizer, TEXTS)
    for text, value in zip(TEXTS, result.values, strict=True):
        assert value == pytest.approx(model(alone(tokenizer, text)).item(), abs=1e-6)


def test_words_are_tagged_by_their_first_piece_and_stand_where_the_text_has_them(tokenizer):
    model = new_model("token_classification", num_labels=2, labels=("O", "NAME"))
    text = "One  bcd ef."
    tagged = tag(model, tokenizer, [text, "a " * 90])
    assert [word.word for word in tagged[0]] == ["One", "bcd", "ef", "."]
    assert [text[word.begin : word.end] for word in tagged[0]] == ["One", "bcd", "ef", "."]
    best = model(alone(tokenizer, text)).argmax(-1)
    first_tokens = [1, 2, 5, 7]  # [CLS] one b ##c ##d e ##f . [SEP]
    assert [word.label for word in tagged[0]] == [("O", "NAME")[best[i]] for i in first_tokens]
    assert [word.begin for word in tagged[1]] == list(range(0, 180, 2))  # in several windows


@pytest.mark.parametrize(("text", "words"), [
    ("a-b @c d.e/f", ["a-b", "@", "c", "d.e/f"]),
    ("(a's b.)", ["(", "a's", "b", ".", ")"]),
    ("the U.S. bc...", ["the", "U.S", ".", "bc", ".", ".", "."]),
    ("一二a c", ["一", "二", "a", "c"]),
    ("“a” --", ["“", "a", "”", "-", "-"]),
    ("a bc\x0cdef a\x85b", ["a", "bc", "def", "a", "b"]),  # the tokenizer removes what parts them
])  # fmt: skip
def test_words_of_a_text_are_what_white_space_parts(tokenizer, text, words):
    model = new_model("token_classification", num_labels=2, labels=("O", "NAME"))
    (tagged,) = tag(model, tokenizer, [text])
    assert [word.word for word in tagged] == words
    assert [text[word.begin : word.end] for word in tagged] == words


def test_the_choice_is_the_one_with_the_greatest_score(tokenizer):
    model = new_model("multiple_choice")
    chosen = choose(model, tokenizer, "one", ["a", "b c d", "e"])
    assert chosen.index == int(np.argmax(chosen.probabilities))
    assert sum(chosen.probabilities) == pytest.approx(1)


def test_attention_maps_are_probabilities_of_every_layer_and_head(tokenizer):
    for head, causal in (("encoder", False), ("language_model", True)):
        maps = attention_maps(new_model(head, causal=causal), tokenizer, "a bc")
        assert maps.tokens == ["[CLS]", "a", "b", "##c", "[SEP]"]
        assert maps.probabilities.shape == (2, 4, 5, 5)
        np.testing.assert_allclose(maps.probabilities.sum(-1), 1, atol=1e-5)
        above = maps.probabilities[..., np.triu(np.ones((5, 5), dtype=bool), 1)]
        assert (above == 0).all() == causal


@pytest.mark.parametrize("texts", [[], "one text", [("a", "b", "c")], [3]])
def test_what_is_not_a_list_of_texts_is_refused(tokenizer, texts):
    with pytest.raises(ValueError, match=r"must be|must hold"):
        embed(new_model("encoder"), tokenizer, texts)


def test_a_model_with_another_head_is_refused(tokenizer):
    encoder = new_model("encoder")
    for ask in (
        lambda: fill_mask(encoder, tokenizer, "[MASK]"),
        lambda: next_sentence_probability(encoder, tokenizer, [("a", "b")]),
        lambda: classify(encoder, tokenizer, ["a"]),
        lambda: rate(encoder, tokenizer, ["a"]),
        lambda: tag(encoder, tokenizer, ["a"]),
        lambda: choose(encoder, tokenizer, "a", ["b"]),
        lambda: answer(encoder, tokenizer, "a", "b"),
        lambda: complete(encoder, [2], end_id=3),
    ):
        with pytest.raises(ValueError, match="got encoder"):
            ask()


def test_another_process_computes_the_same_bits(tokenizer):
    program = """
import hashlib
from tests.bert_core.test_inference import *

tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *LETTERS, *("##" + x for x in LETTERS)])
vectors = embed(new_model("encoder"), tokenizer, TEXTS * 9).vectors
print(hashlib.sha256(vectors.tobytes()).hexdigest())
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(digests) == 1
