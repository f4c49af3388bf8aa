"""Read a Hugging Face BERT directory, with every tensor accounted for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.files.json_files import read_json
from bert_core.files.tensor_files import read_tensors
from bert_core.hugging_face.names import CONFIG_NAMES, PROBLEMS, TASKS
from bert_core.hugging_face.tensors import from_hugging_face
from bert_core.model.catalogue import MODELS, Model, build_model


def import_model(directory: Path | str, head: str | None = None) -> Model:
    """The model in a Hugging Face BERT directory, with every tensor accounted for.

    The head is read from the checkpoint; `is_decoder` makes a causal encoder under any head.
    Naming a `head` keeps that one alone and leaves the tensors of others behind. Raises ValueError
    for another architecture or task than ours, and for missing or unexpected tensors, listing them.
    """
    folder = Path(directory)
    config = _read_json(folder / "config.json")
    tensors = from_hugging_face(_read_tensors(folder))
    if head is not None and head not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head!r}")
    found = _head_of(config, tensors) if head is None else head
    settings = _settings_of(found, config, tensors)
    is_causal = bool(config.get("is_decoder")) or found == "language_model"
    encoder = _encoder_config(config, folder, causal=is_causal)
    if encoder.positions == "sinusoidal":
        tensors.pop("encoder.embeddings.position", None)
    model = build_model(found, encoder, **settings)
    wanted = model.state_dict()
    if head is not None:
        tensors = {name: tensor for name, tensor in tensors.items() if name in wanted}
    _check(wanted, tensors, folder, found)
    model.load_state_dict(tensors)
    return model


def _head_of(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """The head that takes every tensor."""
    architecture = (config.get("architectures") or [""])[0]
    is_decoder = bool(config.get("is_decoder"))
    if "vocabulary_head.bias" in tensors:
        if architecture == "BertLMHeadModel" and not is_decoder:
            raise ValueError(
                "config.json must say is_decoder=true for a BertLMHeadModel, found "
                f"{config.get('is_decoder')}: its tokens would see what they have to predict; name "
                "the head language_model to read it as causal, or pretraining as it is"
            )
        is_language_model = architecture == "BertLMHeadModel" or (is_decoder and not architecture)
        return "language_model" if is_language_model else "pretraining"
    if "next_sentence_head.dense.weight" in tensors:
        return "next_sentence"
    if "task_head.dense.weight" not in tensors:
        return "encoder"
    head = TASKS.get(architecture, "")
    if not head:
        raise ValueError(
            "config.json must say in `architectures` what the head is for, one of "
            f"{', '.join(TASKS)}; found {architecture!r}"
        )
    if head != "sequence_classification":
        return head
    if _is_regression(config, tensors):
        return "regression"
    several = config.get("problem_type") == PROBLEMS["multi_label_classification"]
    return "multi_label_classification" if several else head


def _settings_of(
    head: str, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    if head == "encoder":
        return {"pooler": "pooler.dense.weight" in tensors}
    if head == "pretraining":
        return {"next_sentence": "next_sentence_head.dense.weight" in tensors}
    if head in ("sequence_classification", "multi_label_classification", "token_classification"):
        if "task_head.dense.weight" not in tensors:
            raise ValueError(f"the checkpoint must hold a head for {head}, found none")
        num_labels = tensors["task_head.dense.weight"].shape[0]
        _check_problem(head, config)
        names = config.get("id2label") or {}
        labels = [names.get(str(index)) for index in range(num_labels)]
        return {"num_labels": num_labels, "labels": None if None in labels else labels}
    return {}


def _is_regression(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    num_outputs = tensors["task_head.dense.weight"].shape[0]
    problem = config.get("problem_type")
    if problem == "regression" and num_outputs != 1:
        raise ValueError(
            f"a regression must give one number a text, found {num_outputs} outputs with "
            "problem_type 'regression'; name the head encoder to read the encoder alone"
        )
    return problem == "regression" or (problem is None and num_outputs == 1)


def _check_problem(head: str, config: Mapping[str, Any]) -> None:
    wanted, problem = PROBLEMS.get(head), config.get("problem_type")
    if wanted and problem not in (None, wanted):
        raise ValueError(
            f"config.json must say problem_type={wanted!r} for the head {head}, found "
            f"{problem!r}; name the head encoder to read the encoder alone"
        )


def _encoder_config(config: Mapping[str, Any], folder: Path, *, causal: bool) -> EncoderConfig:
    for name, published in (
        ("hidden_act", "gelu"), ("position_embedding_type", "absolute"),
        ("add_cross_attention", False),
    ):  # fmt: skip
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
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in read_tensors(path).items()
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
    return read_json(path)
