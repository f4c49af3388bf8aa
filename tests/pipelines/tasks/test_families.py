"""Every family learns a small task of its kind, from its items to its score."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from bert_core.batch import IGNORED_LABEL
from bert_core.config import EncoderConfig
from bert_core.inference import assign_labels, classify
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.stages.finetuning.preparation import balanced_weights, prepare
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import Items, Reading, families_of, family, family_names
from pipelines.tasks.encoding import texts as encoding_texts
from pipelines.tasks.encoding.sequences import batches, shuffled

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
VOWELS = set("aeiou")
CONFIG = EncoderConfig(
    vocab_size=len(PIECES), hidden_size=64, num_layers=2, num_attention_heads=4,
    intermediate_size=128, max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer(PIECES)


def text(random: np.random.Generator, size: int = 6) -> str:
    return " ".join(random.choice(LETTERS, size))


def texts(random: np.random.Generator) -> dict[str, Any]:
    drawn = text(random)
    has_vowel = bool(VOWELS & set(drawn.split()))
    return {"text": drawn, "label": "vowel" if has_vowel else "none"}


def several(random: np.random.Generator) -> dict[str, Any]:
    drawn = text(random)
    labels = [name for name in ("a", "b", "c", "d") if name in drawn.split()]
    return {"text": drawn, "labels": labels}


def numbers(random: np.random.Generator) -> dict[str, Any]:
    drawn = text(random)
    return {"text": drawn, "label": str(len(VOWELS & set(drawn.split())))}


def choices(random: np.random.Generator) -> dict[str, Any]:
    answer = int(random.integers(3))
    drawn = [random.choice(sorted(set(LETTERS) - VOWELS)) for _ in range(3)]
    drawn[answer] = random.choice(sorted(VOWELS))
    return {"text": text(random, 3), "choices": drawn, "label": str(answer)}


def words(random: np.random.Generator) -> dict[str, Any]:
    drawn = ["".join(random.choice(LETTERS, 4)) for _ in range(int(random.integers(3, 15)))]
    return {"words": drawn, "tags": ["B-V" if word[0] in VOWELS else "O" for word in drawn]}


def pairs(random: np.random.Generator) -> dict[str, Any]:
    """Two texts of two of the letters' quarters, near where it is the same one; no word in both."""
    first = int(random.integers(4))
    second = first if random.random() < 0.5 else int(random.integers(4))
    starts = (6 * first, 6 * second + 3)
    drawn = [" ".join(random.choice(LETTERS[start : start + 3], 5)) for start in starts]
    label = str(int(first == second))
    return {"text": drawn[0], "second_text": drawn[1], "label": label, "other_text": None}


def questions(random: np.random.Generator) -> dict[str, Any]:
    letters = random.permutation([letter for letter in LETTERS if letter != "q"])[:24].tolist()
    place = int(random.integers(len(letters)))
    letters[place] = "q"
    context = " ".join(letters)
    return {"id": "", "question": "q", "context": context, "answers": ["q"], "starts": [2 * place]}


@dataclass(frozen=True)
class Task:
    """Where the records of a family come from, and how long it takes to learn them."""

    record: Callable[[np.random.Generator], dict[str, Any]]
    steps: int = 120
    enough: float = 0.9


TASKS = {
    "classification": Task(texts),
    "multi_label": Task(several, steps=300, enough=0.75),
    "regression": Task(numbers),
    "multiple_choice": Task(choices),
    "tagging": Task(words),
    "question_answering": Task(questions),
    "sentence_embedding": Task(pairs, enough=0.8),  # of 0.87, with as many ties as there are
}


def parts(name: str) -> tuple[Items, Items]:
    random = np.random.default_rng(0)
    task = family(name)
    items = [task.item(TASKS[name].record(random)) for _ in range(700)]
    labels = task.labels(items[:600], items[600:])
    return Items(items[:600], labels), Items(items[600:], labels)


def test_every_family_has_a_task_here() -> None:
    assert set(family_names()) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_a_family_learns_a_task_of_its_kind(name: str, tokenizer: WordPieceTokenizer) -> None:
    task, (train_items, heldout) = family(name), parts(name)
    torch.manual_seed(0)
    model = task.build_model(CONFIG, train_items.labels)
    assert list(families_of(model)) == [name]
    reading = Reading(CONFIG.max_position_embeddings)
    examples = task.examples(train_items, tokenizer, reading)

    def micro_batches(step: int) -> list[tuple[int, Any]]:
        return [(0, examples.batch(shuffled(len(examples), 0, step, 32)))]

    steps = TASKS[name].steps
    optimization = OptimizationConfig(num_steps=steps, warmup_steps=10, learning_rate=2e-3)
    for _ in train(model, AdamW(model, optimization), micro_batches, seed=0):
        pass
    answers = task.answers(model, tokenizer, heldout, reading)
    figures = task.figures(answers, heldout)
    described = task.described(train_items, heldout)
    assert figures[task.score] > TASKS[name].enough
    baseline = described.get(task.score.replace("eval/", "baseline/"), 0.0)
    assert figures[task.score] > baseline
    assert set(task.curve) <= set(model.evaluation_sums(next(batches(examples, 16, 0, 1))[1]))
    task.report(answers, heldout)


