"""The encoder, its heads and the models of all tasks, in the words of the paper."""

from bert_core.model.catalogue import (
    MODELS,
    EncoderModel,
    LanguageModel,
    Model,
    MultiLabelClassifier,
    MultipleChoice,
    NextSentencePredictor,
    PretrainingModel,
    SentenceEncoder,
    SequenceClassifier,
    SequenceRegressor,
    SpanPredictor,
    TokenClassifier,
    TrainableModel,
    build_model,
    count_parameters,
)
from bert_core.model.checkpointing import checkpoint_activations
from bert_core.model.freezing import freeze
from bert_core.model.resizing import resize_positions, resize_vocabulary

__all__ = [
    "MODELS", "EncoderModel", "LanguageModel", "Model", "MultiLabelClassifier", "MultipleChoice",
    "NextSentencePredictor", "PretrainingModel", "SentenceEncoder", "SequenceClassifier",
    "SequenceRegressor",
    "SpanPredictor", "TokenClassifier", "TrainableModel", "build_model",
    "checkpoint_activations", "count_parameters", "freeze", "resize_positions", "resize_vocabulary",
]  # fmt: skip
