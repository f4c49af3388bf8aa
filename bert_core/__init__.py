"""BERT as published, in plain PyTorch: `import bert_core as bc` reaches everything.

A name brings its module, and torch with it, when it is first asked for (PEP 562); the import itself
brings nothing.
"""

from importlib import import_module
from typing import Any, Final

_NAMES: Final = {  # by the module that defines them
    "backends.dropout": "DropoutKey",
    "backends.operations": "use_backend",
    "backends.context": "Precision",
    "batch": (
        "IGNORED_LABEL LabelledBatch PretrainingBatch RaggedBatch RowBatch next_token_labels"
    ),
    "config": "SIZES EmbeddingConfig EncoderConfig encoder_config",
    "hugging_face": "export_model import_model",
    "inference.answers": "answer assign_labels choose classify rate tag",
    "inference.pretrained": (
        "attention_maps complete cosine_similarity embed fill_mask next_sentence_probability"
    ),
    "masking": "MaskingConfig mask_tokens",
    "model.catalogue": (
        "EncoderModel LanguageModel Model MultiLabelClassifier MultipleChoice "
        "NextSentencePredictor PretrainingModel SentenceEncoder SequenceClassifier "
        "SequenceRegressor SpanPredictor TokenClassifier TrainableModel build_model "
        "count_parameters"
    ),
    "model.encoder": "TaskHead",
    "model.trainable": "mean_of_tokens",
    "model.preparation": "freeze resize_positions resize_vocabulary",
    "model.rows": "RowModel row_model",
    "randomness": "random_bits",
    "training.guard": "GuardConfig SkippedStepsError",
    "training.loop": "StepReport evaluate train",
    "training.optimization": "LAMB AdamW Muon build_optimizer",
    "training.optimizer": "OptimizationConfig Optimizer",
    "training.state": (
        "Position load_checkpoint load_encoder_into load_model save_checkpoint save_model"
    ),
    "vocabulary": "SPECIAL_TOKENS Normalization WordPieceTokenizer",
}
_MODULE_OF: Final = {
    name: f"bert_core.{module}" for module, names in _NAMES.items() for name in names.split()
}
__all__ = tuple(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
