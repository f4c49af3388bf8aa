"""Models that are fine-tuned: one for each kind of task.

B = sequences, T = ragged tokens, S = tokens of the longest sequence, C = classes or choices.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.model.classes import OneOfClasses, TaskModel
from bert_core.model.heads import Pooler, TaskHead
from bert_core.model.losses import (
    binary_cross_entropy_sum,
    cross_entropy_sum,
    pad_tokens,
    squared_error_sum,
)
from bert_core.model.trainable import Sum, Sums, checked_labels


class NextSentencePredictor(OneOfClasses):
    """Whether the second text of a pair followed the first: class 0 says it did."""

    head_name = "next_sentence"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)
        self.next_sentence_head = TaskHead(config, 2, dropout=0.0)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, 2] logits."""
        first = self.encoder(tokens, dropout_key, tokens.first_positions)
        return self.next_sentence_head(self.pooler(first), dropout_key)


class _Labeller(TaskModel):
    """Gives something `num_labels` logits, one a class; `labels` are the names of these.

    Raises ValueError where these are not `num_labels` different ones.
    """

    has_pooler: ClassVar[bool]

    def __init__(
        self, config: EncoderConfig, num_labels: int, labels: Sequence[str] | None = None
    ) -> None:
        super().__init__(config)
        self.num_labels = num_labels
        self.labels = checked_labels(num_labels, labels)
        self.pooler = Pooler(config) if self.has_pooler else None
        self.task_head = TaskHead(config, num_labels)

    def head_settings(self) -> dict[str, Any]:
        return {"num_labels": self.num_labels, "labels": self.labels and list(self.labels)}


class TextLabeller(_Labeller):
    """Labels whole texts, or pairs of texts.

    With `reads_windows` one that is longer than the model reads is read in windows, whose
    probabilities are averaged, as it was learned; else it loses its end.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        labels: Sequence[str] | None = None,
        reads_windows: bool = False,
    ) -> None:
        super().__init__(config, num_labels, labels)
        self.reads_windows = reads_windows

    def head_settings(self) -> dict[str, Any]:
        told = super().head_settings()
        return {**told, "reads_windows": True} if self.reads_windows else told


class SequenceClassifier(TextLabeller, OneOfClasses):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to."""

    head_name = "sequence_classification"
    has_pooler = True

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, C] logits, C = `num_labels`."""
        first = self.encoder(tokens, dropout_key, tokens.first_positions)
        assert self.pooler is not None
        return self.task_head(self.pooler(first), dropout_key)


class MultiLabelClassifier(TextLabeller):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to: none, some or all.

    The loss and the accuracy count its B * C decisions, `label_exact_match` the texts all of whose
    are right. Its losses raise ValueError for labels that are not [B, C] booleans or floats.
    """

    head_name = "multi_label_classification"
    figures = ("loss", "accuracy", "exact_match")
    has_pooler = True

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, C] logits of belonging to each class, whatever the others."""
        first = self.encoder(tokens, dropout_key, tokens.first_positions)
        assert self.pooler is not None
        return self.task_head(self.pooler(first), dropout_key)

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        self._refuse_other_labels(batch)
        loss = binary_cross_entropy_sum(self(batch.tokens, dropout_key), batch.labels)
        return {"label": Sum(loss, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        self._refuse_other_labels(batch)
        logits = self(batch.tokens)
        is_right = (logits > 0) == (batch.labels > 0.5)
        return {
            "label_loss": Sum(binary_cross_entropy_sum(logits, batch.labels), batch.num_labels),
            "label_accuracy": Sum(is_right.sum().float(), batch.num_labels),
            "label_exact_match": Sum(is_right.all(dim=1).sum().float(), len(batch.labels)),
        }

    def _refuse_other_labels(self, batch: LabelledBatch) -> None:
        wanted = (batch.tokens.num_sequences, self.num_labels)
        if batch.labels.shape != wanted or not batch.labels.is_floating_point():
            raise ValueError(
                f"labels of several classes a text must be booleans or floats of shape "
                f"{list(wanted)}, got {batch.labels.dtype} of shape {list(batch.labels.shape)}"
            )


class _NumberModel(TaskModel):
    """One number a text or a pair of texts, from its pooled first token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)
        self.task_head = TaskHead(config, 1)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B] numbers."""
        first = self.encoder(tokens, dropout_key, tokens.first_positions)
        return self.task_head(self.pooler(first), dropout_key).squeeze(-1)


class SequenceRegressor(_NumberModel):
    """A number for a text or a pair of texts, such as their similarity."""

    head_name = "regression"
    figures = ("loss",)

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        predictions = self(batch.tokens, dropout_key)
        return {"label": Sum(squared_error_sum(predictions, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        return {"label_loss": self.loss_sums(batch)["label"]}


class MultipleChoice(_NumberModel, OneOfClasses):
    """Which of C texts fits; the batch holds the C of each question one after the other.

    Its losses raise ValueError where the texts do not go into the questions.
    """

    head_name = "multiple_choice"

    def _logits(self, batch: LabelledBatch, dropout_key: DropoutKey | None) -> Tensor:
        return _by_question(self(batch.tokens, dropout_key), batch)


class TokenClassifier(_Labeller, OneOfClasses):
    """Which of `num_labels` classes each token belongs to, such as the parts of names."""

    head_name = "token_classification"
    has_pooler = False

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, C] logits, C = `num_labels`."""
        return self.task_head(self.encoder(tokens, dropout_key), dropout_key)


class SpanPredictor(TaskModel):
    """Where in a text the answer to a question begins and ends; [CLS] stands for "nowhere"."""

    head_name = "span_prediction"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.task_head = TaskHead(config, 2, dropout=0.0)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, 2] logits of being the first and the last token of the answer."""
        return self.task_head(self.encoder(tokens, dropout_key), dropout_key)

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        padded = self._padded(batch, dropout_key)
        both = sum(cross_entropy_sum(padded[..., edge], batch.labels[:, edge]) for edge in (0, 1))
        return {"label": Sum(torch.as_tensor(both) / 2, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        padded = self._padded(batch, None)
        both = sum(cross_entropy_sum(padded[..., edge], batch.labels[:, edge]) for edge in (0, 1))
        exact = (padded.argmax(dim=1) == batch.labels).all(dim=1).sum()
        return {
            "label_loss": Sum(torch.as_tensor(both) / 2, batch.num_labels),
            "label_accuracy": Sum(exact.float(), batch.num_labels),
        }

    def _padded(self, batch: LabelledBatch, dropout_key: DropoutKey | None) -> Tensor:
        logits = self(batch.tokens, dropout_key).float()
        return pad_tokens(logits, batch.tokens, -torch.inf)  # [B, S, 2]


def _by_question(scores: Tensor, batch: LabelledBatch) -> Tensor:
    num_questions = batch.labels.numel()
    if num_questions == 0 or scores.numel() % num_questions:
        raise ValueError(
            "a batch of multiple choice must hold the same number of choices for each question, "
            f"got {scores.numel()} texts for {num_questions} questions"
        )
    return scores.view(num_questions, -1)
