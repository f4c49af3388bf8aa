"""Read a Hugging Face BERT directory, with every tensor accounted for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.hugging_face.names import CONFIG_NAMES, TASKS
from bert_core.hugging_face.tensors import from_hugging_face
from bert_core.model.catalogue import MODELS, Model, build_model


def import_model(directory: Path | str, head: str | None = None) -> Model:
    """The model in a Hugging Face BERT directory, with every tensor accounted for.

    The head is read from the checkpoint; a missing or an unexpected tensor is an error that lists
    them. Naming a `head` keeps that one alone and leaves the tensors of others behind.
    """
    folder = Path(directory)
    config = _read_json(folder / "config.json")
    tensors = from_hugging_face(_read_tensors(folder))
    found, settings = _head_of(config, tensors)
    if head is not None and head not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head!r}")
    if head is not None and head != found:
        found, settings = head, _settings_of(head, config, tensors)
    encoder = _encoder_config(config, folder, causal=found == "language_model")
    if encoder.positions == "sinusoidal":
        tensors.pop("encoder.embeddings.position", None)
    model = build_model(found, encoder, **settings)
    wanted = model.state_dict()
    if head is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in wanted}
    _check(wanted, tensors, folder, found)
    model.load_state_dict(tensors)
    return model


def _head_of(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[str, dict[str, Any]]:
    """The head that takes every tensor, and what it needs beside the encoder's config."""
    architectures = config.get("architectures") or [""]
    if "vocabulary_head.bias" in tensors:
        head = "pretraining"
        if config.get("is_decoder") or architectures[0] == "BertLMHeadModel":
            head = "language_model"
    elif "next_sentence_head.dense.weight" in tensors:
        head = "next_sentence"
    elif "task_head.dense.weight" in tensors:
        head = TASKS.get(architectures[0], "")
        if not head:
            raise ValueError(
                "config.json must say in `architectures` what the head is for, one of "
                f"{', '.join(TASKS)}; found {architectures[0]!r}"
            )
        if head == "sequence_classification" and _is_regression(config, tensors):
            head = "regression"
    else:
        head = "encoder"
    return head, _settings_of(head, config, tensors)


def _settings_of(
    head: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    if head == "encoder":
        return {"pooler": "pooler.dense.weight" in tensors}
    if head == "pretraining":
        return {"next_sentence": "next_sentence_head.dense.weight" in tensors}
    if head in ("sequence_classification", "token_classification"):
        if "task_head.dense.weight" not in tensors:
            raise ValueError(f"the checkpoint must hold a head for {head}, found none")
        num_labels = tensors["task_head.dense.weight"].shape[0]
        names = config.get("id2label") or {}
        labels = [names.get(str(index)) for index in range(num_labels)]
        return {"num_labels": num_labels, "labels": None if None in labels else labels}
    return {}


def _is_regression(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    if config.get("problem_type") is not None:
        return bool(config["problem_type"] == "regression")
    return tensors["task_head.dense.weight"].shape[0] == 1


def _encoder_config(config: Mapping[str, Any], folder: Path, *, causal: bool) -> EncoderConfig:
    for name, published in (("hidden_act", "gelu"), ("position_embedding_type", "absolute")):
        if config.get(name, published) != published:
            raise ValueError(
                f"{folder / 'config.json'} must say {name}={published!r}, as published, "
                f"found {config[name]!r}"
            )
    if config.get("model_type", "bert") != "bert":
        raise ValueError(
            f"{folder / 'config.json'} must describe a model of type bert, "
            f"found {config['model_type']!r}"
        )
    values = {ours: config[theirs] for ours, theirs in CONFIG_NAMES.items() if theirs in config}
    return EncoderConfig.from_dict({**values, "causal": causal})


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint: safetensors or the older .bin, in one file or in shards."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        path = folder / name
        index = folder / f"{name}.index.json"
        if path.is_file():
            return _read_file(path)
        if index.is_file():
            shards = sorted(set(_read_json(index)["weight_map"].values()))
            return {n: t for shard in shards for n, t in _read_file(folder / shard).items()}
    raise ValueError(f"{folder} must hold model.safetensors or pytorch_model.bin, found neither")


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        tensors = load_file(path)
    else:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def _check(
    wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], folder: Path, head: str
) -> None:
    problems = {
        "missing": [name for name in wanted if name not in tensors],
        "unexpected": [name for name in tensors if name not in wanted],
        "of another shape": [
            f"{name} {list(tensors[name].shape)} instead of {list(tensor.shape)}"
            for name, tensor in wanted.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ],
    }
    if any(problems.values()):
        listed = "; ".join(
            f"{what}: {', '.join(names)}" for what, names in problems.items() if names
        )
        raise ValueError(
            f"{folder} must hold exactly the tensors of a BERT with the head {head}, found {listed}"
            + ("; name the head to keep to leave others behind" if problems["unexpected"] else "")
        )


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path.parent} must hold {path.name}, found none; is it a saved model?")
    return json.loads(path.read_text(encoding="utf-8"))
