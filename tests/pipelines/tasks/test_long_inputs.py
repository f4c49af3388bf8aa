"""What is longer than the encoder reads at once is learned in windows, and all of it."""

from typing import Any

import numpy as np
import pytest
import torch

from bert_core.batch import IGNORED_LABEL
from bert_core.inference.answers import assign_labels, classify
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import prepare
from pipelines.tasks import Items, Reading, family
from pipelines.tasks.encoding import Sequences
from tests.pipelines.tasks.letters import CONFIG, LETTERS, VOWELS, learn


@pytest.mark.parametrize("name", ["classification", "multi_label"])
def test_the_end_of_a_long_text_is_learned_where_windows_are_read(
    name: str, tokenizer: WordPieceTokenizer
) -> None:
    """What tells the classes apart stands beyond what a text that is cut shows."""
    random, consonants = np.random.default_rng(0), sorted(set(LETTERS) - VOWELS)

    def item(number: int) -> dict[str, Any]:
        drawn = random.choice(consonants, 50)
        if number % 2:
            drawn[40:44] = random.choice(sorted(VOWELS), 4)
        label = "vowel" if number % 2 else "none"
        return {"text": " ".join(drawn), "label": label, "labels": [label]}

    task = family(name)
    rows = [task.item(item(number)) for number in range(200)]
    train_items, heldout = (
        Items(rows[:160], ("none", "vowel")),
        Items(rows[160:], ("none", "vowel")),
    )
    scores = {}
    for long_texts in ("cut", "windows"):
        settings = FinetuningSettings(long_texts=long_texts)
        reading = Reading(CONFIG.max_position_embeddings, long_texts == "windows")
        torch.manual_seed(0)
        model = task.build_model(CONFIG, train_items.labels)
        examples = task.examples(train_items, tokenizer, reading)
        prepare(model, settings, examples)
        learn(model, examples, 60)
        answers = task.answers(model, tokenizer, heldout, Reading(CONFIG.max_position_embeddings))
        scores[long_texts] = task.figures(answers, heldout)[task.score]
        assert answers.num_truncated == (len(heldout.rows) if long_texts == "cut" else 0)
        texts = [row["text"] for row in heldout.rows]
        asked = classify if name == "classification" else assign_labels
        assert answers.values == asked(model, tokenizer, texts).labels
    assert scores["windows"] > 0.95
    assert scores["cut"] < 0.75


def test_windows_of_an_answer_hold_all_of_it_or_none(tokenizer: WordPieceTokenizer) -> None:
    task = family("question_answering")
    context = " ".join(LETTERS)
    item = task.item({
        "id": "", "question": "x y", "context": context, "answers": ["k l m n"], "starts": [20],
    })  # fmt: skip
    nothing = task.item({**item, "answers": [], "starts": []})
    examples = task.examples(Items([item, nothing]), tokenizer, Reading(16))
    seen = []
    for index in range(len(examples)):
        batch = examples.batch(np.array([index]))
        first, last = batch.labels[0].tolist()
        ids = batch.tokens.input_ids.tolist()
        tokens = " ".join(tokenizer.id_to_token(each) for each in ids[first : last + 1])
        shown = {tokenizer.id_to_token(each) for each in ids[4:]}
        seen.append((tokens, len(shown & set("klmn"))))
    of_item = seen[: len(seen) - 4]
    assert {tokens for tokens, _ in of_item} == {"k l m n", "[CLS]"}
    assert all(shown == (4 if tokens == "k l m n" else 0) for tokens, shown in of_item)
    assert {tokens for tokens, _ in seen[len(seen) - 4 :]} == {"[CLS]"}


def test_an_answer_that_no_window_holds_is_not_learned_as_none(
    tokenizer: WordPieceTokenizer,
) -> None:
    task = family("question_answering")
    context = " ".join(LETTERS)
    item = task.item({
        "id": "", "question": "x y", "context": context, "answers": [context[:45]], "starts": [0],
    })  # fmt: skip
    nothing = task.item({**item, "answers": [], "starts": []})
    windows_of_one = task.examples(Items([nothing]), tokenizer, Reading(16))
    examples = task.examples(Items([item, nothing]), tokenizer, Reading(16))
    assert len(examples) == len(windows_of_one)
    assert isinstance(examples, Sequences)
    assert "1 of 2 questions have an answer that is longer than a window of 16" in examples.left_out
    nothing_learned = task.examples(Items([item]), tokenizer, Reading(16))
    assert isinstance(nothing_learned, Sequences) and not len(nothing_learned)
    assert "1 of 1 questions have" in nothing_learned.left_out


def test_every_word_of_a_long_sentence_is_learned_once(tokenizer: WordPieceTokenizer) -> None:
    task = family("tagging")
    item = task.item({"words": ["ab", "\u200b", "cde"] * 20, "tags": ["X", "Y", "Z"] * 20})
    examples = task.examples(Items([item], ("X", "Y", "Z")), tokenizer, Reading(16))
    batch = examples.batch(np.arange(len(examples)))
    counted = batch.labels[batch.labels != IGNORED_LABEL]
    assert len(examples) > 5
    assert batch.num_labels == len(counted) == 60
    assert torch.bincount(counted).tolist() == [20, 20, 20]
    firsts = batch.tokens.input_ids[batch.labels == 2]
    assert {tokenizer.id_to_token(each) for each in firsts.tolist()} == {"c"}


def test_a_word_that_ends_two_windows_gets_its_tag(tokenizer: WordPieceTokenizer) -> None:
    task = family("tagging")
    items = Items([task.item({"words": ["ab", "cd", "efgh"], "tags": ["X", "Y", "X"]})], ("X", "Y"))
    model = task.build_model(CONFIG, items.labels)
    (tags,) = task.answers(model, tokenizer, items, Reading(6)).values
    assert len(tags) == 3
