"""Small tasks over single letters, one for each family, and how a small model learns them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_core.config import EncoderConfig
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from pipelines.tasks import Items, TaskExamples, family
from pipelines.tasks.encoding import shuffled

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
VOWELS = set("aeiou")
CONFIG = EncoderConfig(
    vocab_size=len(TOKENS), hidden_size=64, num_layers=2, num_attention_heads=4,
    intermediate_size=128, max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip


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


def learn(
    model: TrainableModel, examples: TaskExamples, steps: int, *, rate: float = 2e-3,
    warmup: int = 10, precision: str = "float32",
) -> None:  # fmt: skip
    """Train the model for so many steps of 32 examples."""

    def micro_batches(step: int) -> list[tuple[int, Any]]:
        return [(0, examples.batch(shuffled(len(examples), 0, step, 32)))]

    optimization = OptimizationConfig(num_steps=steps, warmup_steps=warmup, learning_rate=rate)
    optimizer = AdamW(model, optimization)
    for _ in train(model, optimizer, micro_batches, seed=0, precision=precision):
        pass
