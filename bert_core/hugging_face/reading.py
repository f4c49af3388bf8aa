"""Read a Hugging Face BERT directory, with every tensor accounted for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.files import entry, listed, read_json, read_tensors
from bert_core.hugging_face.sentence_transformers import model_folder, read_embedding
from bert_core.hugging_face.tensors import (
    ARCHITECTURES,
    CONFIG_NAMES,
    OWN_ARCHITECTURES,
    OWN_WEIGHT,
    PROBLEMS,
    from_hugging_face,
    names_own_head,
    to_hugging_face,
)
from bert_core.model.catalogue import MODELS, Model, build_model

# Raise where the same files would give another model or other tokens than before.
READING_VERSION: Final = 5
_PUBLISHED: Final = {
    "hidden_act": "gelu", "position_embedding_type": "absolute", "add_cross_attention": False,
}  # fmt: skip
_PREDICTIONS: Final = "cls.predictions.bias"
_NEXT_SENTENCE: Final = "cls.seq_relationship.weight"
_LABELLED: Final = (
    "sequence_classification", "multi_label_classification", "token_classification",
)  # fmt: skip
# Copies of other tensors, which must be equal to them, and fixed tables.
_COPIES: Final = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": _PREDICTIONS,
}
_FIXED: Final = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
_OTHER_HEADS: Final = "name the head encoder to read the encoder alone"


def import_model(directory: Path | str, head: str | None = None) -> Model:
    """The model in a Hugging Face BERT directory, with every tensor accounted for.

    The head is read from the checkpoint; `is_decoder` makes a causal encoder under any head. Of
    sentence-transformers' folders the model's `embedding` says how they make vectors. Naming a
    `head` keeps that one alone and leaves the tensors of others behind. Raises ValueError, naming
    the file, for one that is broken, for another architecture or task than ours, and for missing or
    unexpected tensors, listing them.
    """
    if head is not None and head not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head!r}")
    folder = model_folder(directory)
    path = folder / "config.json"
    config = read_json(path)
    _check_architecture(config, path)
    tensors = _read_weights(folder)
    if names_own_head(config) and OWN_WEIGHT in tensors:
        weight = tensors[OWN_WEIGHT]
        if weight.dim() != 3 or len(weight) != 1:
            raise ValueError(
                f"{path.parent} must have {OWN_WEIGHT} of [1, classes, size], found "
                f"{list(weight.shape)}"
            )
        tensors[OWN_WEIGHT] = weight[0]
    kept = head or _head_of(config, tensors, path)
    settings = _settings_of(kept, config, tensors, path)
    if names_own_head(config) and kept in OWN_ARCHITECTURES:
        settings["pooling"] = "mean"
    is_causal = entry(config, "is_decoder", bool, path) or kept == "language_model"
    encoder = _encoder_config(config, path, causal=bool(is_causal))
    expected = _expected(kept, encoder, settings, tensors, path)
    if head is None or _PREDICTIONS in expected:
        _check_tied(config, tensors, path)
    known = {*expected, *_COPIES, *_FIXED}
    # A model without a pooler leaves that of the encoder it was made from unread.
    unexpected = [name for name in tensors if name not in known and "bert.pooler." not in name]
    _check_tensors(folder, kept, expected, tensors, [] if head else unexpected)
    model = build_model(kept, encoder, **settings)
    model.load_state_dict(from_hugging_face(tensors, model.state_dict(), kept))
    model.embedding = read_embedding(Path(directory), encoder.max_position_embeddings)
    return model


def _check_architecture(config: dict[str, Any], path: Path) -> None:
    kind = entry(config, "model_type", str, path)
    if kind not in (None, "bert"):
        raise ValueError(f"{path} must describe a model of type bert, found {kind!r}")
    if config.get("auto_map") and not names_own_head(config):
        raise ValueError(
            f"{path} must describe BERT as published, found code of its own (auto_map), which is "
            "not run here"
        )
    for name, published in _PUBLISHED.items():
        if config.get(name, published) != published:
            raise ValueError(
                f"{path} must say {name}={published!r}, as published, found {config[name]!r:.80}"
            )


def _head_of(config: dict[str, Any], tensors: Mapping[str, Tensor], path: Path) -> str:
    """The head of the class that `architectures` names; else of pretraining, or none."""
    architecture = str((entry(config, "architectures", list, path) or [""])[0])
    is_decoder = entry(config, "is_decoder", bool, path)
    own = {name: head for head, name in reversed(OWN_ARCHITECTURES.items())}
    head = {**ARCHITECTURES, **own}.get(architecture, "encoder")
    problem = config.get("problem_type")
    if head == "encoder" and _PREDICTIONS in tensors:
        return "language_model" if is_decoder and not architecture else "pretraining"
    if head == "language_model" and not is_decoder:
        # It reads both sides of a token: the reference loads it with a warning and masks nothing.
        return "pretraining"
    if head != "sequence_classification":
        return head
    weight = tensors.get("classifier.weight")
    if problem is None and weight is not None and weight.shape[:1] == (1,):
        return "regression"
    return {theirs: ours for ours, theirs in PROBLEMS.items()}.get(str(problem), head)


def _settings_of(
    head: str, config: dict[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> dict[str, Any]:
    problem = config.get("problem_type")
    if head in PROBLEMS and problem not in (None, PROBLEMS[head]):
        raise ValueError(
            f"{path} must say problem_type={PROBLEMS[head]!r} for the head {head}, found "
            f"{problem!r:.80}; {_OTHER_HEADS}"
        )
    if head == "encoder":
        return {"pooler": "bert.pooler.dense.weight" in tensors}
    if head == "pretraining":
        return {"next_sentence": _NEXT_SENTENCE in tensors}
    _check_activation(config, path)
    if head not in _LABELLED:
        return {}
    if "classifier.weight" not in tensors or not tensors["classifier.weight"].dim():
        raise ValueError(f"the weights of {path.parent} have no head for {head}")
    num_labels = len(tensors["classifier.weight"])
    return {"num_labels": num_labels, "labels": _labels(config, num_labels, path)}


def _check_activation(config: dict[str, Any], path: Path) -> None:
    """Refuse a function over the logits that sentence-transformers' cross-encoders would apply."""
    newer = entry(config, "sentence_transformers", dict, path) or {}
    for values, key in (
        (newer, "activation_fn"), (config, "sbert_ce_default_activation_function"),
    ):  # fmt: skip
        function = entry(values, key, str, path)
        if function is not None and not function.endswith(".Identity"):
            raise ValueError(
                f"{path} says {key}={function!r}, which sentence-transformers applies to what the "
                "head gives and which is not read here; set it to "
                "torch.nn.modules.linear.Identity to read the numbers as the head gives them"
            )


