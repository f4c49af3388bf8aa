"""Every question in any precision, on any device, in batches of what fits."""

import numpy as np
import pytest
import torch

import bert_core as bc
from bert_core.inference.answers import assign_labels
from bert_core.inference.texts import EncodedTexts
from tests.bert_core.test_inference import TEXTS, alone, new_model
from tests.bert_core.test_inference import tokenizer as tokenizer

CLASSES = {"num_labels": 3, "labels": ("x", "y", "z")}
# Each gives numbers that may be held against each other.
QUESTIONS = {
    "fill_mask": ("pretraining", lambda m, t, **k: [
        candidate.probability for candidate in bc.fill_mask(m, t, "a [MASK]", top_k=59, **k)[0]
    ]),
    "next_sentence_probability": ("pretraining", lambda m, t, **k: (
        bc.next_sentence_probability(m, t, [("a b", "c"), ("one", "one one")], **k)
    )),
    "embed": ("encoder", lambda m, t, **k: bc.embed(m, t, TEXTS, **k).vectors),
    "embed cls": ("encoder", lambda m, t, **k: bc.embed(m, t, TEXTS, pooling="cls", **k).vectors),
    "classify": ("sequence_classification", lambda m, t, **k: (
        bc.classify(m, t, TEXTS, **k).probabilities
    )),
    "assign_labels": ("multi_label_classification", lambda m, t, **k: (
        bc.assign_labels(m, t, TEXTS, **k).probabilities
    )),
    "rate": ("regression", lambda m, t, **k: bc.rate(m, t, TEXTS, **k).values),
    "tag": ("token_classification", lambda m, t, **k: [
        word.probability for words in bc.tag(m, t, TEXTS, **k) for word in words
    ]),
    "choose": ("multiple_choice", lambda m, t, **k: (
        bc.choose(m, t, "one", ["a", "b c d", "e"], **k).probabilities
    )),
    "answer": ("span_prediction", lambda m, t, **k: [
        bc.answer(m, t, "one", "a b c d e " * 30, **k).null_score
    ]),
    "attention_maps": ("encoder", lambda m, t, **k: (
        bc.attention_maps(m, t, "a bc", **k).probabilities
    )),
    "complete": ("language_model", lambda m, t, **k: [
        len(bc.complete(m, [2, 7], end_id=3, max_new_tokens=5, **k)) > 2
    ]),
}  # fmt: skip


def model_for(head):
    return new_model(
        head, **(CLASSES if head.endswith("classification") else {}),
        **({"causal": True} if head == "language_model" else {}),
    )  # fmt: skip


def test_every_question_of_the_front_door_is_asked_here():
    asked = {name.split()[0] for name in QUESTIONS}
    modules = ("bert_core.inference.answers", "bert_core.inference.pretrained")
    offered = {name for name, module in bc._MODULE_OF.items() if module in modules}
    assert asked == offered - {"cosine_similarity"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_answered_in_bfloat16_about_as_in_float32(tokenizer, question):
    head, ask = QUESTIONS[question]
    model = model_for(head)
    exact = np.asarray(ask(model, tokenizer))
    rounded = np.asarray(ask(model, tokenizer, precision="bf16"))
    np.testing.assert_allclose(rounded, exact, atol=0.1, rtol=0.1)
    if question != "complete":
        assert not np.array_equal(rounded, exact)
    np.testing.assert_array_equal(np.asarray(ask(model, tokenizer)), exact)
    with pytest.raises(ValueError, match="precision must be"):
        ask(model, tokenizer, precision="fp8")


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_are_answered_on_a_gpu_about_as_on_a_cpu(tokenizer, question, precision):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    head, ask = QUESTIONS[question]
    model = model_for(head)
    here = np.asarray(ask(model, tokenizer))
    there = np.asarray(ask(model.to("cuda"), tokenizer, precision=precision))
    np.testing.assert_allclose(there, here, atol=0.1, rtol=0.1)


def test_where_texts_are_padded_a_batch_ends_before_its_squares_outgrow_the_budget():
    lengths = [512, *[8] * 500]
    encoded = EncodedTexts(
        sequences=[[7] * length for length in lengths], segment_b_start=lengths, num_truncated=0
    )
    found = []
    for members, tokens in encoded.batches(4_096, is_padded=True):
        found.extend(members.tolist())
        assert tokens.num_sequences * tokens.max_seqlen**2 <= 4_096 * 512
    assert sorted(found) == list(range(501))


def test_labels_above_the_threshold_come_with_the_likeliest_first(tokenizer):
    model = new_model("multi_label_classification", **CLASSES)
    result = assign_labels(model, tokenizer, TEXTS, threshold=0.3)
    for text, labels, probabilities in zip(TEXTS, result.labels, result.probabilities, strict=True):
        expected = model(alone(tokenizer, text)).sigmoid()[0].detach().numpy()
        np.testing.assert_allclose(probabilities, expected, atol=1e-6)
        order = np.argsort(-expected)
        assert labels == ["xyz"[i] for i in order if expected[i] >= 0.3]
    assert assign_labels(model, tokenizer, TEXTS, threshold=1.0).labels == [[], [], [], []]
    assert all(
        len(three) == 3 for three in assign_labels(model, tokenizer, TEXTS, threshold=0).labels
    )
    with pytest.raises(ValueError, match=r"threshold must lie in \[0, 1\], got 2"):
        assign_labels(model, tokenizer, TEXTS, threshold=2)
    with pytest.raises(ValueError, match="got encoder"):
        assign_labels(new_model("encoder"), tokenizer, TEXTS)
