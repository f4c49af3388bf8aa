"""Models and whole training runs on disk, and a model that starts from another one's encoder.

A model is `model.safetensors` under our own names and `config.json`; a user-defined model adds its
class, `task.py`, which runs when the model is loaded. A checkpoint adds `training_state.pt`, which
holds the optimizer and the position and loads without running code. A folder is written under a
temporary name and renamed, so that it is complete or absent.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from bert_core.config import EmbeddingConfig, EncoderConfig
from bert_core.files import (
    check_fetched,
    check_names,
    publish,
    read_json,
    read_tensors,
    read_text,
    write_json,
)
from bert_core.model.catalogue import MODELS, Model, SentenceEncoder, described
from bert_core.model.rows import CODE_FILE, RowModel, row_model
from bert_core.training.optimizer import Optimizer

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
TRAINING_STATE_FILE = "training_state.pt"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of a run: all steps before `step` of the run with `seed` are done."""

    seed: int
    step: int


def save_model(folder: Path | str, model: Model) -> None:
    """Write the weights and what is needed to build the model again into a new folder.

    Raises ValueError if `folder` is in use, and OSError if writing fails.
    """
    publish(Path(folder), lambda draft: _write_model(draft, model))


def load_model(folder: Path | str, device: torch.device | str = "cpu") -> Model:
    """The model that `save_model` or `save_checkpoint` wrote, with the head it had.

    It runs the `task.py` of a folder whose head is none of ours. Raises ValueError if the folder
    holds no such model, or not exactly its tensors.
    """
    build = model_class_in(folder)
    config, path = read_config(folder), Path(folder) / CONFIG_FILE
    tensors = read_weights(folder)
    try:
        model = build(EncoderConfig.from_dict(config["encoder"]), **config["settings"])
        if config.get("embedding") is not None:
            model.embedding = EmbeddingConfig.from_dict(config["embedding"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} must describe a model, but {error}; is it whole?") from error
    check_names(tensors, model.state_dict(), str(Path(folder) / WEIGHTS_FILE))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:  # of tensors of other shapes
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{folder} has weights that do not fit its {CONFIG_FILE}: {reason}"
        ) from error
    return model.to(device)


def model_class_in(folder: Path | str) -> type[Model]:
    """The class of the model in `folder`; a class of its own is run (see `load_model`)."""
    head = read_config(folder)["head"]
    if head in MODELS:
        return MODELS[head]
    return row_model(read_text(Path(folder) / CODE_FILE), head)


def save_checkpoint(
    folder: Path | str,
    model: Model,
    optimizer: Optimizer,
    position: Position,
    *,
    is_writer: bool = True,
) -> None:
    """Write the whole state of a run into a new folder. All ranks call it, one as the writer.

    Raises SkippedStepsError on all of them, and writes nothing, if too many steps were skipped; on
    the writer ValueError if `folder` is in use, and OSError if writing fails.
    """
    state = {"format": FORMAT, "position": asdict(position), **optimizer.state_dict()}
    if not is_writer:
        return

    def write(draft: Path) -> None:
        _write_model(draft, model)
        try:
            torch.save(state, draft / TRAINING_STATE_FILE)
        except RuntimeError as error:  # so it says that the disk is full
            raise OSError(f"{TRAINING_STATE_FILE} could not be written ({error})") from error

    publish(Path(folder), write)


def load_checkpoint(folder: Path | str, model: Model, optimizer: Optimizer) -> Position:
    """Restore a run's weights and optimizer; returns its position.

    Any number of ranks can load what any number has saved. Raises ValueError if the folder holds no
    checkpoint, or that of another model, another optimizer or other frozen parameters.
    """
    path = Path(folder) / TRAINING_STATE_FILE
    check_fetched(path)
    config = read_config(folder)
    if config["head"] != model.head_name or config["settings"] != model.head_settings():
        raise ValueError(
            f"{folder} holds {described(config['head'])} with {config['settings']}, not "
            f"{described(model.head_name)} with {model.head_settings()}"
        )
    check_same_encoder(model.config, config["encoder"], folder)
    tensors = read_weights(folder)
    check_names(tensors, model.state_dict(), str(Path(folder) / WEIGHTS_FILE))
    # Mapped: the memory holds nothing twice.
    state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    optimizer.load_state_dict(state)  # raises before it changes anything
    model.load_state_dict(tensors)
    position = state["position"]
    return Position(seed=position["seed"], step=position["step"])