def _labels(config: dict[str, Any], num_labels: int, path: Path) -> list[str] | None:
    """The names of the classes; None if there are none."""
    names = entry(config, "id2label", dict, path)
    if not names:
        return None
    labels = [names.get(str(index)) for index in range(num_labels)]
    are_names = all(isinstance(label, str | int) and label != "" for label in labels)
    distinct = list(dict.fromkeys(map(str, labels)))
    if not are_names or len(distinct) != num_labels or len(names) != num_labels:
        raise ValueError(
            f"{path} must give each of the {num_labels} classes of its head a name of its own in "
            f"id2label, found {names!r:.200}"
        )
    return distinct


def _encoder_config(config: dict[str, Any], path: Path, *, causal: bool) -> EncoderConfig:
    values = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items() if theirs in config}
    try:
        return EncoderConfig.from_dict({**values, "causal": causal})
    except ValueError as error:
        raise ValueError(f"{path} must describe a BERT, but {error}") from error


def _expected(
    head: str, encoder: EncoderConfig, settings: dict[str, Any],
    tensors: Mapping[str, Tensor], path: Path,
) -> dict[str, Tensor]:  # fmt: skip
    """What the files must hold, by today's names: shapes without numbers."""
    start = "bert.encoder.layer."
    layers = {n.removeprefix(start).split(".")[0] for n in tensors if n.startswith(start)}
    if len(layers) != encoder.num_layers:
        raise ValueError(
            f"{path} must say how many layers the weights have, {len(layers)}, found "
            f"num_hidden_layers={encoder.num_layers}"
        )
    try:
        with torch.device("meta"):
            model = build_model(head, encoder, **settings)
    except (RuntimeError, TypeError) as error:  # sizes that no tensor can have
        raise ValueError(f"{path} must describe a BERT, but its sizes are impossible") from error
    return to_hugging_face(model.state_dict(), head)


