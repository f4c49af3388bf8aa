"""An encoder with a head for each task of the BERT paper.

Every model maps a `RaggedBatch` to logits when called; `loss_sums(batch, keys)` gives the sum and
the count of each of its losses, and `evaluation_sums(batch)` those of its losses and accuracies,
which add up over batches and ranks to exact figures. Dropout happens where `keys` are given.
"""

from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.dropout import DropoutKeys
from bert_core.encoder import Encoder
from bert_core.heads import Pooler, TaskHead, VocabularyHead
from bert_core.losses import cross_entropy_sum, num_correct, pad_sequences, squared_error_sum


class Sum(NamedTuple):
    """A sum over `num_items` items; their quotient is the figure."""

    total: Tensor  # [] float32
    num_items: int


Sums = dict[str, Sum]


class Model(nn.Module):
    """What all models promise; each says its head's name and the names of its losses."""

    head_name: ClassVar[str]
    loss_names: tuple[str, ...] = ("label",)

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)

    def head_settings(self) -> dict[str, Any]:
        """What beside the encoder's config is needed to build this model again."""
        return {}

    @abstractmethod
    def loss_sums(self, batch: Any, keys: DropoutKeys | None = None) -> Sums:
        """Each loss of `batch`, summed over the items it counts."""

    @abstractmethod
    def evaluation_sums(self, batch: Any) -> Sums:
        """Losses (`<name>_loss`) and correct answers (`<name>_accuracy`) without gradients."""


