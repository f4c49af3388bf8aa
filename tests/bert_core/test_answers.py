"""Answers read from a context, and completions, against the plain computation."""

import pytest
import torch

from bert_core.batch import RaggedBatch
from bert_core.inference.answers import answer, best_span, tag
from bert_core.inference.pretrained import complete
from bert_core.inference.texts import longest_question
from bert_core.vocabulary import WordPieceTokenizer
from tests.bert_core.test_inference import LETTERS, new_model, tokenizer

__all__ = ["tokenizer"]  # a fixture


def test_an_answer_is_the_best_span_over_all_windows(tokenizer):
    model = new_model("span_prediction")
    context = " ".join(LETTERS * 8)
    result = answer(model, tokenizer, "one", context)
    assert result.text == context[result.begin : result.end] != ""
    assert len(result.text.split()) <= 30
    short = answer(model, tokenizer, "one", "a b c")
    ids = [tokenizer.token_to_id(p) for p in ("[CLS]", "one", "[SEP]", "a", "b", "c", "[SEP]")]
    logits = model(RaggedBatch.from_sequences([ids], [3])).detach()
    score, first, last = best_span(logits[3:6], 30)
    assert short.text == " ".join("abc"[first : last + 1])
    assert short.score == pytest.approx(score, abs=1e-5)
    assert short.null_score == pytest.approx(logits[0].sum().item(), abs=1e-5)


def test_a_span_never_ends_before_it_begins_nor_grows_too_long():
    logits = torch.tensor([[0.0, 9.0], [1.0, 0.0], [9.0, 0.0], [0.0, 5.0]])
    assert best_span(logits, 4)[1:] == (2, 3)
    assert best_span(logits, 1) == (9.0, 0, 0)


def test_completion_is_greedy_or_drawn_and_repeats_itself_for_equal_seeds():
    model = new_model("language_model", causal=True)
    greedy = complete(model, [2], end_id=3, max_new_tokens=6)
    ids = [2]
    for _ in range(6):
        logits = model(RaggedBatch.from_sequences([ids]), torch.tensor([len(ids) - 1]))
        ids.append(int(logits.argmax()))
        if ids[-1] == 3:
            break
    assert greedy == ids
    draws = [
        complete(model, [2], end_id=3, temperature=1.0, max_new_tokens=6, seed=seed)
        for seed in (0, 0, 1, 2)
    ]
    assert draws[0] == draws[1]
    assert len({tuple(draw) for draw in draws}) > 1
    assert len(complete(model, [2], end_id=-1)) == 64
    for temperature in (0.0, 5.0):  # the rest of the table is padding
        assert max(complete(model, [2], end_id=-1, num_tokens=5, temperature=temperature)) < 5


MARKED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "म", "घ", "##र", "one"]


def test_combining_marks_belong_to_the_answer_and_to_the_word():
    tokenizer = WordPieceTokenizer(MARKED)
    model = new_model("span_prediction").eval()
    found = answer(model, tokenizer, "one", "में")
    assert (found.text, found.begin, found.end) == ("में", 0, 3)
    tagger = new_model("token_classification", num_labels=2, labels=("O", "B")).eval()
    words = tag(tagger, tokenizer, ["घर में"])[0]
    assert [(word.word, word.begin, word.end) for word in words] == [("घर", 0, 2), ("में", 3, 6)]


def test_a_long_question_loses_its_end_and_an_empty_context_has_no_answer(tokenizer):
    model = new_model("span_prediction").eval()
    longest = longest_question(model.config.max_position_embeddings)
    cut = answer(model, tokenizer, " ".join(["one"] * longest), "a b c")
    assert answer(model, tokenizer, " ".join(["one"] * 500), "a b c") == cut
    nothing = answer(model, tokenizer, "one", "\u200b")
    assert (nothing.text, nothing.begin, nothing.end) == ("", 0, 0)
