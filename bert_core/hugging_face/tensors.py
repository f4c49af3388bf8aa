"""What the published layout calls our settings, heads and tensors, both ways.

Tensors are renamed, split and joined: nothing is computed, so a round trip is bit-exact.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

# Ours: theirs.
CONFIG_NAMES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "causal": "is_decoder",
}
ARCHITECTURES: Final = {
    "BertModel": "encoder",
    "BertForPreTraining": "pretraining",
    "BertForMaskedLM": "pretraining",
    "BertForNextSentencePrediction": "next_sentence",
    "BertForSequenceClassification": "sequence_classification",
    "BertForTokenClassification": "token_classification",
    "BertForMultipleChoice": "multiple_choice",
    "BertForQuestionAnswering": "span_prediction",
    "BertLMHeadModel": "language_model",
}
# What the heads of a BertForSequenceClassification call their task.
PROBLEMS: Final = {
    "sequence_classification": "single_label_classification",
    "multi_label_classification": "multi_label_classification",
    "regression": "regression",
}
# Those of heads over the mean of all tokens, in a file beside the weights. The weight of these has
# a dimension more, so that no published class takes it for its own.
OWN_ARCHITECTURES: Final = {
    **dict.fromkeys(PROBLEMS, "MeanBertForSequenceClassification"),
    "multiple_choice": "MeanBertForMultipleChoice",
}
OWN_WEIGHT: Final = "classifier.weight"


def names_own_head(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is of a head over the mean that was exported here."""
    return config.get("architectures") in [[each] for each in OWN_ARCHITECTURES.values()]


# Ours: theirs.
_TENSORS: Final = {
    "encoder.embeddings.token": "bert.embeddings.word_embeddings.weight",
    "encoder.embeddings.token_type": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings.weight",
    "vocabulary_head.bias": "cls.predictions.bias",
}
_MODULES: Final = {  # with a weight and a bias
    "encoder.embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "pooler.dense": "bert.pooler.dense",
    "vocabulary_head.transform": "cls.predictions.transform.dense",
    "vocabulary_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence_head.dense": "cls.seq_relationship",
}
_LAYER_MODULES: Final = {
    "attention.to_qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.to_out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.widen": ("intermediate.dense",),
    "feed_forward.narrow": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
_LAYER: Final = re.compile(r"encoder\.layers\.(\d+)\.(.+)")


def from_hugging_face(
    tensors: Mapping[str, Tensor], names: Iterable[str], head: str
) -> dict[str, Tensor]:
    """The tensors that a model with this head calls `names`, of a checkpoint with today's names."""
    parts = {name: [tensors[theirs] for theirs in _their_names(name, head)] for name in names}
    return {name: torch.cat(each) if len(each) > 1 else each[0] for name, each in parts.items()}


def to_hugging_face(tensors: Mapping[str, Tensor], head: str | None = None) -> dict[str, Tensor]:
    """The published names for the tensors of a model with this head.

    Raises ValueError for a tensor that the published layout does not have.
    """
    published: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = _their_names(name, head)
        published.update(zip(names, tensor.chunk(len(names)), strict=True))
    return published


def _their_names(name: str, head: str | None) -> list[str]:
    """The published tensors that make up ours, in order: attention's are three there."""
    if name in _TENSORS:
        return [_TENSORS[name]]
    module, _, kind = name.rpartition(".")
    task_head = "qa_outputs" if head == "span_prediction" else "classifier"
    in_layer = _LAYER.fullmatch(module)
    if in_layer and in_layer[2] in _LAYER_MODULES:
        layer = f"bert.encoder.layer.{in_layer[1]}"
        return [f"{layer}.{part}.{kind}" for part in _LAYER_MODULES[in_layer[2]]]
    if module == "task_head.dense":
        return [f"{task_head}.{kind}"]
    if module not in _MODULES:
        raise ValueError(f"the published layout has no tensor like {name}")
    return [f"{_MODULES[module]}.{kind}"]
