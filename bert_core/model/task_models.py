"""Models that are fine-tuned: one for each kind of task.

B = sequences, T = ragged tokens, S = tokens of the longest sequence, C = classes or choices, D =
hidden size, N = pairs, K = texts that are known to fit none of them.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import EmbeddingConfig, EncoderConfig
from bert_core.model.encoder import (
    Linear,
    Pooler,
    TaskHead,
    cross_entropy_sum,
    num_correct,
    squared_error_sum,
)
from bert_core.model.trainable import (
    Sum,
    Sums,
    TrainableModel,
    checked_labels,
    mean_of_tokens,
    pooled,
)

# What a head for whole texts reads: the first token through a tanh layer, as published, or the mean
# of all tokens, without a layer of its own.
TextPooling = Literal["pooler", "mean"]


class TaskModel(TrainableModel):
    """A model that is fine-tuned: what it answers to a batch, and one loss of that."""

    def answers(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """What is compared with the labels: logits, numbers or vectors."""
        answers: Tensor = self(batch.tokens, dropout_key)
        return answers

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        """The loss, summed over the labels."""
        return cross_entropy_sum(answers, labels)

    def training_loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        """The loss of training, if it differs from that of evaluation."""
        return self.loss_sum(answers, labels)

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        """How many answers are correct, by the name of the figure."""
        return {}

    has_probabilities: ClassVar[bool] = False  # whether its answers are logits of them

    def logit_layer(self) -> Linear:
        """The last layer, whose outputs are the logits; raises ValueError for other models."""
        raise ValueError(f"a {self.head_name} model gives no probabilities")

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        loss = self.training_loss_sum(self.answers(batch, dropout_key), batch.labels)
        return {"label": Sum(loss, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        answers = self.answers(batch)
        loss = Sum(self.loss_sum(answers, batch.labels), batch.num_labels)
        return {"label_loss": loss, **self.right_sums(answers, batch)}


def class_names(model: Any) -> tuple[str, ...]:
    """What the model's classes are called, or their numbers; none where it has no classes."""
    named: tuple[str, ...] | None = getattr(model, "labels", None)
    return named or tuple(str(index) for index in range(getattr(model, "num_labels", 0)))


class OneOfClasses(TaskModel):
    """A model whose items belong to one of C classes each.

    Who asks it sets `min_confidence`: below that probability it answers nothing.
    """

    min_confidence = 0.0

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        right = num_correct(answers, batch.labels).float()
        return {"label_accuracy": Sum(right, batch.num_labels)}


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


class TextModel(TaskModel):
    """A head over one vector for each text, or pair of texts, as `TextPooling` says.

    Raises ValueError for another pooling.
    """

    def __init__(
        self, config: EncoderConfig, num_outputs: int, pooling: TextPooling = "pooler"
    ) -> None:
        super().__init__(config)
        if pooling not in get_args(TextPooling):
            raise ValueError(f"pooling must be pooler or mean, got {pooling!r}")
        self.pooler = Pooler(config) if pooling == "pooler" else None
        self.task_head = TaskHead(config, num_outputs)

    def head_settings(self) -> dict[str, Any]:
        return {"pooling": "mean"} if self.pooler is None else {}

    def head_layer(self) -> Linear:
        """The linear layer from the vector that the head reads to what `forward` returns."""
        return self.task_head.dense

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, outputs] of the head."""
        if self.pooler is None:
            vectors = mean_of_tokens(self.encoder(tokens, dropout_key), tokens)
        else:
            vectors = self.pooler(self.encoder(tokens, dropout_key, tokens.first_positions))
        logits: Tensor = self.task_head(vectors, dropout_key)
        return logits


class TextLabeller(TextModel):
    """Gives each text, or pair of texts, `num_labels` logits; `labels` are the classes' names.

    With `reads_windows` one that is longer than the model reads is read in windows, whose
    probabilities are averaged; else it loses its end. Raises ValueError where `labels` are not
    `num_labels` different ones.
    """

    def __init__(
        self,
        config: EncoderConfig,
        num_labels: int,
        labels: Sequence[str] | None = None,
        reads_windows: bool = False,
        pooling: TextPooling = "pooler",
    ) -> None:
        super().__init__(config, num_labels, pooling)
        self.num_labels = num_labels
        self.labels = checked_labels(num_labels, labels)
        self.reads_windows = reads_windows

    def head_settings(self) -> dict[str, Any]:
        settings = {**_named_classes(self.num_labels, self.labels), **super().head_settings()}
        return {**settings, "reads_windows": True} if self.reads_windows else settings

    has_probabilities = True

    def logit_layer(self) -> Linear:
        return self.task_head.dense


class SequenceClassifier(TextLabeller, OneOfClasses):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to."""

    head_name = "sequence_classification"


class MultiLabelClassifier(TextLabeller):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to: none, some or all.

    The loss and the accuracy count its B * C decisions, `label_exact_match` the texts all of whose
    are right.
    """

    head_name = "multi_label_classification"
    figures = ("loss", "accuracy", "exact_match")

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(answers.float(), labels, reduction="sum")

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        is_right = (answers > 0) == (batch.labels > 0.5)
        return {
            "label_accuracy": Sum(is_right.sum().float(), batch.num_labels),
            "label_exact_match": Sum(is_right.all(dim=1).sum().float(), len(batch.labels)),
        }


class _NumberModel(TextModel):
    """One number a text or a pair of texts."""

    def __init__(self, config: EncoderConfig, pooling: TextPooling = "pooler") -> None:
        super().__init__(config, 1, pooling)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B] numbers."""
        return super().forward(tokens, dropout_key).squeeze(-1)


