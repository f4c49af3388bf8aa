"""The encoder alone and the models that predict tokens; all models, by the name of their head.

A user-defined head is a class in a separate file: see `bert_core.model.rows`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.model.encoder import Pooler, TaskHead, VocabularyHead, cross_entropy_sum, num_correct
from bert_core.model.task_models import (
    MultiLabelClassifier,
    MultipleChoice,
    NextSentencePredictor,
    SentenceEncoder,
    SequenceClassifier,
    SequenceRegressor,
    SpanPredictor,
    TaskModel,
    TokenClassifier,
)
from bert_core.model.trainable import Model, Sum, Sums, TrainableModel


def _classification_sums(name: str, logits: Tensor, labels: Tensor, count: int) -> Sums:
    """Loss and number of correct answers of `logits` [N, C] for `labels` [N]."""
    return {
        f"{name}_loss": Sum(cross_entropy_sum(logits, labels), count),
        f"{name}_accuracy": Sum(num_correct(logits, labels).float(), count),
    }


class PretrainingModel(TrainableModel):
    """Masked language modelling and, unless switched off, next sentence prediction."""

    head_name = "pretraining"

    def __init__(self, config: EncoderConfig, next_sentence: bool = True) -> None:
        super().__init__(config)
        self.next_sentence = next_sentence
        self.loss_names = ("mlm", "nsp") if next_sentence else ("mlm",)
        self.vocabulary_head = VocabularyHead(config)
        if next_sentence:
            self.pooler = Pooler(config)
            self.next_sentence_head = TaskHead(config, 2, dropout=0.0)

    def head_settings(self) -> dict[str, Any]:
        return {"next_sentence": self.next_sentence}

    def forward(
        self, tokens: RaggedBatch, positions: Tensor, dropout_key: DropoutKey | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[M, V] vocabulary logits at `positions` of the T tokens, and [B, 2] NSP logits."""
        masked, next_sentence_logits = self._read(tokens, positions, dropout_key)
        return self.vocabulary_head(masked, self.encoder.embeddings), next_sentence_logits

    def loss_sums(self, batch: PretrainingBatch, dropout_key: DropoutKey | None = None) -> Sums:
        masked, nsp_logits = self._read(batch.tokens, batch.masked_positions, dropout_key)
        embeddings = self.encoder.embeddings
        loss = self.vocabulary_head.loss_sum(masked, embeddings, batch.masked_labels)
        sums = {"mlm": Sum(loss, batch.counts["mlm"])}
        if nsp_logits is not None:
            assert batch.next_sentence_labels is not None, "examples of pairs have labels"
            loss = cross_entropy_sum(nsp_logits, batch.next_sentence_labels)
            sums["nsp"] = Sum(loss, batch.counts["nsp"])
        return sums

    @torch.no_grad()
    def evaluation_sums(self, batch: PretrainingBatch) -> Sums:
        mlm_logits, nsp_logits = self(batch.tokens, batch.masked_positions)
        sums = _classification_sums("mlm", mlm_logits, batch.masked_labels, batch.counts["mlm"])
        if nsp_logits is not None:
            labels = batch.next_sentence_labels
            assert labels is not None, "examples of pairs have labels"
            sums |= _classification_sums("nsp", nsp_logits, labels, batch.counts["nsp"])
        return sums

    def _read(
        self, tokens: RaggedBatch, positions: Tensor, dropout_key: DropoutKey | None
    ) -> tuple[Tensor, Tensor | None]:
        """[M, D] the hidden states at `positions`, and [B, 2] NSP logits."""
        if not self.next_sentence:
            return self.encoder(tokens, dropout_key, positions), None
        hidden = self.encoder(tokens, dropout_key, torch.cat((tokens.first_positions, positions)))
        first, masked = hidden.tensor_split((tokens.num_sequences,))
        return masked, self.next_sentence_head(self.pooler(first), dropout_key)


class LanguageModel(TrainableModel):
    """Predict the token after each from it and those left of it.

    Raises ValueError unless the encoder is causal.
    """

    head_name = "language_model"

    def __init__(self, config: EncoderConfig) -> None:
        if not config.causal:
            raise ValueError("a language model needs a causal encoder, got causal=False")
        super().__init__(config)
        self.vocabulary_head = VocabularyHead(config)

    def forward(
        self, tokens: RaggedBatch, positions: Tensor, dropout_key: DropoutKey | None = None
    ) -> Tensor:
        """[M, V] logits of the token that follows each of `positions` among the T tokens."""
        hidden = self.encoder(tokens, dropout_key, positions)
        return self.vocabulary_head(hidden, self.encoder.embeddings)

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        hidden = self.encoder(batch.tokens, dropout_key)
        loss = self.vocabulary_head.loss_sum(hidden, self.encoder.embeddings, batch.labels)
        return {"label": Sum(loss, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        positions = torch.arange(batch.tokens.num_tokens, device=batch.labels.device)
        logits = self(batch.tokens, positions)
        return _classification_sums("label", logits, batch.labels, batch.num_labels)


__all__ = [
    "MODELS", "EncoderModel", "LanguageModel", "Model", "MultiLabelClassifier", "MultipleChoice",
    "NextSentencePredictor", "PretrainingModel", "SentenceEncoder", "SequenceClassifier",
    "SequenceRegressor",
    "SpanPredictor", "Sum", "Sums", "TaskModel", "TokenClassifier", "TrainableModel", "build_model",
    "count_parameters",
]  # fmt: skip


class EncoderModel(Model):
    """The encoder alone, with or without its pooler: what embeddings are made with."""

    head_name = "encoder"

    def __init__(self, config: EncoderConfig, pooler: bool = True) -> None:
        super().__init__(config)
        self.pooler = Pooler(config) if pooler else None

    def head_settings(self) -> dict[str, Any]:
        return {"pooler": self.pooler is not None}

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """[T, D] the final hidden states."""
        return self.encoder(tokens, dropout_key)


MODELS: dict[str, type[Model]] = {
    model.head_name: model
    for model in (
        EncoderModel,
        PretrainingModel,
        LanguageModel,
        NextSentencePredictor,
        SequenceClassifier,
        MultiLabelClassifier,
        SequenceRegressor,
        MultipleChoice,
        TokenClassifier,
        SpanPredictor,
        SentenceEncoder,
    )
}


def build_model(head_name: str, config: EncoderConfig, **settings: Any) -> Model:
    """The model with the head of this name and random weights; raises ValueError for another."""
    if head_name not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head_name!r}")
    return MODELS[head_name](config, **settings)


def described(head_name: str) -> str:
    """A model with this head as a sentence calls it: `an encoder model`."""
    return f"{'an' if head_name[:1] in 'aeiou' else 'a'} {head_name} model"


def count_parameters(model: nn.Module) -> int:
    """The number of parameters of a model, frozen ones included."""
    return sum(parameter.numel() for parameter in model.parameters())
