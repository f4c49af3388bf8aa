"""Write a directory that `transformers` and sentence-transformers open without warnings."""

from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any, Final, cast

from safetensors.torch import save_file

from bert_core.config import EmbeddingConfig, Pooling
from bert_core.files import publish, write_json
from bert_core.hugging_face.sentence_transformers import write_embedding
from bert_core.hugging_face.tensors import (
    ARCHITECTURES,
    CONFIG_NAMES,
    OWN_ARCHITECTURES,
    OWN_WEIGHT,
    PROBLEMS,
    to_hugging_face,
)
from bert_core.model.catalogue import Model
from bert_core.model.task_models import TextModel
from bert_core.vocabulary import WordPieceTokenizer

_OWN_CODE: Final = Path(__file__).with_name("modeling_mean_bert.py")
_ARCHITECTURES: Final = {
    **{head: architecture for architecture, head in ARCHITECTURES.items()},
    **dict.fromkeys(PROBLEMS, "BertForSequenceClassification"),
    "sentence_embedding": "BertModel",
}


def export_model(
    directory: Path | str,
    model: Model,
    tokenizer: WordPieceTokenizer | None = None,
    *,
    pooling: str | None = None,
) -> None:
    """Write `model` and its tokenizer to a new folder for `transformers`.

    With `pooling` ("mean" or "cls") the encoder alone is written, for sentence-transformers, which
    then computes the same embeddings as ours, and opens for `AutoModel` too. Without it a model
    that says how it makes vectors is written for sentence-transformers, too, with the heads it has.
    A head over the mean of all tokens has no class in `transformers`: the folder brings its own,
    which `trust_remote_code=True` opens, and sentence-transformers' `encode` gives the logits, too.
    Raises ValueError for another pooling, and if `directory` is in use.
    """
    over_mean = pooling is None and reads_mean(model)
    embedding = EmbeddingConfig(normalize=False) if over_mean else model.embedding
    if pooling is not None:
        embedding = replace(embedding or EmbeddingConfig(), pooling=cast(Pooling, pooling))

    def write(draft: Path) -> None:
        is_bare = pooling is not None
        source = dict(model.state_dict())
        if isinstance(model, TextModel):
            source |= model.head_layer().state_dict(prefix="task_head.dense.")
        if is_bare:
            source = {n: t for n, t in source.items() if n.startswith(("encoder.", "pooler."))}
        architecture = "BertModel" if is_bare else architecture_of(model)
        tensors = to_hugging_face(source, model.head_name)
        if over_mean:
            tensors[OWN_WEIGHT] = tensors[OWN_WEIGHT][None]
            copyfile(_OWN_CODE, draft / _OWN_CODE.name)
        if architecture == "BertModel":
            tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
        copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(copies, draft / "model.safetensors", metadata={"format": "pt"})
        write_json(draft / "config.json", their_config(model, architecture, tokenizer))
        if tokenizer is not None:
            tokenizer.save(
                draft,
                max_tokens=model.config.max_position_embeddings,
                fills_masks=model.head_name == "pretraining" and not is_bare,
            )
        if embedding is not None:
            dense = cast(TextModel, model).head_layer() if over_mean else None
            width, length = model.config.hidden_size, model.config.max_position_embeddings
            write_embedding(draft, embedding, width, length, dense)

    publish(Path(directory), write)


def reads_mean(model: Model) -> bool:
    """Whether its head reads the mean of all tokens, which no class of `transformers` does."""
    return isinstance(model, TextModel) and model.pooler is None


def their_config(
    model: Model, architecture: str, tokenizer: WordPieceTokenizer | None
) -> dict[str, Any]:
    """The `config.json` of `transformers` for a model that is written as `architecture`."""
    ours = model.config.to_dict()
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": "gelu",
        "dtype": "float32",
        "pad_token_id": 0 if tokenizer is None else tokenizer.pad_id,
        "tie_word_embeddings": True,
        **{theirs: ours[name] for name, theirs in CONFIG_NAMES.items() if name in ours},
    }
    if architecture in OWN_ARCHITECTURES.values():
        automatic = architecture.replace("MeanBert", "AutoModel")
        config["auto_map"] = {automatic: f"{_OWN_CODE.stem}.{architecture}"}
    labels = getattr(model, "labels", None)
    if model.head_name in PROBLEMS:
        config["problem_type"] = PROBLEMS[model.head_name]
    if model.head_name == "regression":
        labels = ["LABEL_0"]
        # sentence-transformers' cross-encoders take one number through a sigmoid otherwise.
        config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    elif labels is None and "num_labels" in model.head_settings():
        labels = [f"LABEL_{index}" for index in range(model.head_settings()["num_labels"])]
    if labels is not None:
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
        config["label2id"] = {label: index for index, label in enumerate(labels)}
    return config


def architecture_of(model: Model) -> str:
    """The class of `transformers` with the model's head; raises ValueError if it has none."""
    if reads_mean(model):
        return OWN_ARCHITECTURES[model.head_name]
    if model.head_name == "pretraining":
        whole = model.head_settings()["next_sentence"]
        return "BertForPreTraining" if whole else "BertForMaskedLM"
    if model.head_name not in _ARCHITECTURES:
        raise ValueError(
            f"a published model must have a head that transformers has, found {model.head_name}; "
            "export its encoder alone (--pooling mean)"
        )
    return _ARCHITECTURES[model.head_name]
