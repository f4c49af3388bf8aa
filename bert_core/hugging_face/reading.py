"""Read a Hugging Face BERT directory, with every tensor accounted for."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.files import entry, listed, read_json, read_tensors
from bert_core.hugging_face.heads import head_of, settings_of
from bert_core.hugging_face.sentence_transformers import model_folder, read_embedding
from bert_core.hugging_face.tensors import (
    CONFIG_NAMES,
    REDUNDANT,
    from_hugging_face,
    layers_in,
    modern_name,
    to_hugging_face,
)
from bert_core.model.catalogue import MODELS, Model, build_model
from bert_core.model.encoder import sinusoids

# Raise where the same files would give another model or other tokens than before.
READING_VERSION: Final = 5
_POSITIONS: Final = "bert.embeddings.position_embeddings.weight"
_ROUNDING_OF_POSITIONS: Final = 0.01  # what half precision leaves of numbers up to 1
_PUBLISHED: Final = (
    ("hidden_act", "gelu"), ("position_embedding_type", "absolute"),
    ("add_cross_attention", False),
)  # fmt: skip
_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_FOREIGN: Final = {  # files of other programs' checkpoints, by how they end
    ".ckpt.index": "TensorFlow", "model.ckpt.meta": "TensorFlow", ".h5": "TensorFlow",
    ".msgpack": "Flax", ".onnx": "ONNX", ".gguf": "llama.cpp",
}  # fmt: skip


def import_model(directory: Path | str, head: str | None = None) -> Model:
    """The model in a Hugging Face BERT directory, with every tensor accounted for.

    The head is read from the checkpoint; `is_decoder` makes a causal encoder under any head. Of
    sentence-transformers' folders the model's `embedding` says how they make vectors. Naming a
    `head` keeps that one alone and leaves the tensors of others behind. Raises ValueError, naming
    the file, for one that is broken, for another architecture or task than ours, and for missing or
    unexpected tensors, listing them.
    """
    root = Path(directory)
    folder = model_folder(root)
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} has no config.json; is it a saved model?")
    config = read_json(path)
    if head is not None and head not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head!r}")
    _check_architecture(config, path)
    checkpoint = Checkpoint(folder)
    tensors = checkpoint.tensors
    found = head_of(config, tensors, path) if head is None else head
    settings = settings_of(found, config, tensors, path)
    is_causal = bool(entry(config, "is_decoder", bool, path)) or found == "language_model"
    encoder = _encoder_config(config, path, causal=is_causal)
    encoder = _with_its_positions(encoder, tensors)
    wanted = _wanted(found, encoder, settings, tensors, path)
    # A decoder belongs to the head that predicts tokens.
    has_decoder = "cls.predictions.bias" in wanted or head is None
    known = {*wanted, *(n for n in REDUNDANT if has_decoder or "decoder" not in n)}
    tensors = {
        name: tensor
        for name, tensor in tensors.items()
        # A model without a pooler leaves that of the encoder it was made from unread.
        if name in known or not (head is not None or name.startswith("bert.pooler."))
    }
    _check(wanted, checkpoint, tensors, folder, found)
    _check_decoder(config, tensors, path)
    embedding = read_embedding(root, encoder.max_position_embeddings, encoder.hidden_size)
    model = build_model(found, encoder, **settings)
    model.load_state_dict(from_hugging_face(tensors))
    model.embedding = embedding
    return model


def _with_its_positions(encoder: EncoderConfig, tensors: dict[str, Tensor]) -> EncoderConfig:
    """Computed positions where the table holds them; one that was trained since is learned."""
    table = tensors.get(_POSITIONS)
    if encoder.positions != "sinusoidal" or table is None:
        return encoder
    same = table.ndim == 2 and torch.allclose(
        table.float(), sinusoids(*table.shape), atol=_ROUNDING_OF_POSITIONS
    )
    if not same:
        return replace(encoder, positions="learned")
    del tensors[_POSITIONS]
    return encoder


def _check_architecture(config: dict[str, Any], path: Path) -> None:
    kind = entry(config, "model_type", str, path)
    if kind not in (None, "bert"):
        raise ValueError(f"{path} must describe a model of type bert, found {kind!r}")
    if config.get("auto_map"):
        raise ValueError(
            f"{path} must describe BERT as published, found code of its own (auto_map), which is "
            "not run here"
        )
    for name, published in _PUBLISHED:
        if config.get(name, published) != published:
            raise ValueError(
                f"{path} must say {name}={published!r}, as published, found {config[name]!r:.80}"
            )


def _encoder_config(config: dict[str, Any], path: Path, *, causal: bool) -> EncoderConfig:
    values = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items() if theirs in config}
    try:
        return EncoderConfig.from_dict({**values, "causal": causal})
    except ValueError as error:
        raise ValueError(f"{path} must describe a BERT, but {error}") from error


def _wanted(
    head: str, encoder: EncoderConfig, settings: dict[str, Any],
    tensors: Mapping[str, Tensor], path: Path,
) -> dict[str, Tensor]:  # fmt: skip
    """What the files must hold, by today's names: shapes without numbers."""
    layers = layers_in(tensors, "bert.encoder.layer.")
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