class PretrainingModel(Model):
    """Masked language modelling and, unless switched off, next sentence prediction."""

    head_name = "pretraining"

    def __init__(self, config: EncoderConfig, next_sentence: bool = True) -> None:
        super().__init__(config)
        self.next_sentence = next_sentence
        self.loss_names = ("mlm", "nsp") if next_sentence else ("mlm",)
        self.vocabulary_head = VocabularyHead(config)
        if next_sentence:
            self.pooler = Pooler(config)
            self.next_sentence_head = TaskHead(config, 2)
            self.next_sentence_head.dropout = 0.0  # as published

    def head_settings(self) -> dict[str, Any]:
        return {"next_sentence": self.next_sentence}

    def forward(
        self, tokens: RaggedBatch, positions: Tensor, keys: DropoutKeys | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[M, V] vocabulary logits at `positions` of the T tokens, and [B, 2] NSP logits."""
        hidden = self.encoder(tokens, keys)
        embeddings = self.encoder.embeddings.computed("token")
        vocabulary_logits = self.vocabulary_head(hidden[positions], embeddings)
        if not self.next_sentence:
            return vocabulary_logits, None
        return vocabulary_logits, self.next_sentence_head(self.pooler(hidden, tokens), keys)

    def loss_sums(self, batch: PretrainingBatch, keys: DropoutKeys | None = None) -> Sums:
        mlm_logits, nsp_logits = self._logits(batch, keys)
        counts = batch.counts
        sums = {"mlm": Sum(cross_entropy_sum(mlm_logits, batch.masked_labels), counts["mlm"])}
        if nsp_logits is not None:
            labels = batch.next_sentence_labels
            assert labels is not None
            sums["nsp"] = Sum(cross_entropy_sum(nsp_logits, labels), counts["nsp"])
        return sums

    @torch.no_grad()
    def evaluation_sums(self, batch: PretrainingBatch) -> Sums:
        mlm_logits, nsp_logits = self._logits(batch, None)
        sums = _classification_sums("mlm", mlm_logits, batch.masked_labels, batch.counts["mlm"])
        if nsp_logits is not None:
            labels = batch.next_sentence_labels
            assert labels is not None
            sums |= _classification_sums("nsp", nsp_logits, labels, batch.counts["nsp"])
        return sums

    def _logits(
        self, batch: PretrainingBatch, keys: DropoutKeys | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.next_sentence and batch.next_sentence_labels is None:
            raise ValueError(
                "a model with next sentence prediction needs next_sentence_labels in its batch, "
                "got none; build the model with next_sentence=False or the examples with pairs"
            )
        return self(batch.tokens, batch.masked_positions, keys)


class LanguageModel(Model):
    """Predict the next token of each from what stands left of it; its encoder must be causal."""

    head_name = "language_model"

    def __init__(self, config: EncoderConfig) -> None:
        if not config.causal:
            raise ValueError(
                "a language model needs a causal encoder, got causal=False: it would see the "
                "token it has to predict"
            )
        super().__init__(config)
        self.vocabulary_head = VocabularyHead(config)

    def forward(
        self, tokens: RaggedBatch, positions: Tensor, keys: DropoutKeys | None = None
    ) -> Tensor:
        """[M, V] logits of the token that follows each of `positions` among the T tokens."""
        hidden = self.encoder(tokens, keys)[positions]
        return self.vocabulary_head(hidden, self.encoder.embeddings.computed("token"))

    def loss_sums(self, batch: LabelledBatch, keys: DropoutKeys | None = None) -> Sums:
        positions = torch.arange(batch.tokens.num_tokens, device=batch.labels.device)
        logits = self(batch.tokens, positions, keys)
        return {"label": Sum(cross_entropy_sum(logits, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        positions = torch.arange(batch.tokens.num_tokens, device=batch.labels.device)
        logits = self(batch.tokens, positions)
        return _classification_sums("label", logits, batch.labels, batch.num_labels)


class TaskModel(Model):
    """A model that is fine-tuned on labels; classification unless a task says otherwise."""

    def loss_sums(self, batch: LabelledBatch, keys: DropoutKeys | None = None) -> Sums:
        logits = self(batch.tokens, keys)
        return {"label": Sum(cross_entropy_sum(logits, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        logits = self(batch.tokens)
        return _classification_sums("label", logits, batch.labels, batch.num_labels)


class SequenceClassifier(TaskModel):
    """Which of `num_labels` classes a text, or a pair of texts, belongs to."""

    head_name = "sequence_classification"

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__(config)
        self.num_labels = num_labels
        self.pooler = Pooler(config)
        self.task_head = TaskHead(config, num_labels)

    def head_settings(self) -> dict[str, Any]:
        return {"num_labels": self.num_labels}

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[B, num_labels] logits."""
        return self.task_head(self.pooler(self.encoder(tokens, keys), tokens), keys)


class SequenceRegressor(TaskModel):
    """A number for a text or a pair of texts, such as their similarity."""

    head_name = "regression"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)
        self.task_head = TaskHead(config, 1)

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[B] numbers."""
        return self.task_head(self.pooler(self.encoder(tokens, keys), tokens), keys).squeeze(-1)

    def loss_sums(self, batch: LabelledBatch, keys: DropoutKeys | None = None) -> Sums:
        predictions = self(batch.tokens, keys)
        return {"label": Sum(squared_error_sum(predictions, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        return {"label_loss": self.loss_sums(batch)["label"]}


class MultipleChoice(TaskModel):
    """Which of C texts fits; the batch holds the C of each question one after the other."""

    head_name = "multiple_choice"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.pooler = Pooler(config)
        self.task_head = TaskHead(config, 1)

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[B] one score per text."""
        return self.task_head(self.pooler(self.encoder(tokens, keys), tokens), keys).squeeze(-1)

    def loss_sums(self, batch: LabelledBatch, keys: DropoutKeys | None = None) -> Sums:
        logits = _by_question(self(batch.tokens, keys), batch)
        return {"label": Sum(cross_entropy_sum(logits, batch.labels), batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        logits = _by_question(self(batch.tokens), batch)
        return _classification_sums("label", logits, batch.labels, batch.num_labels)


class TokenClassifier(TaskModel):
    """Which of `num_labels` classes each token belongs to, such as the parts of names."""

    head_name = "token_classification"

    def __init__(self, config: EncoderConfig, num_labels: int) -> None:
        super().__init__(config)
        self.num_labels = num_labels
        self.task_head = TaskHead(config, num_labels)

    def head_settings(self) -> dict[str, Any]:
        return {"num_labels": self.num_labels}

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[T, num_labels] logits."""
        return self.task_head(self.encoder(tokens, keys), keys)


class SpanPredictor(TaskModel):
    """Where in a text the answer to a question begins and ends; [CLS] stands for "nowhere"."""

    head_name = "span_prediction"

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.task_head = TaskHead(config, 2)
        self.task_head.dropout = 0.0  # as published

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[T, 2] logits of being the first and the last token of the answer."""
        return self.task_head(self.encoder(tokens, keys), keys)

    def loss_sums(self, batch: LabelledBatch, keys: DropoutKeys | None = None) -> Sums:
        padded = self._padded(batch, keys)
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

    def _padded(self, batch: LabelledBatch, keys: DropoutKeys | None) -> Tensor:
        logits = self(batch.tokens, keys).float()
        return pad_sequences(logits, batch.tokens.lengths, -torch.inf)  # [B, S, 2]


MODELS: dict[str, type[Model]] = {
    model.head_name: model
    for model in (
        PretrainingModel,
        LanguageModel,
        SequenceClassifier,
        SequenceRegressor,
        MultipleChoice,
        TokenClassifier,
        SpanPredictor,
    )
}


def build_model(head_name: str, config: EncoderConfig, **settings: Any) -> Model:
    """The model with the head of this name, with random weights from torch's generator."""
    if head_name not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head_name!r}")
    return MODELS[head_name](config, **settings)


def count_parameters(model: nn.Module) -> int:
    """How many numbers training may change."""
    return sum(parameter.numel() for parameter in model.parameters())


def _classification_sums(name: str, logits: Tensor, labels: Tensor, count: int) -> Sums:
    return {
        f"{name}_loss": Sum(cross_entropy_sum(logits, labels), count),
        f"{name}_accuracy": Sum(num_correct(logits, labels).float(), count),
    }


def _by_question(scores: Tensor, batch: LabelledBatch) -> Tensor:
    num_questions = batch.labels.numel()
    if num_questions == 0 or scores.numel() % num_questions:
        raise ValueError(
            "a batch of multiple choice must hold the same number of choices for each question, "
            f"got {scores.numel()} texts for {num_questions} questions"
        )
    return scores.view(num_questions, -1)
