"""Models that predict tokens: the two pretraining tasks of BERT, and the language model."""

from typing import Any

import torch
from torch import Tensor

from bert_core.batch import LabelledBatch, PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.dropout import DropoutKeys
from bert_core.heads import Pooler, TaskHead, VocabularyHead
from bert_core.losses import cross_entropy_sum
from bert_core.model import Sum, Sums, TrainableModel, classification_sums


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
        sums = classification_sums("mlm", mlm_logits, batch.masked_labels, batch.counts["mlm"])
        if nsp_logits is not None:
            labels = batch.next_sentence_labels
            assert labels is not None
            sums |= classification_sums("nsp", nsp_logits, labels, batch.counts["nsp"])
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


class LanguageModel(TrainableModel):
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
        return classification_sums("label", logits, batch.labels, batch.num_labels)