def read_config(folder: Path | str) -> dict[str, Any]:
    """The entries `head`, `settings`, `encoder` and maybe `embedding` of a saved model.

    Raises ValueError if the folder holds none, or one of another format.
    """
    path = Path(folder) / CONFIG_FILE
    config = read_json(path)
    if config.get("format") != FORMAT:
        raise ValueError(
            f"{path} must be a Bertsmith model of format {FORMAT}, found something else; "
            "a Hugging Face directory has to be imported first"
        )
    if config.get("head") not in MODELS and not (Path(folder) / CODE_FILE).is_file():
        raise ValueError(
            f"{path} must name one of the heads {', '.join(MODELS)}, or lie beside the code of its "
            f"own, {CODE_FILE}, found {config.get('head')!r} and no such file"
        )
    if not all(isinstance(config.get(name), dict) for name in ("settings", "encoder")):
        raise ValueError(f"{path} must have the objects settings and encoder; is it complete?")
    config["encoder"].pop("positions", None)  # older versions write that they are learned
    return config


def _write_model(draft: Path, model: Model) -> None:
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    try:
        save_file(tensors, draft / WEIGHTS_FILE)
    except SafetensorError as error:  # so it says that the disk is full
        raise OSError(f"{WEIGHTS_FILE} could not be written ({error})") from error
    config = {
        "format": FORMAT,
        "head": model.head_name,
        "settings": model.head_settings(),
        "encoder": model.config.to_dict(),
    }
    if model.embedding is not None:
        config["embedding"] = model.embedding.to_dict()
    write_json(draft / CONFIG_FILE, config)
    if isinstance(model, RowModel):
        (draft / CODE_FILE).write_text(model.source, encoding="utf-8")


def read_weights(folder: Path | str) -> dict[str, Tensor]:
    """The tensors of a saved model, on the CPU; raises ValueError if there are none."""
    return read_tensors(Path(folder) / WEIGHTS_FILE)


def check_same_encoder(ours: EncoderConfig, theirs: Mapping[str, Any], source: Path | str) -> None:
    """Raise ValueError if the encoder of `source` has tensors of other shapes or meaning."""
    # Dropout and the spread of initial weights may differ between pretraining and a task.
    free = {"hidden_dropout", "attention_dropout", "classifier_dropout", "initializer_range"}
    different = {
        name: f"{name} {theirs.get(name)!r} instead of {value!r}"
        for name, value in ours.to_dict().items()
        if name not in free and theirs.get(name) != value
    }
    if different:
        resizable = different.keys() <= {"max_position_embeddings", "vocab_size"}
        raise ValueError(
            f"{source} holds another encoder, with {', '.join(different.values())}"
            + ("; resize_positions and resize_vocabulary change these" if resizable else "")
        )


_HEADS = ("pooler.", "vocabulary_head.", "next_sentence_head.")  # taken where both have one


def load_encoder_into(model: Model, source: Model | Path | str) -> tuple[str, ...]:
    """Start `model` from the encoder of another model, and from its heads that both have.

    These are the pooler and the two of pretraining; a task's own head keeps its random weights. A
    model with an `embedding` takes that of the source, if it has one.

    `source` is a model, such as `import_model` returns, or the folder of a saved one. Returns the
    names of the tensors that still have random weights. Raises ValueError if a folder holds no
    model, and for an encoder of another build; `resize_positions` and `resize_vocabulary` change
    its size.
    """
    name = str(source)
    if isinstance(source, Model):
        name = f"the {source.head_name} model"
        tensors, config, embedding = source.state_dict(), source.config.to_dict(), source.embedding
    else:
        saved = read_config(source)
        tensors, config, embedding = read_weights(source), saved["encoder"], None
        if saved.get("embedding") is not None:
            embedding = EmbeddingConfig.from_dict(saved["embedding"])
    check_same_encoder(model.config, config, name)
    own = model.state_dict()
    shared = ("encoder.", *(h for h in _HEADS if _has(own, h) and _has(tensors, h)))
    loaded = {tensor for tensor in own if tensor.startswith(shared)}
    offered = {name: tensor for name, tensor in tensors.items() if name.startswith(shared)}
    check_names(offered, loaded, name)
    model.load_state_dict({**own, **offered})
    if model.embedding is not None and embedding is not None:
        # A model of cosines has vectors of length 1, whatever it began with.
        is_unit = embedding.normalize or isinstance(model, SentenceEncoder)
        model.embedding = replace(embedding, normalize=is_unit)
    return tuple(sorted(set(own) - loaded))


def _has(tensors: Mapping[str, Tensor], head: str) -> bool:
    return any(name.startswith(head) for name in tensors)