def _check(
    wanted: Mapping[str, Tensor], checkpoint: "Checkpoint", tensors: Mapping[str, Tensor],
    folder: Path, head: str,
) -> None:  # fmt: skip
    missing = [name for name in wanted if name not in tensors]
    unexpected = [name for name in tensors if name not in wanted and name not in REDUNDANT]
    other = [
        f"{checkpoint.name_of(name)} {list(tensors[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    problems = {
        "missing": missing and checkpoint.listed(missing),
        "unexpected": unexpected and checkpoint.listed(unexpected),
        "of another shape than config.json says": ", ".join(other[:8]),
    }
    if any(problems.values()):
        listed = "; ".join(f"{what}: {names}" for what, names in problems.items() if names)
        raise ValueError(
            f"{folder} does not have the tensors of a BERT with the head {head}: {listed}"
            + ("; name the head to keep to leave others behind" if unexpected else "")
        )


def _check_decoder(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
    """A decoder that is said to be another table must not be taken from the embeddings."""
    has_head = "cls.predictions.bias" in tensors
    is_untied = config.get("tie_word_embeddings", True) is not True
    if has_head and is_untied and "cls.predictions.decoder.weight" not in tensors:
        raise ValueError(
            f"{path} says tie_word_embeddings=false, and the decoder that must then be among the "
            "weights is not: cls.predictions.decoder.weight"
        )


class Checkpoint:
    """The tensors in the folder of a checkpoint, in one file or in shards.

    `tensors` has them by today's names; `name_of` says what the files call one. Raises ValueError,
    naming the file, for files that are missing or broken, that hold a tensor twice, or numbers that
    are not finite or of a kind that no weights are.
    """

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}
        for path in _files(folder):
            for name, tensor in read_tensors(path).items():
                self._take(name, tensor, path)
        self._has_prefix = any(name.startswith("bert.") for name in self._names.values())
        self._is_old = any(name.endswith(("LayerNorm.gamma", "LayerNorm.beta"))
                           for name in self._names.values())  # fmt: skip

    def name_of(self, modern: str) -> str:
        """What the files call a tensor, or would call one that they lack."""
        if modern in self._names:
            return self._names[modern]
        name = modern if self._has_prefix else modern.removeprefix("bert.")
        if self._is_old:
            for new, old in (("weight", "gamma"), ("bias", "beta")):
                if name.endswith(f"LayerNorm.{new}"):
                    name = name.removesuffix(new) + old
        return name

    def listed(self, names: Iterable[str]) -> str:
        """Some of these tensors, by the names that the files use, and how many more there are."""
        return listed([self.name_of(name) for name in names])

    def _take(self, name: str, tensor: Tensor, path: Path) -> None:
        modern = modern_name(name)
        if modern in self.tensors:
            raise ValueError(
                f"{path} holds one tensor twice, as {name} and as {self._names[modern]}"
            )
        self._names[modern] = name
        if modern not in REDUNDANT:
            tensor = _checked_numbers(tensor, name, path)
        self.tensors[modern] = tensor


def _files(folder: Path) -> list[Path]:
    """All files of weights: safetensors or the older .bin, in one file or in shards."""
    for name in _FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            return [folder / name]
        if index.is_file():
            return _shards(index)
    foreign = sorted(
        (path.name, program)
        for path in folder.iterdir()
        for ending, program in _FOREIGN.items()
        if path.name.endswith(ending)
    )
    remedy = (
        f"convert {foreign[0][0]}, which is {foreign[0][1]}'s" if foreign else "is it complete?"
    )
    raise ValueError(f"{folder} has neither model.safetensors nor pytorch_model.bin; {remedy}")


def _shards(index: Path) -> list[Path]:
    places = entry(read_json(index), "weight_map", dict, index)
    if not places:
        raise ValueError(f"{index} must say in which file each tensor lies, found no weight_map")
    for name, place in places.items():
        if not isinstance(place, str) or Path(place).name != place or not place:
            raise ValueError(
                f"{index} must name a file beside it for every tensor, found {place!r:.80} "
                f"for {name}"
            )
    paths = [index.parent / place for place in sorted(set(places.values()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"{index} names {len(paths)} files of weights that must lie beside it, found no "
            f"{listed(missing)}; download them all"
        )
    return paths


def _checked_numbers(tensor: Tensor, name: str, path: Path) -> Tensor:
    """In float32; whole numbers are ids or quantized weights, and neither is a weight."""
    is_plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    if not is_plain or not tensor.is_floating_point():
        raise ValueError(
            f"{path} must hold weights as floating-point numbers, found {name} as {tensor.dtype}; "
            "a quantized checkpoint has to be turned back first"
        )
    numbers = tensor.float()
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{path} holds NaN or infinity in {name}; is the file damaged?")
    return numbers
