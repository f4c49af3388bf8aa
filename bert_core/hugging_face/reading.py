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
from bert_core.hugging_face.names import CONFIG_NAMES, PROBLEMS, TASKS
from bert_core.hugging_face.sentence_transformers import model_folder, read_embedding
from bert_core.hugging_face.tensors import REDUNDANT, from_hugging_face, to_hugging_face
from bert_core.model.catalogue import MODELS, Model, build_model
from bert_core.model.embeddings import sinusoids

# Raise where the same files would give another model or other pieces than before.
READING_VERSION: Final = 5
_POSITIONS: Final = "bert.embeddings.position_embeddings.weight"
_ROUNDING_OF_POSITIONS: Final = 0.01  # what half precision leaves of numbers up to 1
_TASK_HEADS: Final = ("classifier.weight", "qa_outputs.weight")
# What a checkpoint of each architecture must hold beside the encoder.
_HEAD_OF: Final = {
    **dict.fromkeys(("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"),
                    "cls.predictions.bias"),
    **dict.fromkeys(TASKS, "classifier.weight"),
    "BertLMHeadModel": "cls.predictions.bias",
    "BertForQuestionAnswering": "qa_outputs.weight",
    "BertForNextSentencePrediction": "cls.seq_relationship.weight",
}  # fmt: skip
_PUBLISHED: Final = (
    ("hidden_act", "gelu"), ("position_embedding_type", "absolute"),
    ("add_cross_attention", False),
)  # fmt: skip
_LABELLED: Final = (
    "sequence_classification", "multi_label_classification", "token_classification",
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
        raise ValueError(f"{folder} must hold config.json, found none; is it a saved model?")
    config = read_json(path)
    if head is not None and head not in MODELS:
        raise ValueError(f"head must be one of {', '.join(MODELS)}, got {head!r}")
    _refuse_other_architecture(config, path)
    checkpoint = Checkpoint(folder)
    tensors = checkpoint.tensors
    found = _head_of(config, tensors, path) if head is None else head
    settings = _settings_of(found, config, tensors, path)
    is_causal = bool(entry(config, "is_decoder", bool, path)) or found == "language_model"
    encoder = _encoder_config(config, path, causal=is_causal)
    encoder = _with_its_positions(encoder, tensors)
    wanted = _wanted(found, encoder, settings, tensors, path)
    known = {*wanted, *REDUNDANT}
    tensors = {
        name: tensor
        for name, tensor in tensors.items()
        # A model without a pooler leaves that of the encoder it was made from unread.
        if name in known or not (head is not None or name.startswith("bert.pooler."))
    }
    _check(wanted, checkpoint, tensors, folder, found)
    _refuse_untied(config, tensors, path)
    embedding = read_embedding(root, encoder.max_position_embeddings, encoder.hidden_size)
    model = build_model(found, encoder, **settings)
    model.load_state_dict(from_hugging_face(tensors))
    model.embedding = embedding
    return model


def _with_its_positions(encoder: EncoderConfig, tensors: dict[str, Tensor]) -> EncoderConfig:
    """Computed positions where the table holds them; one that was trained since is learned."""
    if encoder.positions != "sinusoidal":
        return encoder
    table = tensors.get(_POSITIONS)
    if table is None:
        return encoder
    same = table.ndim == 2 and torch.allclose(
        table.float(), sinusoids(*table.shape), atol=_ROUNDING_OF_POSITIONS
    )
    if not same:
        return replace(encoder, positions="learned")
    del tensors[_POSITIONS]
    return encoder


def _refuse_other_architecture(config: dict[str, Any], path: Path) -> None:
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


def _head_of(config: dict[str, Any], tensors: Mapping[str, Tensor], path: Path) -> str:
    """The head that takes every tensor."""
    architecture = _architecture(config, path)
    needed = _HEAD_OF.get(architecture)
    if needed is not None and needed not in tensors:
        raise ValueError(
            f"{path.parent} must hold the head of the {architecture} that its config.json names, "
            f"found its weights without {needed}; name the head encoder to read the encoder alone"
        )
    is_decoder = bool(entry(config, "is_decoder", bool, path))
    if "cls.predictions.bias" in tensors:
        # One that is no decoder reads both sides of a token, whatever its class is called: the
        # reference loads it with a warning and masks nothing.
        is_language_model = is_decoder and architecture in ("", "BertLMHeadModel")
        return "language_model" if is_language_model else "pretraining"
    if "cls.seq_relationship.weight" in tensors:
        return "next_sentence"
    if not any(name in tensors for name in _TASK_HEADS):
        return "encoder"
    head = TASKS.get(architecture, "")
    if not head:
        raise ValueError(
            f"{path} must say in `architectures` what the head is for, one of "
            f"{', '.join(TASKS)}; found {architecture!r}"
        )
    if head != "sequence_classification":
        return head
    if _is_regression(config, tensors, path):
        return "regression"
    several = config.get("problem_type") == PROBLEMS["multi_label_classification"]
    return "multi_label_classification" if several else head


def _architecture(config: dict[str, Any], path: Path) -> str:
    listed = entry(config, "architectures", list, path) or [""]
    if not isinstance(listed[0], str):
        raise ValueError(f"{path} must name its architectures, found {listed[0]!r:.80}")
    return listed[0]


def _settings_of(
    head: str, config: dict[str, Any], tensors: Mapping[str, Tensor], path: Path
) -> dict[str, Any]:
    if head == "encoder":
        return {"pooler": "bert.pooler.dense.weight" in tensors}
    if head == "pretraining":
        return {"next_sentence": "cls.seq_relationship.weight" in tensors}
    if head not in _LABELLED:
        return {}
    weight = tensors.get("classifier.weight")
    if weight is None or weight.dim() != 2:
        raise ValueError(f"{path.parent} must hold a head for {head}, found none in its weights")
    _check_problem(head, config, path)
    return {"num_labels": len(weight), "labels": _labels(config, len(weight), path)}


def _labels(config: dict[str, Any], num_labels: int, path: Path) -> list[str] | None:
    """The names of the classes; None where there are none."""
    names = entry(config, "id2label", dict, path)
    if not names:
        return None
    if sorted(names) != sorted(str(index) for index in range(num_labels)):
        raise ValueError(
            f"{path} must name the {num_labels} classes of its head in id2label, found "
            f"{len(names)}: {', '.join(map(str, list(names)[:8]))}"
        )
    labels = [names[str(index)] for index in range(num_labels)]
    for label in labels:
        if not isinstance(label, str | int) or isinstance(label, bool) or label == "":
            raise ValueError(
                f"{path} must give every class a name in id2label, found {label!r:.80}"
            )
    if len({str(label) for label in labels}) != num_labels:
        raise ValueError(f"{path} must give every class a name of its own in id2label")
    return [str(label) for label in labels]


def _is_regression(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> bool:
    weight = next(tensors[name] for name in _TASK_HEADS if name in tensors)
    num_outputs = weight.shape[0] if weight.dim() else 0
    problem = config.get("problem_type")
    if problem == "regression" and num_outputs != 1:
        raise ValueError(
            f"{path} says problem_type 'regression', which must give one number a text, found "
            f"{num_outputs} outputs; name the head encoder to read the encoder alone"
        )
    return problem == "regression" or (problem is None and num_outputs == 1)


def _check_problem(head: str, config: Mapping[str, Any], path: Path) -> None:
    wanted, problem = PROBLEMS.get(head), config.get("problem_type")
    if wanted and problem not in (None, wanted):
        raise ValueError(
            f"{path} must say problem_type={wanted!r} for the head {head}, found "
            f"{problem!r:.80}; name the head encoder to read the encoder alone"
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
    start = "bert.encoder.layer."
    layers = {name.removeprefix(start).split(".")[0] for name in tensors if name.startswith(start)}
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
    task_head = "qa_outputs" if head == "span_prediction" else "classifier"
    return to_hugging_face(model.state_dict(), task_head=task_head)


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
            f"{folder} must hold exactly the tensors of a BERT with the head {head}, found {listed}"
            + ("; name the head to keep to leave others behind" if unexpected else "")
        )


def _refuse_untied(config: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> None:
    """A decoder that is said to be another table must not be taken from the embeddings."""
    has_head = "cls.predictions.bias" in tensors
    is_untied = config.get("tie_word_embeddings", True) is not True
    if has_head and is_untied and "cls.predictions.decoder.weight" not in tensors:
        raise ValueError(
            f"{path} says tie_word_embeddings=false, and the decoder that must then be among the "
            "weights is not: cls.predictions.decoder.weight"
        )
