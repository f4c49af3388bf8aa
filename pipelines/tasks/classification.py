"""Single-text classification: its texts and labels, its model, its scores and its report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.inference.texts import BATCH_TOKENS, encode_texts
from bert_core.model.catalogue import SequenceClassifier, TrainableModel
from bert_core.randomness import Permutation
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact
from pipelines.core.errors import UserError
from pipelines.tasks import Answers
from pipelines.training.reduction import sum_over_ranks


class Classification:
    """One label for each text, from the labels that the training texts have."""

    curve: Mapping[str, str] = MappingProxyType(
        {"label_loss": "eval/loss", "label_accuracy": "eval/accuracy"}
    )

    def build_model(self, config: EncoderConfig, labelled: Artifact) -> TrainableModel:
        """A classifier of the labels of `labelled`, from torch's generator."""
        labels = labelled.statistics["labels"]
        return SequenceClassifier(config, num_labels=len(labels), labels=labels)

    def examples(
        self, labelled: Artifact, split: str, tokenizer: WordPieceTokenizer, max_tokens: int
    ) -> "EncodedTexts":
        """The texts of `train` or `heldout`, cut to `max_tokens`."""
        return EncodedTexts(read_split(labelled, split), tokenizer, max_tokens)

    @torch.inference_mode()
    def answers(
        self,
        model: TrainableModel,
        tokenizer: WordPieceTokenizer,
        labelled: Artifact,
        rank: int = 0,
        world_size: int = 1,
    ) -> Answers:
        """The index of each held-out text's label, as `bert_core.inference.classify` answers.

        The batches are those of `classify`, whatever the number of ranks. Raises UserError for a
        model that is no classifier.
        """
        if not isinstance(model, SequenceClassifier):
            raise UserError(f"the model must be a classifier, found a {model.head_name} model")
        texts = read_split(labelled, "heldout").texts
        answers = np.zeros(len(texts), np.int64)
        encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
        for number, (members, tokens) in enumerate(encoded.batches(BATCH_TOKENS)):
            if number % world_size == rank:
                probabilities = model(tokens).float().softmax(dim=-1)
                answers[members] = probabilities.argmax(dim=-1).numpy()
        return Answers(list(map(int, sum_over_ranks(answers))), encoded.num_truncated)

    def figures(self, answers: Answers, labelled: Artifact) -> dict[str, float]:
        """Held-out accuracy and macro F1, and the accuracy of always answering the majority."""
        return {
            **figures_of(*_answered_and_expected(answers, labelled)),
            "baseline/accuracy": labelled.statistics["baseline/accuracy"],
        }

    def report(self, answers: Answers, labelled: Artifact) -> dict[str, Any]:
        """Precision, recall, F1 and count of each label, and the confusion matrix."""
        return report_on(*_answered_and_expected(answers, labelled))


FAMILY = Classification()


class LabelledTexts(NamedTuple):
    """One split: N texts and, for each, the index of its label."""

    texts: list[str]
    labels: list[int]


def read_split(labelled: Artifact, split: str) -> LabelledTexts:
    """The texts and label indices of `train` or `heldout`, in the artifact's order."""
    table = pq.read_table(labelled.local(f"{split}.parquet"))
    return LabelledTexts(table["text"].to_pylist(), table["label"].to_pylist())


def names_of(labels: Iterable[int], labelled: Artifact) -> list[str]:
    """The names of label indices."""
    names = labelled.statistics["labels"]
    return [names[label] for label in labels]


class EncodedTexts:
    """Labelled texts as token ids between [CLS] and [SEP], cut to `max_tokens`."""

    def __init__(
        self, labelled: LabelledTexts, tokenizer: WordPieceTokenizer, max_tokens: int
    ) -> None:
        encoded = tokenizer.encode_batch(labelled.texts)
        kept = max_tokens - 2
        self.num_truncated = sum(len(ids) > kept for ids in encoded)
        self._ids = [[tokenizer.cls_id, *ids[:kept], tokenizer.sep_id] for ids in encoded]
        self._labels = np.asarray(labelled.labels)

    def __len__(self) -> int:
        return len(self._ids)

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The texts at `indices`, in that order."""
        tokens = RaggedBatch.from_sequences([self._ids[index] for index in indices])
        return LabelledBatch.from_arrays(tokens, self._labels[indices])

    def longest(self, size: int) -> LabelledBatch:
        """The `size` longest texts: no batch of as many needs more memory."""
        lengths = np.fromiter(map(len, self._ids), np.int64, len(self))
        return self.batch(np.argsort(-lengths, kind="stable")[:size])

    def batches(self, size: int, rank: int, world_size: int) -> Iterator[tuple[int, LabelledBatch]]:
        """This rank's share of the batches of all texts in order, `size` at a time, numbered."""
        for number in range(rank, -(-len(self) // size), world_size):
            yield number, self.batch(np.arange(number * size, min((number + 1) * size, len(self))))

    def shuffled(self, seed: int, step: int, examples_per_step: int) -> np.ndarray:
        """Indices of the texts that optimizer step `step` learns from.

        Every text comes once an epoch, in an order of its own for each epoch; a step may take the
        end of one and the beginning of the next.
        """
        stream = np.arange(step * examples_per_step, (step + 1) * examples_per_step)
        epochs, places = np.divmod(stream, len(self))
        chosen = np.empty_like(stream)
        for epoch in np.unique(epochs):
            order = Permutation(len(self), seed, "finetuning order", int(epoch))
            chosen[epochs == epoch] = order[places[epochs == epoch]]
        return chosen


def figures_of(answered: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """Accuracy and macro F1 of the answered labels."""
    from sklearn.metrics import f1_score  # takes a second that other stages need not spend

    num_correct = sum(a == b for a, b in zip(answered, expected, strict=True))
    macro_f1 = f1_score(expected, answered, average="macro", zero_division=0.0)
    return {"eval/accuracy": num_correct / len(expected), "eval/macro_f1": float(macro_f1)}


def report_on(answered: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 and count of each label, and the confusion matrix.

    The matrix has a row per expected and a column per answered label, in the order of `labels`.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels = sorted({*answered, *expected})
    columns = precision_recall_fscore_support(expected, answered, labels=labels, zero_division=0.0)
    by_label = [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "texts": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]
    matrix = confusion_matrix(expected, answered, labels=labels)
    return {"labels": labels, "by_label": by_label, "confusion": matrix.tolist()}


def _answered_and_expected(answers: Answers, labelled: Artifact) -> tuple[list[str], list[str]]:
    heldout = read_split(labelled, "heldout")
    return names_of(answers.values, labelled), names_of(heldout.labels, labelled)
