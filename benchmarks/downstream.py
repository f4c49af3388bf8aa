"""What an encoder is worth to a task: SST-2's first 8,000 sentences, as every side fine-tunes them.

The same classifier, batches, order and dropout for each encoder, whoever pretrained it: two epochs
of 32 sentences a step, AdamW, linear decay; the pooler begins at random, because not every side
trained one. Each learns at the rates of `WAYS` that did best for it on the 2,000 training sentences
after those it learned from. Judged on SST-2's development set.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.alternating import ROOT
from bert_core.batch import LabelledBatch
from bert_core.model.catalogue import Model, SequenceClassifier
from bert_core.ragged import RaggedBatch
from bert_core.training.evaluation import evaluate
from bert_core.training.initialization import load_encoder_into
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer

SST2 = ROOT.parent / "shared" / "data" / "glue" / "SST-2"
NUM_SENTENCES, SENTENCES_A_STEP, NUM_EPOCHS = 8000, 32, 2
NUM_CHOOSING = 2000  # sentences that a way is chosen by
DROPOUT = 0.1
SEEDS = (0, 1, 2)
CHOOSING_SEED = 3


class Way(NamedTuple):
    """How fast an encoder learns a task."""

    rate: float
    embeddings_rate: float = 1.0  # times that

    def __str__(self) -> str:
        table = f", embeddings {self.rate * self.embeddings_rate:g}"
        return f"{self.rate:g}{table if self.embeddings_rate != 1 else ''}"


WAYS = (Way(1e-4), Way(3e-4), Way(1e-3), Way(1e-4, 20), Way(2e-4, 10))


class Sentences(NamedTuple):
    """Token ids of each sentence, and its label."""

    ids: list[list[int]]
    labels: list[int]

    def batch(self, chosen: np.ndarray) -> LabelledBatch:
        return LabelledBatch.from_arrays(
            RaggedBatch.from_sequences([self.ids[index] for index in chosen]),
            [self.labels[index] for index in chosen],
        )


def read(
    part: str, tokenizer: WordPieceTokenizer, max_tokens: int, chosen: slice = slice(None)
) -> Sentences:
    """The chosen sentences of `train` or `dev`, in the order of the file."""
    path = next(SST2.glob(f"{part}*"))
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    rows = rows[chosen]
    encoded = tokenizer.encode_batch([row[0] for row in rows])
    ids = [[tokenizer.cls_id, *row[: max_tokens - 2], tokenizer.sep_id] for row in encoded]
    return Sentences(ids, [int(row[1]) for row in rows])


class Found(NamedTuple):
    """What an encoder came to."""

    way: Way
    chosen_by: dict[Way, float]  # accuracy on the sentences it was chosen by
    accuracies: list[float]  # of SST-2's development set, by seed

    @classmethod
    def kept(cls, file: Path, find: Callable[[], "Found"]) -> "Found":
        """What the file holds of an earlier call; else found now, and written there."""
        if not file.is_file():
            way, chosen_by, accuracies = find()
            tried = [[*each, accuracy] for each, accuracy in chosen_by.items()]
            file.write_text(json.dumps({"way": way, "tried": tried, "accuracies": accuracies}))
        told = json.loads(file.read_text())
        chosen_by = {Way(rate, table): accuracy for rate, table, accuracy in told["tried"]}
        return cls(Way(*told["way"]), chosen_by, told["accuracies"])

    def __str__(self) -> str:
        tried = ", ".join(f"{way}: {found:.1%}" for way, found in self.chosen_by.items())
        return f"at {self.way} (of {tried})"


def found(model: Model, tokenizer: WordPieceTokenizer) -> Found:
    """Choose the best way for `model`, then learn with each seed."""
    positions = model.config.max_position_embeddings
    after = slice(NUM_SENTENCES, NUM_SENTENCES + NUM_CHOOSING)
    choosing = read("train", tokenizer, positions, after)
    chosen_by = {way: accuracy(model, tokenizer, way, CHOOSING_SEED, choosing) for way in WAYS}
    best = max(WAYS, key=lambda way: chosen_by[way])
    dev = read("dev", tokenizer, positions)
    return Found(best, chosen_by, [accuracy(model, tokenizer, best, seed, dev) for seed in SEEDS])


def accuracy(
    model: Model, tokenizer: WordPieceTokenizer, way: Way, seed: int, judged: Sentences
) -> float:
    """Share of `judged` that the fine-tuned `model` answers rightly."""
    train_part = read(
        "train", tokenizer, model.config.max_position_embeddings, slice(NUM_SENTENCES)
    )
    torch.manual_seed(seed)
    # An encoder brings along what it was pretrained with.
    config = replace(model.config, hidden_dropout=DROPOUT, attention_dropout=DROPOUT)
    classifier = SequenceClassifier(config, 2)
    fresh_pooler = {name: tensor.clone() for name, tensor in classifier.pooler.state_dict().items()}
    load_encoder_into(classifier, model)
    classifier.pooler.load_state_dict(fresh_pooler)
    steps_an_epoch = NUM_SENTENCES // SENTENCES_A_STEP
    num_steps = NUM_EPOCHS * steps_an_epoch
    orders = [
        np.random.default_rng([seed, e]).permutation(NUM_SENTENCES) for e in range(NUM_EPOCHS)
    ]

    def micro_batches(step: int) -> list[tuple[int, LabelledBatch]]:
        epoch, place = divmod(step, steps_an_epoch)
        first = place * SENTENCES_A_STEP
        return [(0, train_part.batch(orders[epoch][first : first + SENTENCES_A_STEP]))]

    optimization = OptimizationConfig(
        num_steps=num_steps, warmup_steps=num_steps // 10, learning_rate=way.rate,
        rate_scales={"*embeddings.*": way.embeddings_rate},
    )  # fmt: skip
    for _ in train(classifier, AdamW(classifier, optimization), micro_batches, seed=seed):
        pass
    chunks = np.array_split(np.arange(len(judged.labels)), 16)
    return evaluate(classifier, [judged.batch(chunk) for chunk in chunks])["label_accuracy"]


def tokenizer_in(folder: Path) -> WordPieceTokenizer:
    """The tokenizer of a vocabulary's folder."""
    text = (folder / "vocab.txt").read_text(encoding="utf-8")
    return WordPieceTokenizer(text.removesuffix("\n").split("\n"))