class SequenceRegressor(_NumberModel):
    """A number for a text or a pair of texts, such as their similarity.

    The head counts in standard deviations from the mean: with `mean` and `deviation` of the
    labels, prices and years are learned as well as small numbers, and bfloat16 rounds none of them.
    """

    head_name = "regression"
    figures = ("loss",)

    def __init__(
        self,
        config: EncoderConfig,
        pooling: TextPooling = "pooler",
        mean: float = 0.0,
        deviation: float = 1.0,
    ) -> None:
        super().__init__(config, pooling)
        self.mean, self.deviation = mean, deviation

    def head_settings(self) -> dict[str, Any]:
        scale = {"mean": self.mean, "deviation": self.deviation}
        is_scaled = (self.mean, self.deviation) != (0.0, 1.0)
        return {**super().head_settings(), **(scale if is_scaled else {})}

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B] numbers, in float32."""
        return super().forward(tokens, dropout_key).float() * self.deviation + self.mean

    @torch.no_grad()
    def head_layer(self) -> Linear:
        layer = deepcopy(self.task_head.dense)
        layer.weight.mul_(self.deviation)
        layer.bias.mul_(self.deviation).add_(self.mean)
        return layer

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        return squared_error_sum(answers, labels)

    def training_loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        return self.loss_sum(answers / self.deviation, labels / self.deviation)


class MultipleChoice(_NumberModel, OneOfClasses):
    """Which of C texts fits; the batch holds the C of each question one after the other."""

    head_name = "multiple_choice"

    def answers(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        return super().answers(batch, dropout_key).view(batch.labels.numel(), -1)

    has_probabilities = True

    def logit_layer(self) -> Linear:
        return self.task_head.dense


class TokenClassifier(OneOfClasses):
    """Which of `num_labels` classes each token belongs to; raises as `TextLabeller` does."""

    head_name = "token_classification"

    def __init__(
        self, config: EncoderConfig, num_labels: int, labels: Sequence[str] | None = None
    ) -> None:
        super().__init__(config)
        self.num_labels = num_labels
        self.labels = checked_labels(num_labels, labels)
        self.task_head = TaskHead(config, num_labels)

    def head_settings(self) -> dict[str, Any]:
        return _named_classes(self.num_labels, self.labels)

    has_probabilities = True

    def logit_layer(self) -> Linear:
        return self.task_head.dense

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, C] logits, C = `num_labels`."""
        return self.task_head(self.encoder(tokens, dropout_key), dropout_key)


class SpanPredictor(TaskModel):
    """Where in a text the answer to a question begins and ends; [CLS] stands for "nowhere"."""

    head_name = "span_prediction"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.task_head = TaskHead(config, 2, dropout=0.0)

    has_probabilities = True

    def logit_layer(self) -> Linear:
        return self.task_head.dense

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, 2] logits of being the first and the last token of the answer."""
        return self.task_head(self.encoder(tokens, dropout_key), dropout_key)

    def answers(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        logits = super().answers(batch, dropout_key).float()
        return batch.tokens.padded(logits, -torch.inf)  # [B, S, 2]

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        both = sum(cross_entropy_sum(answers[..., edge], labels[:, edge]) for edge in (0, 1))
        return torch.as_tensor(both) / 2

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        exact = (answers.argmax(dim=1) == batch.labels).all(dim=1).sum()
        return {"label_accuracy": Sum(exact.float(), batch.num_labels)}


def _named_classes(num_labels: int, labels: Sequence[str] | None) -> dict[str, Any]:
    return {"num_labels": num_labels, "labels": labels and list(labels)}


SCALE = 20.0  # of cosines among which one is to be chosen (a temperature of 0.05)


class SentenceEncoder(TaskModel):
    """Texts as vectors of length 1, learned from pairs of them (Reimers and Gurevych, 2019).

    A batch holds N first texts, then N second ones, then K >= 0 more. [N] floats as labels are the
    target cosines of the pairs. With integers, among all second texts and the K more, the first
    text's own must be nearest (Henderson et al., 2017, section 4.4). They are [N] topics or [N, 2]
    numbers of first and second texts: second texts of pairs with the same topic, or the same first
    or second text, are left out.
    """

    head_name = "sentence_embedding"
    figures = ("loss",)

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.embedding = EmbeddingConfig()

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[B, D] float32: each text's hidden states, pooled as `embedding` says, of length 1."""
        how = self.embedding or EmbeddingConfig()
        return F.normalize(pooled(self, tokens, how.pooling, dropout_key), dim=-1)

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        num_pairs = len(labels)
        if len(answers) < 2 * num_pairs:
            raise ValueError(f"{num_pairs} pairs need {2 * num_pairs} texts, got {len(answers)}")
        first, second = answers[:num_pairs], answers[num_pairs:]
        if not labels.is_floating_point():
            return _choice_loss_sum(first, second, labels)
        return squared_error_sum((first * second[:num_pairs]).sum(dim=-1), labels)


def _choice_loss_sum(first: Tensor, second: Tensor, numbers: Tensor) -> Tensor:
    """Cross-entropy of choosing each first text's own second text, summed over the pairs."""
    num_pairs = len(numbers)
    numbers = numbers.view(num_pairs, -1)
    scores = SCALE * first @ second.T  # [N, N + K]
    own = torch.eye(num_pairs, dtype=torch.bool, device=numbers.device)
    is_alike = (numbers[:, None] == numbers[None, :]).any(dim=-1) & ~own
    is_alike = F.pad(is_alike, (0, len(second) - num_pairs))
    scores = scores.masked_fill(is_alike, float("-inf"))
    return F.cross_entropy(scores, torch.arange(num_pairs, device=numbers.device), reduction="sum")
