"""What the published layout calls our settings, heads and tensors, both ways.

Tensors are renamed, split and joined: nothing is computed, so a round trip is bit-exact.
"""

from collections.abc import Iterable, Mapping
from typing import Final

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
    "positions": "positions",  # not known there; its tables are written as learned ones
}
# Architectures whose tensors do not tell their task.
TASKS: Final = {
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

# Ours: theirs.
_TENSORS: Final = {
    "encoder.embeddings.token": "bert.embeddings.word_embeddings.weight",
    "encoder.embeddings.token_type": "bert.embeddings.token_type_embeddings.weight",
    "encoder.embeddings.position": "bert.embeddings.position_embeddings.weight",
    "encoder.embeddings.layer_norm.weight": "bert.embeddings.LayerNorm.weight",
    "encoder.embeddings.layer_norm.bias": "bert.embeddings.LayerNorm.bias",
    "vocabulary_head.bias": "cls.predictions.bias",
}
_MODULES: Final = {  # with a weight and a bias
    "pooler.dense": "bert.pooler.dense",
    "vocabulary_head.transform": "cls.predictions.transform.dense",
    "vocabulary_head.layer_norm": "cls.predictions.transform.LayerNorm",
    "next_sentence_head.dense": "cls.seq_relationship",
}
_LAYER_MODULES: Final = {
    "attention.to_out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.widen": "intermediate.dense",
    "feed_forward.narrow": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
_TASK_HEADS: Final = ("classifier", "qa_outputs")
_PARTS: Final = ("query", "key", "value")
# Copies of other tensors and fixed tables, which carry nothing of their own.
REDUNDANT: Final = (
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "bert.embeddings.position_ids",
    "bert.embeddings.token_type_ids",
)


def from_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names for the tensors of a BERT checkpoint; names that are not BERT's stay as they are.

    Takes the names of today and the old `gamma` and `beta`, with and without the `bert.` prefix.
    Raises ValueError for a decoder that is not the embedding matrix itself (ours is tied, as
    published), and for an attention of which a part is missing.
    """
    theirs = {modern_name(name): tensor for name, tensor in tensors.items()}
    _check_tied(theirs)
    layers = layers_in(theirs, "bert.encoder.layer.")
    ours_of = {
        their_name: our_name
        for task_head in _TASK_HEADS
        for our_name, their_name in _names(layers, task_head).items()
    }
    attention = {
        f"{_self_attention(layer)}.{part}.{kind}"
        for layer in layers for part in _PARTS for kind in ("weight", "bias")
    }  # fmt: skip
    ours = {
        ours_of.get(name, name): tensor
        for name, tensor in theirs.items()
        if name not in REDUNDANT and name not in attention
    }
    for layer in layers_in(attention.intersection(theirs), "bert.encoder.layer."):
        for kind in ("weight", "bias"):
            parts = [f"{_self_attention(layer)}.{part}.{kind}" for part in _PARTS]
            missing = [part for part in parts if part not in theirs]
            if missing:
                raise ValueError(f"the checkpoint has no {', '.join(missing)}")
            ours[f"encoder.layers.{layer}.attention.to_qkv.{kind}"] = torch.cat(
                [theirs[part] for part in parts]
            )
    return ours


def to_hugging_face(tensors: Mapping[str, Tensor], head: str | None = None) -> dict[str, Tensor]:
    """The published names for the tensors of a model with this head.

    Raises ValueError for a tensor that the published layout does not have.
    """
    task_head = "qa_outputs" if head == "span_prediction" else "classifier"
    names = _names(layers_in(tensors, "encoder.layers."), task_head)
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if name in names:
            result[names[name]] = tensor
        elif module.endswith(".attention.to_qkv"):
            layer = module.removeprefix("encoder.layers.").split(".")[0]
            for part, third in zip(_PARTS, tensor.chunk(3), strict=True):
                result[f"{_self_attention(layer)}.{part}.{kind}"] = third
        else:
            raise ValueError(f"the published layout has no tensor like {name}")
    return result


def modern_name(name: str) -> str:
    """Today's name of a tensor: `weight` and `bias` in normalizations, and the prefix."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(("embeddings.", "encoder.layer.", "pooler.")):
        return f"bert.{name}"
    return name


def layers_in(names: Iterable[str], start: str) -> list[str]:
    """The numbers of layers among names that begin with `start`, such as `encoder.layers.`."""
    return sorted({n.removeprefix(start).split(".")[0] for n in names if n.startswith(start)})


def _names(layers: Iterable[str], task_head: str) -> dict[str, str]:
    """Ours: theirs, of all tensors but those of attention, which are three there."""
    modules = {**_MODULES, "task_head.dense": task_head}
    for layer in layers:
        for ours, theirs in _LAYER_MODULES.items():
            modules[f"encoder.layers.{layer}.{ours}"] = f"bert.encoder.layer.{layer}.{theirs}"
    both = {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }
    return {**_TENSORS, **both}


def _self_attention(layer: str) -> str:
    return f"bert.encoder.layer.{layer}.attention.self"


def _check_tied(theirs: Mapping[str, Tensor]) -> None:
    for copy, original in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if copy in theirs and original in theirs and not theirs[copy].equal(theirs[original]):
            raise ValueError(
                f"{copy} must equal {original} (a tied decoder, as published), found it different"
            )
