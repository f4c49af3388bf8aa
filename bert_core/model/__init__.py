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
from bert_core.model.preparation import (
    checkpoint_activations,
    freeze,
    resize_positions,
    resize_vocabulary,
)

__all__ = [
    "MODELS", "EncoderModel", "LanguageModel", "Model", "MultiLabelClassifier", "MultipleChoice",
    "NextSentencePredictor", "PretrainingModel", "SentenceEncoder", "SequenceClassifier",
    "SequenceRegressor",
    "SpanPredictor", "TokenClassifier", "TrainableModel", "build_model",
    "checkpoint_activations", "count_parameters", "freeze", "resize_positions", "resize_vocabulary",
]  # fmt: skip
