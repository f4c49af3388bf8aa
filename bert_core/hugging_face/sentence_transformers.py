"""sentence-transformers' folders, in and out: how a text becomes a vector there.

A list of modules (`modules.json`): the encoder, with the length that texts are cut to, then a
pooling of its hidden states, then usually a normalization of the vector. A task's head
over the mean of all tokens is written as a dense layer after the pooling.
"""

from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from bert_core.config import EmbeddingConfig
from bert_core.files import entry, read_json, read_json_value, read_optional_json, write_json
from bert_core.hugging_face.tensors import names_own_head
from bert_core.model.encoder import Linear

_MODULES: Final = "modules.json"
_SETTINGS: Final = "sentence_bert_config.json"
_WHOLE_SETTINGS: Final = "config_sentence_transformers.json"
_OTHER_FLAGS: Final = ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens")
_FLAGS: Final = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}


def _module_folders(folder: Path) -> dict[str, Path]:
    """The folders of the modules that `modules.json` lists, by their kind; empty without a list.

    Likewise for our heads over the mean, of which the list is another way to read the same weights.

    Raises ValueError, naming the file, for others than Transformer, Pooling and Normalize in this
    order, the last one or not.
    """
    path = folder / _MODULES
    if not path.is_file() or names_own_head(read_optional_json(folder / "config.json")):
        return {}
    listed = read_json_value(path)
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise ValueError(f"{path} must list the modules of a sentence-transformers model")
    kinds = [str(module.get("type")).rpartition(".")[2] for module in listed]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ValueError(
            f"{path} must list Transformer, Pooling and, if at all, Normalize, found "
            f"{', '.join(kinds) or 'nothing'}; what other modules do to a vector is not read here"
        )
    places = [entry(module, "path", str, path) or "" for module in listed]
    for place in map(Path, places):
        if place.is_absolute() or ".." in place.parts:
            raise ValueError(f"{path} must name folders beside it, found {str(place)!r}")
    return {kind: folder / place for kind, place in zip(kinds, places, strict=True)}


def model_folder(directory: Path | str) -> Path:
    """Where the encoder and its tokenizer lie in the folder of a model: there, or below it.

    Raises ValueError for a list of modules that is not read here.
    """
    folder = Path(directory)
    return _module_folders(folder).get("Transformer", folder)


def read_embedding(folder: Path, max_positions: int) -> EmbeddingConfig | None:
    """How the sentence-transformers model in `folder` makes vectors; None if it is none.

    Raises ValueError, naming the file, for what is not read here: other poolings than the mean and
    [CLS], a prompt before every text, vectors that are cut.
    """
    modules = _module_folders(folder)
    if not modules:
        return None
    path = folder / _WHOLE_SETTINGS
    whole = read_optional_json(path)
    default = entry(whole, "default_prompt_name", str, path)
    prompts = entry(whole, "prompts", dict, path) or {}
    if default is not None and prompts.get(default):
        raise ValueError(
            f"{path} must put no prompt before every text, found {prompts[default]!r:.80}; set "
            "default_prompt_name to null and write it before the texts yourself"
        )
    if whole.get("truncate_dim") is not None:
        raise ValueError(f"{path} must leave vectors whole, found truncate_dim")
    path = modules["Transformer"] / _SETTINGS
    settings = read_optional_json(path)
    max_tokens = entry(settings, "max_seq_length", int, path)
    if max_tokens is None:  # newer versions leave it to the tokenizer
        tokenizer = read_optional_json(modules["Transformer"] / "tokenizer_config.json")
        max_tokens = int(min(tokenizer.get("model_max_length") or max_positions, max_positions))
    if not 3 <= max_tokens <= max_positions:
        raise ValueError(
            f"{path} must cut texts to at least 3 tokens and at most the {max_positions} that the "
            f"model reads, found {max_tokens}"
        )
    return EmbeddingConfig(
        pooling=_pooling(modules["Pooling"] / "config.json"),
        normalize="Normalize" in modules,
        max_tokens=max_tokens,
        lowercase=entry(settings, "do_lower_case", bool, path) or False,
    )


def _pooling(path: Path) -> Any:
    """`mean` or `cls`, which older files say in flags and newer ones by name."""
    settings = read_json(path)
    named = settings.get("pooling_mode")
    flags = [key for key, value in settings.items() if key.startswith("pooling_mode_") and value]
    chosen = [named] if isinstance(named, str) else (named or flags or ["mean"])
    for pooling, flag in _FLAGS.items():
        if chosen in ([pooling], [flag]):
            return pooling
    raise ValueError(
        f"{path} must pool by {' or '.join(_FLAGS)} alone, found {chosen!r:.200}; others are not "
        "read here"
    )


def write_embedding(
    draft: Path,
    embedding: EmbeddingConfig,
    hidden_size: int,
    max_tokens: int,
    dense: Linear | None = None,
) -> None:
    """Write the list of modules and their settings to the folder of an exported encoder.

    `max_tokens` is what the encoder reads, used if `embedding` says nothing; `dense` is a layer
    over the pooled vectors.
    """
    kinds = ["Transformer", "Pooling"]
    kinds += ["Dense"] if dense is not None else []
    kinds += ["Normalize"] if embedding.normalize else []
    folders = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": folder,
         "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, folder) in enumerate(zip(kinds, folders, strict=True))
    ]  # fmt: skip
    write_json(draft / _MODULES, modules)
    length = embedding.max_tokens or max_tokens
    write_json(draft / _SETTINGS, {"max_seq_length": length, "do_lower_case": embedding.lowercase})
    for folder in folders[1:]:
        (draft / folder).mkdir()
    flags = {flag: pooling == embedding.pooling for pooling, flag in _FLAGS.items()}
    flags |= dict.fromkeys(_OTHER_FLAGS, False)  # text-embeddings-inference asks for all four
    write_json(
        draft / "1_Pooling" / "config.json", {"word_embedding_dimension": hidden_size, **flags}
    )
    if dense is None:
        return
    weight, bias = (tensor.detach().cpu().contiguous() for tensor in (dense.weight, dense.bias))
    tensors = {"linear.weight": weight, "linear.bias": bias}
    save_file(tensors, draft / "2_Dense" / "model.safetensors")
    settings = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(draft / "2_Dense" / "config.json", settings)
