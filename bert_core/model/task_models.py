"""Models that are fine-tuned: one for each kind of task of the BERT paper."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.model.heads import Pooler, TaskHead
from bert_core.model.losses import cross_entropy_sum, pad_tokens, squared_error_sum
from bert_core.model.trainable import Sum, Sums, TrainableModel, checked_labels, classification_sums


class TaskModel(TrainableModel):
    """A model that is fine-tuned on labels; classification unless a task says otherwise."""

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        logits = self(batch.tokens, dropout_key)
        return {"label": Sum(cross_entropy_sum(logits, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        logits = self(batch.tokens)
        return classification_sums("label", logits, batch.labels, batch.num_labels)


class NextSentencePredictor(TaskModel):
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


class _Classifier(TaskModel):
    """Which of `num_labels` classes something belongs to; `labels` are their names.

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


class SequenceClassifier(_Classifier):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to."""

    head_name = "sequence_classification"
    has_pooler = True

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, num_labels] logits."""
        first = self.encoder(tokens, dropout_key, tokens.first_positions)
        assert self.pooler is not None
        return self.task_head(self.pooler(first), dropout_key)


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


class MultipleChoice(_NumberModel):
    """Which of C texts fits; the batch holds the C of each question one after the other.

    Its losses raise ValueError where the texts do not go into the questions.
    """

    head_name = "multiple_choice"

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        logits = _by_question(self(batch.tokens, dropout_key), batch)
        return {"label": Sum(cross_entropy_sum(logits, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        logits = _by_question(self(batch.tokens), batch)
        return classification_sums("label", logits, batch.labels, batch.num_labels)


class TokenClassifier(_Classifier):
    """Which of `num_labels` classes each token belongs to, such as the parts of names."""

    head_name = "token_classification"
    has_pooler = False

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, num_labels] logits."""
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
