"""What an encoder is worth to a task: SST-2's first 8,000 sentences, as every side fine-tunes them.

The same classifier, batches, order, dropout and rate for each encoder, whoever pretrained it: two
epochs of 32 sentences a step, AdamW, linear decay; the pooler begins at random, because not every
side trained one. Judged on SST-2's development set.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.alternating import ROOT
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.model.catalogue import Model, SequenceClassifier
from bert_core.training.evaluation import evaluate
from bert_core.training.initialization import load_encoder_into
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer

SST2 = ROOT.parent / "shared" / "data" / "glue" / "SST-2"
NUM_SENTENCES, SENTENCES_A_STEP, NUM_EPOCHS = 8000, 32, 2
LEARNING_RATE, DROPOUT = 3e-4, 0.1
SEEDS = (0, 1, 2)


class Sentences(NamedTuple):
    """Token ids of each sentence, and its label."""

    ids: list[list[int]]
    labels: list[int]

    def batch(self, chosen: np.ndarray) -> LabelledBatch:
        return LabelledBatch.from_arrays(
            RaggedBatch.from_sequences([self.ids[index] for index in chosen]),
            [self.labels[index] for index in chosen],
        )


def read(part: str, tokenizer: WordPieceTokenizer, max_tokens: int, count: int | None) -> Sentences:
    """The first sentences of `train` or `dev`, in the order of the file."""
    path = next(SST2.glob(f"{part}*"))
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]][:count]
    pieces = tokenizer.encode_batch([row[0] for row in rows])
    ids = [[tokenizer.cls_id, *row[: max_tokens - 2], tokenizer.sep_id] for row in pieces]
    return Sentences(ids, [int(row[1]) for row in rows])


def accuracy(model: Model, tokenizer: WordPieceTokenizer, seed: int) -> float:
    """Share of SST-2's development set that the fine-tuned `model` answers rightly."""
    positions = model.config.max_position_embeddings
    train_part = read("train", tokenizer, positions, NUM_SENTENCES)
    dev_part = read("dev", tokenizer, positions, None)
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
        num_steps=num_steps, warmup_steps=num_steps // 10, learning_rate=LEARNING_RATE
    )
    for _ in train(classifier, AdamW(classifier, optimization), micro_batches, seed=seed):
        pass
    chunks = np.array_split(np.arange(len(dev_part.labels)), 16)
    return evaluate(classifier, [dev_part.batch(chunk) for chunk in chunks])["label_accuracy"]


def tokenizer_in(folder: Path) -> WordPieceTokenizer:
    """The tokenizer of a vocabulary's folder."""
    text = (folder / "vocab.txt").read_text(encoding="utf-8")
    return WordPieceTokenizer(text.removesuffix("\n").split("\n"))
