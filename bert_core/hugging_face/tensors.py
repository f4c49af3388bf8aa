"""Names of the tensors, ours and those of the published Hugging Face layout, both ways.

Pure functions over dictionaries of tensors: nothing is computed, so a round trip is bit-exact.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

_PREFIX: Final = "bert."

_EMBEDDINGS: Final = {
    "embeddings.word_embeddings.weight": "encoder.embeddings.token",
    "embeddings.token_type_embeddings.weight": "encoder.embeddings.token_type",
    "embeddings.position_embeddings.weight": "encoder.embeddings.position",
    "embeddings.LayerNorm.weight": "encoder.embeddings.layer_norm.weight",
    "embeddings.LayerNorm.bias": "encoder.embeddings.layer_norm.bias",
}
_LAYER: Final = {  # modules with a weight and a bias
    "attention.output.dense": "attention.to_out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feed_forward.widen",
    "output.dense": "feed_forward.narrow",
    "output.LayerNorm": "feed_forward_norm",
}
_HEADS: Final = {  # modules with a weight and a bias
    "bert.pooler.dense": "pooler.dense",
    "cls.predictions.transform.dense": "vocabulary_head.transform",
    "cls.predictions.transform.LayerNorm": "vocabulary_head.layer_norm",
    "cls.seq_relationship": "next_sentence_head.dense",
    "classifier": "task_head.dense",
    "qa_outputs": "task_head.dense",
}
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
    names = _their_to_our_names(theirs)
    ours = {
        names.get(name, name): tensor
        for name, tensor in theirs.items()
        if name not in REDUNDANT and not _is_attention_part(name)
    }
    for layer in _layers_with_parts(theirs):
        for kind in ("weight", "bias"):
            parts = [f"{_self_attention(layer)}.{part}.{kind}" for part in _PARTS]
            missing = [part for part in parts if part not in theirs]
            if missing:
                raise ValueError(f"the checkpoint must hold {', '.join(missing)}, found no such")
            ours[f"encoder.layers.{layer}.attention.to_qkv.{kind}"] = torch.cat(
                [theirs[part] for part in parts]
            )
    return ours


def to_hugging_face(
    tensors: Mapping[str, Tensor], *, task_head: str = "classifier"
) -> dict[str, Tensor]:
    """The published names for a model's tensors; `task_head` is that of the task's module.

    Raises ValueError for a tensor that the published layout does not have.
    """
    modules = {ours: theirs for theirs, ours in _HEADS.items() if theirs != "qa_outputs"}
    modules["task_head.dense"] = task_head
    names = {ours: _PREFIX + theirs for theirs, ours in _EMBEDDINGS.items()}
    names["vocabulary_head.bias"] = "cls.predictions.bias"
    layer_modules = {ours: theirs for theirs, ours in _LAYER.items()}
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if name in names:
            result[names[name]] = tensor
        elif module in modules:
            result[f"{modules[module]}.{kind}"] = tensor
        elif name.startswith("encoder.layers."):
            layer, _, rest = module.removeprefix("encoder.layers.").partition(".")
            if rest == "attention.to_qkv":
                for part, third in zip(_PARTS, tensor.chunk(3), strict=True):
                    result[f"{_self_attention(layer)}.{part}.{kind}"] = third
            else:
                theirs = f"{_PREFIX}encoder.layer.{layer}.{layer_modules[rest]}.{kind}"
                result[theirs] = tensor
        else:
            raise ValueError(f"the published layout has no tensor like {name}")
    return result


def modern_name(name: str) -> str:
    """Today's name of a tensor: `weight` and `bias` in normalizations, and the prefix."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        if name.endswith(old):
            name = name.removesuffix(old) + new
    if name.startswith(("embeddings.", "encoder.layer.", "pooler.")):
        return _PREFIX + name
    return name


def _their_to_our_names(theirs: Iterable[str]) -> dict[str, str]:
    names = {_PREFIX + name: ours for name, ours in _EMBEDDINGS.items()}
    names["cls.predictions.bias"] = "vocabulary_head.bias"
    modules = dict(_HEADS)
    for layer in _layers(theirs):
        for module, ours in _LAYER.items():
            modules[f"{_PREFIX}encoder.layer.{layer}.{module}"] = f"encoder.layers.{layer}.{ours}"
    for module, ours in modules.items():
        for kind in ("weight", "bias"):
            names[f"{module}.{kind}"] = f"{ours}.{kind}"
    return names


def _layers(names: Iterable[str]) -> list[str]:
    start = f"{_PREFIX}encoder.layer."
    return sorted({n.removeprefix(start).split(".")[0] for n in names if n.startswith(start)})


def _layers_with_parts(names: Iterable[str]) -> list[str]:
    return _layers(name for name in names if _is_attention_part(name))


def _self_attention(layer: str) -> str:
    return f"{_PREFIX}encoder.layer.{layer}.attention.self"


def _is_attention_part(name: str) -> bool:
    module, _, kind = name.rpartition(".")
    return kind in ("weight", "bias") and module.endswith(
        tuple(f".attention.self.{part}" for part in _PARTS)
    )


def _check_tied(theirs: Mapping[str, Tensor]) -> None:
    for copy, original in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if copy in theirs and original in theirs and not theirs[copy].equal(theirs[original]):
            raise ValueError(
                f"{copy} must equal {original} (a tied decoder, as published), found it different"
            )
