"""Read a Hugging Face BERT directory, with every tensor accounted for."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.files.json_files import entry, read_json
from bert_core.hugging_face.checkpoint import Checkpoint
from bert_core.hugging_face.heads import head_of, settings_of
from bert_core.hugging_face.sentence_transformers import model_folder, read_embedding
from bert_core.hugging_face.tensors import (
    CONFIG_NAMES,
    REDUNDANT,
    from_hugging_face,
    layers_in,
    to_hugging_face,
)
from bert_core.model.catalogue import MODELS, Model, build_model
from bert_core.model.layers import sinusoids

# Raise where the same files would give another model or other tokens than before.
READING_VERSION: Final = 5
_POSITIONS: Final = "bert.embeddings.position_embeddings.weight"
_ROUNDING_OF_POSITIONS: Final = 0.01  # what half precision leaves of numbers up to 1
_PUBLISHED: Final = (
    ("hidden_act", "gelu"), ("position_embedding_type", "absolute"),
    ("add_cross_attention", False),
)  # fmt: skip


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
    wanted: Mapping[str, Tensor], checkpoint: Checkpoint, tensors: Mapping[str, Tensor],
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