@pytest.mark.parametrize("name", TASKS)
def test_answers_of_two_ranks_are_those_of_one(
    name: str, tokenizer: WordPieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, (_, heldout) = family(name), parts(name)
    torch.manual_seed(0)
    model = task.build_model(CONFIG, heldout.labels)
    reading = Reading(CONFIG.max_position_embeddings)
    alone = task.answers(model, tokenizer, heldout, reading)
    # What each of two ranks would bring to the sum.
    module = __import__(f"pipelines.tasks.{name}", fromlist=["sum_over_ranks"])
    if not hasattr(module, "sum_over_ranks"):
        module = encoding_texts
    brought: list[np.ndarray] = []

    def note(values: np.ndarray) -> np.ndarray:
        brought.append(values.copy())
        return values

    monkeypatch.setattr(module, "sum_over_ranks", note)
    for rank in range(2):
        task.answers(model, tokenizer, heldout, reading, rank, 2)
    monkeypatch.setattr(module, "sum_over_ranks", lambda values: brought[0] + brought[1])
    together = task.answers(model, tokenizer, heldout, reading, 0, 2)
    assert together.values == alone.values


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
        reading = Reading(CONFIG.max_position_embeddings, None, long_texts == "windows")
        torch.manual_seed(0)
        model = task.build_model(CONFIG, train_items.labels)
        examples = task.examples(train_items, tokenizer, reading)
        prepare(model, settings, examples)
        optimization = OptimizationConfig(num_steps=60, warmup_steps=10, learning_rate=2e-3)

        def micro_batches(step: int, examples: Any = examples) -> list[tuple[int, Any]]:
            return [(0, examples.batch(shuffled(len(examples), 0, step, 32)))]

        for _ in train(model, AdamW(model, optimization), micro_batches, seed=0):
            pass
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
    examples = task.examples(Items([item, nothing]), tokenizer, Reading(16, stride=3))
    seen = []
    for index in range(len(examples)):
        batch = examples.batch(np.array([index]))
        first, last = batch.labels[0].tolist()
        ids = batch.tokens.input_ids.tolist()
        pieces = " ".join(tokenizer.id_to_piece(each) for each in ids[first : last + 1])
        shown = {tokenizer.id_to_piece(each) for each in ids[4:]}
        seen.append((pieces, len(shown & set("klmn"))))
    of_item = seen[: len(seen) - 6]
    assert {pieces for pieces, _ in of_item} == {"k l m n", "[CLS]"}
    assert all(shown == (4 if pieces == "k l m n" else 0) for pieces, shown in of_item)
    assert {pieces for pieces, _ in seen[len(seen) - 6 :]} == {"[CLS]"}


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
    assert {tokenizer.id_to_piece(each) for each in firsts.tolist()} == {"c"}


def test_rare_classes_count_more_and_all_labels_together_as_much(
    tokenizer: WordPieceTokenizer,
) -> None:
    task = family("tagging")
    item = task.item({"words": ["ab"] * 10, "tags": ["X"] * 8 + ["Y"] * 2})
    examples = task.examples(Items([item], ("X", "Y", "Z")), tokenizer, Reading(32))
    weights = balanced_weights(examples, 3)
    assert weights == pytest.approx((10 / 24, 10 / 6, 10 / 3))  # no label is a Z
    assert 8 * weights[0] + 2 * weights[1] == pytest.approx(20 / 3)


def test_what_is_frozen_smoothed_and_weighted_is_as_the_settings_say(
    tokenizer: WordPieceTokenizer,
) -> None:
    task, (train_items, _) = family("classification"), parts("classification")
    examples = task.examples(train_items, tokenizer, Reading(32))
    model = task.build_model(CONFIG, train_items.labels)
    settings = FinetuningSettings(
        freeze_embeddings=True, freeze_layers=1, label_smoothing=0.1, class_weights="balanced"
    )
    prepare(model, settings, examples)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("encoder.embeddings") for name in trained)
    assert not any(name.startswith("encoder.layers.0.") for name in trained)
    assert any(name.startswith("encoder.layers.1.") for name in trained)
    batch = examples.batch(np.arange(8))
    logits = model(batch.tokens)
    weights = torch.tensor(model.class_weights)
    expected = torch.nn.functional.cross_entropy(
        logits, batch.labels, weight=weights, label_smoothing=0.1, reduction="sum"
    )
    assert model.loss_sums(batch)["label"].total.item() == pytest.approx(expected.item(), rel=1e-5)
    plain = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
    told = model.evaluation_sums(batch)["label_loss"].total.item()
    assert told == pytest.approx(plain.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("classification", {"freeze_layers": 3}, "at most the 2 layers of the encoder, got 3"),
        ("regression", {"label_smoothing": 0.1}, "one of several classes, and those of a regr"),
        ("multiple_choice", {"class_weights": "balanced"}, "of classes with names"),
    ],
)
def test_what_a_model_cannot_be_told_is_refused(
    name: str, settings: dict[str, Any], message: str, tokenizer: WordPieceTokenizer
) -> None:
    task, (train_items, _) = family(name), parts(name)
    examples = task.examples(train_items, tokenizer, Reading(32))
    model = task.build_model(CONFIG, train_items.labels)
    with pytest.raises(UserError, match=message):
        prepare(model, FinetuningSettings(**settings), examples)
