"""All models, by the name of their head.

Heads: `encoder` (none but the pooler), `pretraining`, `language_model`, `next_sentence`,
`sequence_classification`, `multi_label_classification`, `regression`, `multiple_choice`,
`token_classification`, `span_prediction` and `sentence_embedding`. A user-defined head is a class
in a separate file: see `bert_core.model.rows`.
"""

from typing import Any

from torch import Tensor, nn

from bert_core.backends.dropout import DropoutKey
from bert_core.config import EncoderConfig
from bert_core.model.encoder import Pooler
from bert_core.model.language_models import LanguageModel, PretrainingModel
from bert_core.model.sentence_encoder import SentenceEncoder
from bert_core.model.task_models import (
    MultiLabelClassifier,
    MultipleChoice,
    NextSentencePredictor,
    SequenceClassifier,
    SequenceRegressor,
    SpanPredictor,
    TaskModel,
    TokenClassifier,
)
from bert_core.model.trainable import Model, Sum, Sums, TrainableModel
from bert_core.ragged import RaggedBatch

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
    """The model with the head of this name, with random weights from torch's generator.

    Raises ValueError for another name, or settings that are impossible.
    """
    if head_name not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head_name!r}")
    return MODELS[head_name](config, **settings)


def described(head_name: str) -> str:
    """A model with this head as a sentence calls it: `an encoder model`."""
    return f"{'an' if head_name[:1] in 'aeiou' else 'a'} {head_name} model"


def count_parameters(model: nn.Module) -> int:
    """The number of parameters of a model, frozen ones included."""
    return sum(parameter.numel() for parameter in model.parameters())
