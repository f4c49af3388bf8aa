"""BERT as published, in plain PyTorch: `import bert_core as bc` reaches everything.

A name brings its module, and torch with it, when it is first asked for; the import itself brings
nothing.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert_core.backends.dropout import DropoutKey
    from bert_core.backends.operations import use_backend
    from bert_core.backends.precision import Precision
    from bert_core.batch import (
        IGNORED_LABEL,
        LabelledBatch,
        PretrainingBatch,
        RowBatch,
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
    from bert_core.model.catalogue import (
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
    from bert_core.model.encoder import TaskHead
    from bert_core.model.pooling import mean_of_tokens
    from bert_core.model.preparation import (
        checkpoint_activations,
        freeze,
        resize_positions,
        resize_vocabulary,
    )
    from bert_core.model.rows import RowModel, row_model
    from bert_core.ragged import RaggedBatch
    from bert_core.randomness import random_bits
    from bert_core.training.evaluation import evaluate
    from bert_core.training.guard import GuardConfig, SkippedStepsError
    from bert_core.training.initialization import load_encoder_into
    from bert_core.training.loop import train
    from bert_core.training.optimization import LAMB, AdamW, Muon, build_optimizer
    from bert_core.training.optimizer import Optimizer
    from bert_core.training.optimizer_settings import OptimizationConfig
    from bert_core.training.state import (
        Position,
        load_checkpoint,
        load_model,
        save_checkpoint,
        save_model,
    )
    from bert_core.training.step import StepReport
    from bert_core.vocabulary import (
        SPECIAL_TOKENS,
        AddedToken,
        Normalization,
        WordPieceTokenizer,
    )


def _modules_of_names() -> dict[str, str]:
    """Where each public name comes from: what is imported above, for a type checker alone."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (listed,) = (node for node in tree.body if ast.unparse(node).startswith("if TYPE_CHECKING:"))
    imports = (node for node in ast.walk(listed) if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULE_OF = _modules_of_names()
__all__ = tuple(_MODULE_OF)


if not TYPE_CHECKING:  # a type checker would take any name from it

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value  # asked for once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
