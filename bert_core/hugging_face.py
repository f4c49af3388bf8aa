"""Hugging Face BERT directories: read any, write what `transformers` opens without a word.

`transformers` itself is not needed for either.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_core.config import EncoderConfig
from bert_core.folders import publish
from bert_core.models import MODELS, Model, build_model
from bert_core.vocabulary import WordPieceTokenizer
from bert_core.weights import from_hugging_face, to_hugging_face

_CONFIG_NAMES: Final = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
    "causal": "is_decoder",
    "positions": "positions",  # not known there; its tables are written as learned ones
}
_TASKS: Final = {
    "BertForSequenceClassification": "sequence_classification",
    "BertForTokenClassification": "token_classification",
    "BertForMultipleChoice": "multiple_choice",
    "BertForQuestionAnswering": "span_prediction",
    "BertLMHeadModel": "language_model",
}
_POOLING: Final = ("mean", "cls")


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


def export_model(
    directory: Path | str,
    model: Model,
    tokenizer: WordPieceTokenizer | None = None,
    *,
    pooling: str | None = None,
) -> None:
    """Write `model` and its tokenizer to a new folder for `transformers`.

    With `pooling` ("mean" or "cls") the encoder is written for sentence-transformers, which then
    computes the same embeddings as ours, and opens for `AutoModel` too.
    """
    if pooling is not None and pooling not in _POOLING:
        raise ValueError(f"pooling must be one of {', '.join(_POOLING)}, got {pooling!r}")

    def write(draft: Path) -> None:
        source = dict(model.state_dict())
        if model.config.positions == "sinusoidal":
            source["encoder.embeddings.position"] = model.encoder.embeddings.position
        if pooling is not None:
            source = {n: t for n, t in source.items() if n.startswith(("encoder.", "pooler."))}
        task_head = "qa_outputs" if model.head_name == "span_prediction" else "classifier"
        tensors = to_hugging_face(source, task_head=task_head)
        architecture = "BertModel" if pooling is not None else _architecture(model)
        if architecture == "BertModel":
            tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
        copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(copies, draft / "model.safetensors", metadata={"format": "pt"})
        _write_json(draft / "config.json", _their_config(model, architecture, tokenizer))
        if tokenizer is not None:
            tokenizer.save(draft)
        if pooling is not None:
            _write_sentence_transformers(draft, model, pooling)

    publish(Path(directory), write)


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
        head = _TASKS.get(architectures[0], "")
        if not head:
            raise ValueError(
                "config.json must say in `architectures` what the head is for, one of "
                f"{', '.join(_TASKS)}; found {architectures[0]!r}"
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
    values = {ours: config[theirs] for ours, theirs in _CONFIG_NAMES.items() if theirs in config}
    return EncoderConfig.from_dict({**values, "causal": causal})


def _their_config(
    model: Model, architecture: str, tokenizer: WordPieceTokenizer | None
) -> dict[str, Any]:
    ours = model.config.to_dict()
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": "gelu",
        "dtype": "float32",
        "pad_token_id": 0 if tokenizer is None else tokenizer.pad_id,
        "tie_word_embeddings": True,
        **{theirs: ours[name] for name, theirs in _CONFIG_NAMES.items()},
    }
    if config["positions"] == "learned":
        del config["positions"]
    labels = getattr(model, "labels", None)
    if model.head_name == "regression":
        labels = ["LABEL_0"]
        config["problem_type"] = "regression"
    elif labels is None and "num_labels" in model.head_settings():
        labels = [f"LABEL_{index}" for index in range(model.head_settings()["num_labels"])]
    if labels is not None:
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
        config["label2id"] = {label: index for index, label in enumerate(labels)}
    return config


def _architecture(model: Model) -> str:
    if model.head_name == "pretraining":
        whole = model.head_settings()["next_sentence"]
        return "BertForPreTraining" if whole else "BertForMaskedLM"
    if model.head_name == "encoder":
        return "BertModel"
    others = {"next_sentence": "BertForNextSentencePrediction",
              "regression": "BertForSequenceClassification"}  # fmt: skip
    tasks = {head: architecture for architecture, head in _TASKS.items()}
    return {**tasks, **others}[model.head_name]


def _write_sentence_transformers(draft: Path, model: Model, pooling: str) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize",
         "type": "sentence_transformers.models.Normalize"},
    ]  # fmt: skip
    _write_json(draft / "modules.json", modules)
    _write_json(
        draft / "sentence_bert_config.json",
        {"max_seq_length": model.config.max_position_embeddings, "do_lower_case": False},
    )
    (draft / "1_Pooling").mkdir()
    (draft / "2_Normalize").mkdir()
    _write_json(
        draft / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": model.config.hidden_size,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
    )


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


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
