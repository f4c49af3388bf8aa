"""Starting a model from another one's encoder."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bert_core.config import EmbeddingConfig
from bert_core.model.catalogue import Model, SentenceEncoder
from bert_core.tensor_files import check_names
from bert_core.training.state import check_same_encoder, read_config, read_weights

_HEADS = ("pooler.", "vocabulary_head.", "next_sentence_head.")  # taken where both have one


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialization:
    """Which tensors of a model came from elsewhere and which did not."""

    loaded: tuple[str, ...]
    new: tuple[str, ...]  # of the model, left as they were
    unused: tuple[str, ...]  # of the source


def load_encoder_into(model: Model, source: Model | Path | str) -> Initialization:
    """Start `model` from the encoder of another model, and from its heads that both have.

    These are the pooler and the two of pretraining; a task's own head keeps its random weights. A
    model with an `embedding` takes that of the source, if it has one.

    `source` is a model, such as `import_model` returns, or the folder of a saved one; its tensors
    are copied to the device of `model`. Returns which tensors were loaded and which still have
    random weights. Raises ValueError if a folder holds no model, and for an encoder of another
    build; `resize_positions` and `resize_vocabulary` change its size.
    """
    if isinstance(source, Model):
        tensors, config = source.state_dict(), source.config.to_dict()
        name, embedding = f"the {source.head_name} model", source.embedding
    else:
        saved = read_config(source)
        tensors, config, name = read_weights(source), saved["encoder"], str(source)
        values = saved.get("embedding")
        embedding = None if values is None else EmbeddingConfig.from_dict(values)
    check_same_encoder(model.config, config, name)
    own = model.state_dict()
    shared = ("encoder.", *(head for head in _HEADS if _has(own, head) and _has(tensors, head)))
    wanted = {tensor for tensor in own if tensor.startswith(shared)}
    offered = {name: tensor for name, tensor in tensors.items() if name.startswith(shared)}
    check_names(offered, wanted, name)
    model.load_state_dict({**own, **offered})
    if model.embedding is not None and embedding is not None:
        # A model of cosines has vectors of length 1, whatever it began with.
        is_unit = embedding.normalize or isinstance(model, SentenceEncoder)
        model.embedding = replace(embedding, normalize=is_unit)
    return Initialization(
        loaded=tuple(sorted(wanted)),
        new=tuple(sorted(set(own) - wanted)),
        unused=tuple(sorted(set(tensors) - wanted)),
    )


def _has(tensors: Iterable[str], head: str) -> bool:
    return any(name.startswith(head) for name in tensors)
