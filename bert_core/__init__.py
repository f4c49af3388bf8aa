"""BERT as published, in plain PyTorch: `import bert_core as bc` reaches everything.

A name brings its module, and torch with it, when it is first asked for; the import itself brings
nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_core.backends.dropout import DropoutKey
    from bert_core.backends.operations import use_backend
    from bert_core.backends.precision import Precision
    from bert_core.batch import (
        IGNORED_LABEL,
        LabelledBatch,
        PretrainingBatch,
        RaggedBatch,
        next_token_labels,
    )
    from bert_core.config import SIZES, EmbeddingConfig, EncoderConfig, encoder_config
    from bert_core.hugging_face import export_model, import_model
    from bert_core.inference import (
        answer,
        assign_labels,
        attention_maps,
        choose,
        classify,
        complete,
        cosine_similarity,
        embed,
        fill_mask,
        nearest,
        next_sentence_probability,
        rate,
        tag,
    )
    from bert_core.masking import MaskingConfig, mask_tokens
    from bert_core.model import (
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
        checkpoint_activations,
        count_parameters,
        freeze,
        resize_positions,
        resize_vocabulary,
    )
    from bert_core.randomness import random_bits
    from bert_core.training import (
        LAMB,
        AdamW,
        GuardConfig,
        Muon,
        OptimizationConfig,
        Optimizer,
        Position,
        SkippedStepsError,
        StepReport,
        build_optimizer,
        evaluate,
        load_checkpoint,
        load_encoder_into,
        load_model,
        save_checkpoint,
        save_model,
        train,
    )
    from bert_core.vocabulary import (
        SPECIAL_PIECES,
        AddedToken,
        Normalization,
        WordPieceTokenizer,
    )

_NAMES_BY_MODULE = {
    "backends.dropout": ("DropoutKey",),
    "backends.operations": ("use_backend",),
    "backends.precision": ("Precision",),
    "batch": (
        "IGNORED_LABEL", "LabelledBatch", "PretrainingBatch", "RaggedBatch", "next_token_labels",
    ),
    "config": ("SIZES", "EmbeddingConfig", "EncoderConfig", "encoder_config"),
    "hugging_face": ("export_model", "import_model"),
    "inference": (
        "answer", "assign_labels", "attention_maps", "choose", "classify", "complete",
        "cosine_similarity", "embed", "fill_mask", "nearest", "next_sentence_probability", "rate",
        "tag",
    ),
    "masking": ("MaskingConfig", "mask_tokens"),
    "model": (
        "EncoderModel", "LanguageModel", "Model", "MultiLabelClassifier", "MultipleChoice",
        "NextSentencePredictor", "PretrainingModel", "SentenceEncoder", "SequenceClassifier",
        "SequenceRegressor", "SpanPredictor", "TokenClassifier", "TrainableModel", "build_model",
        "checkpoint_activations", "count_parameters", "freeze", "resize_positions",
        "resize_vocabulary",
    ),
    "randomness": ("random_bits",),
    "training": (
        "LAMB", "AdamW", "GuardConfig", "Muon", "OptimizationConfig", "Optimizer", "Position",
        "SkippedStepsError", "StepReport", "build_optimizer",
        "evaluate", "load_checkpoint", "load_encoder_into", "load_model", "save_checkpoint",
        "save_model", "train",
    ),
    "vocabulary": ("SPECIAL_PIECES", "AddedToken", "Normalization", "WordPieceTokenizer"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = [
    "IGNORED_LABEL", "LAMB", "SIZES", "SPECIAL_PIECES", "AdamW", "AddedToken", "DropoutKey",
    "EmbeddingConfig", "EncoderConfig",
    "EncoderModel", "GuardConfig", "LabelledBatch", "LanguageModel", "MaskingConfig", "Model",
    "MultiLabelClassifier", "MultipleChoice", "Muon", "NextSentencePredictor",
    "Normalization", "OptimizationConfig", "Optimizer", "Position",
    "Precision", "PretrainingBatch", "PretrainingModel", "RaggedBatch", "SentenceEncoder",
    "SequenceClassifier",
    "SequenceRegressor", "SkippedStepsError", "SpanPredictor", "StepReport",
    "TokenClassifier", "TrainableModel", "WordPieceTokenizer", "answer", "assign_labels",
    "attention_maps", "build_model", "build_optimizer", "checkpoint_activations",
    "choose", "classify", "complete", "cosine_similarity", "count_parameters", "embed",
    "encoder_config", "evaluate", "export_model", "fill_mask", "freeze", "import_model",
    "load_checkpoint", "load_encoder_into", "load_model", "mask_tokens", "nearest",
    "next_sentence_probability", "next_token_labels", "random_bits", "rate", "resize_positions",
    "resize_vocabulary", "save_checkpoint", "save_model", "tag", "train",
    "use_backend",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker would take any name from it

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
        globals()[name] = value  # asked for once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
