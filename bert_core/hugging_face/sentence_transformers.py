"""sentence-transformers' folders, in and out: how a text becomes a vector there.

A list of modules (`modules.json`): the encoder, with the length that texts are cut to, then a
pooling of its hidden states, then usually a normalization of the vector. A task's head
over the mean of all tokens is written as a dense layer after the pooling.
"""

from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from bert_core.config import EmbeddingConfig, Pooling
from bert_core.files import (
    entry,
    read_json,
    read_json_value,
    read_optional_json,
    write_json,
)
from bert_core.model.encoder import Linear

MODULES_FILE: Final = "modules.json"
_SETTINGS: Final = "sentence_bert_config.json"
_WHOLE_SETTINGS: Final = "config_sentence_transformers.json"
# Ours: theirs, in the older files a flag each, in newer ones a name.
_FLAGS: Final = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens", "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}  # fmt: skip
_NAMES: Final = {
    "cls": "cls", "max": "max", "mean": "mean", "mean_sqrt_len": "mean_sqrt_len_tokens",
}  # fmt: skip
_OURS: Final = {theirs: ours for ours, theirs in _NAMES.items()}
POOLINGS: Final = tuple(_NAMES)


def module_paths(folder: Path) -> dict[str, Path]:
    """The folders of the modules that `modules.json` lists, by their kind; empty without a list.

    Raises ValueError, naming the file, for others than Transformer, Pooling and Normalize in this
    order, the last one or not.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return {}
    listed = read_json_value(path)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError(f"{path} must list the modules of a sentence-transformers model")
    kinds: dict[str, Path] = {}
    for module in listed:
        name, place = entry(module, "type", str, path), entry(module, "path", str, path)
        if Path(place or "").is_absolute() or ".." in Path(place or "").parts:
            raise ValueError(f"{path} must name folders beside it, found {place!r}")
        kinds[(name or "").rpartition(".")[2]] = folder / (place or "")
    wanted = [["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]]
    if list(kinds) not in wanted or len(kinds) != len(listed):
        found = ", ".join(str(each.get("type")).rpartition(".")[2] for each in listed)
        raise ValueError(
            f"{path} must list Transformer, Pooling and, if at all, Normalize, found "
            f"{found or 'nothing'}; what other modules do to a vector is not read here"
        )
    return kinds


def model_folder(directory: Path | str) -> Path:
    """Where the encoder and its tokenizer lie in the folder of a model: there, or below it.

    Raises ValueError for a list of modules that is not read here.
    """
    folder = Path(directory)
    return module_paths(folder).get("Transformer", folder)


def read_embedding(folder: Path, max_positions: int, hidden_size: int) -> EmbeddingConfig | None:
    """How the sentence-transformers model in `folder` makes vectors; None if it is none.

    Raises ValueError, naming the file, for what is not read here: several poolings at once,
    weighted ones, a prompt before every text, vectors that are cut.
    """
    modules = module_paths(folder)
    if not modules:
        return None
    _check_prompts(folder)
    path = modules["Transformer"] / _SETTINGS
    settings = read_optional_json(path)
    for name, published in (
        ("transformer_task", "feature-extraction"), ("module_output_name", "token_embeddings"),
    ):  # fmt: skip
        if settings.get(name, published) != published:
            raise ValueError(f"{path} must say {name}={published!r}, found {settings[name]!r:.80}")
    max_tokens = entry(settings, "max_seq_length", int, path)
    if max_tokens is None:
        max_tokens = min(max_positions, _model_max_length(modules["Transformer"], max_positions))
    if not 3 <= max_tokens <= max_positions:
        raise ValueError(
            f"{path} must cut texts to at least 3 tokens and at most the {max_positions} that the "
            f"model reads, found {max_tokens}"
        )
    return EmbeddingConfig(
        pooling=_pooling(modules["Pooling"] / "config.json", hidden_size),
        normalize="Normalize" in modules,
        max_tokens=max_tokens,
        lowercase=entry(settings, "do_lower_case", bool, path) or False,
    )


def _model_max_length(folder: Path, otherwise: int) -> int:
    """What newer versions say of the length, among the tokenizer's settings."""
    value = read_optional_json(folder / "tokenizer_config.json").get("model_max_length")
    if isinstance(value, int | float) and not isinstance(value, bool) and value < otherwise:
        return int(value)
    return otherwise