def _check_tied(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
    """The decoder must be the embedding matrix itself: ours is tied, as published."""
    for copy, original in _COPIES.items():
        is_there = copy in tensors and original in tensors
        if is_there and not tensors[copy].equal(tensors[original]):
            raise ValueError(
                f"{path.parent}: {copy} must equal {original} (a tied decoder, as published), "
                f"found it different; {_OTHER_HEADS}"
            )
    decoder = next(iter(_COPIES))
    is_untied = config.get("tie_word_embeddings", True) is not True
    if _PREDICTIONS in tensors and is_untied and decoder not in tensors:
        raise ValueError(
            f"{path} says tie_word_embeddings=false, and the decoder that must then be among the "
            f"weights is not: {decoder}"
        )


def _check_tensors(
    folder: Path, head: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor],
    unexpected: list[str],
) -> None:  # fmt: skip
    missing = [name for name in expected if name not in tensors]
    other = [
        f"{name} {list(tensors[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    problems = {
        "missing": missing,
        "unexpected": unexpected,
        "of another shape than config.json says": other,
    }
    if any(problems.values()):
        lines = "; ".join(f"{what}: {listed(names)}" for what, names in problems.items() if names)
        raise ValueError(
            f"{folder} does not have the tensors of a BERT with the head {head}: {lines}"
            + ("; name the head to keep to leave others behind" if unexpected else "")
        )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """The tensors of model.safetensors, by today's names.

    Raises ValueError, naming the file, for one that is missing or broken, that holds a tensor
    twice, or numbers that are not finite or of a kind that no weights are.
    """
    path = folder / "model.safetensors"
    if not path.exists():
        raise ValueError(
            f"{folder} has no model.safetensors; have transformers write it: "
            "save_pretrained(folder, max_shard_size='100GB')"
        )
    tensors: dict[str, Tensor] = {}
    for name, tensor in read_tensors(path).items():
        modern = _modern_name(name)
        if modern in tensors:
            raise ValueError(f"{path} holds one tensor twice, as {name} and by another name")
        is_fixed = modern in (*_COPIES, *_FIXED)
        tensors[modern] = tensor if is_fixed else _checked_numbers(tensor, name, path)
    return tensors


def _modern_name(name: str) -> str:
    """Today's name of a tensor: `weight` and `bias` in normalizations, and the prefix."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
    name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    has_prefix = not name.startswith(("embeddings.", "encoder.layer.", "pooler."))
    return name if has_prefix else f"bert.{name}"


def _checked_numbers(tensor: Tensor, name: str, path: Path) -> Tensor:
    """In float32; whole numbers are ids or quantized weights, and neither is a weight."""
    if not tensor.is_floating_point():
        raise ValueError(
            f"{path} must hold weights as floating-point numbers, found {name} as {tensor.dtype}; "
            "a quantized checkpoint has to be turned back first"
        )
    numbers = tensor.float()
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{path} holds NaN or infinity in {name}; is the file damaged?")
    return numbers