def _pooling(path: Path, hidden_size: int) -> Pooling:
    settings = read_json(path)
    named = settings.get("pooling_mode")
    if named is None:
        flags = [key for key, value in settings.items()
                 if key.startswith("pooling_mode_") and value is not False]  # fmt: skip
        ours = {theirs: name for name, theirs in _FLAGS.items()}
        chosen = [ours.get(flag, flag) for flag in flags] or ["mean"]
        if any(settings[flag] is not True for flag in flags):
            raise ValueError(f"{path} must say true or false of each pooling_mode")
    else:
        listed = named if isinstance(named, list) else [named]
        chosen = [
            _OURS.get(name, str(name)) if isinstance(name, str) else str(name) for name in listed
        ]
    if len(chosen) != 1 or chosen[0] not in _NAMES:
        raise ValueError(
            f"{path} must pool by one of {', '.join(_NAMES.values())}, found {', '.join(chosen)}; "
            "others are not read here"
        )
    for name in ("word_embedding_dimension", "embedding_dimension"):
        size = entry(settings, name, int, path)
        if size not in (None, hidden_size):
            raise ValueError(f"{path} must pool {hidden_size} numbers, found {name}={size}")
    pooling: Any = chosen[0]
    return pooling


def _check_prompts(folder: Path) -> None:
    path = folder / _WHOLE_SETTINGS
    settings = read_optional_json(path)
    default = entry(settings, "default_prompt_name", str, path)
    prompts = entry(settings, "prompts", dict, path) or {}
    if default is not None and prompts.get(default):
        raise ValueError(
            f"{path} must put no prompt before every text, found {prompts[default]!r:.80} "
            f"({default}); it is not read here: set default_prompt_name to null and write it "
            "before the texts yourself"
        )
    if settings.get("truncate_dim") is not None:
        raise ValueError(f"{path} must leave vectors whole, found truncate_dim")


def write_embedding(
    draft: Path,
    embedding: EmbeddingConfig,
    hidden_size: int,
    max_tokens: int,
    dense: Linear | None = None,
) -> None:
    """Write the list of modules and their settings to the folder of an exported encoder.

    `max_tokens` is what the encoder reads, used if `embedding` says nothing; `dense` is a layer
    over the pooled vectors. Raises ValueError for a pooling that sentence-transformers lacks.
    """
    if embedding.pooling not in _NAMES:
        raise ValueError(
            f"pooling must be one of {', '.join(POOLINGS)} for sentence-transformers, got "
            f"{embedding.pooling!r}"
        )
    package = "sentence_transformers.models"
    names = [
        "Transformer", "Pooling",
        *(["Dense"] if dense is not None else []), *(["Normalize"] if embedding.normalize else []),
    ]  # fmt: skip
    modules = [
        {"idx": index, "name": str(index), "path": f"{index}_{name}" if index else "",
         "type": f"{package}.{name}"}
        for index, name in enumerate(names)
    ]  # fmt: skip
    write_json(draft / MODULES_FILE, modules)
    write_json(
        draft / _SETTINGS,
        {
            "max_seq_length": embedding.max_tokens or max_tokens,
            "do_lower_case": embedding.lowercase,
        },
    )
    for index, name in enumerate(names[1:], start=1):
        (draft / f"{index}_{name}").mkdir()
    flags = {
        theirs: ours == embedding.pooling
        for ours, theirs in _FLAGS.items()
        if ours in ("cls", "mean", embedding.pooling)
    }
    write_json(
        draft / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **flags}
    )
    if dense is not None:
        _write_dense(draft / "2_Dense", dense)


def _write_dense(folder: Path, dense: Linear) -> None:
    weight, bias = (tensor.detach().cpu().contiguous() for tensor in (dense.weight, dense.bias))
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    write_json(
        folder / "config.json",
        {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
