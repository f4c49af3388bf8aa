"""Which head a published checkpoint has, and its settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from bert_core.files import entry
from bert_core.hugging_face.tensors import PROBLEMS, TASKS

_TASK_HEADS: Final = ("classifier.weight", "qa_outputs.weight")
# A tensor that a checkpoint of each architecture must hold besides the encoder.
_HEAD_OF: Final = {
    **dict.fromkeys(TASKS, "classifier.weight"),
    **dict.fromkeys(("BertForPreTraining", "BertForMaskedLM", "BertLMHeadModel"),
                    "cls.predictions.bias"),
    "BertForQuestionAnswering": "qa_outputs.weight",
    "BertForNextSentencePrediction": "cls.seq_relationship.weight",
}  # fmt: skip
_LABELLED: Final = (
    "sequence_classification", "multi_label_classification", "token_classification",
)  # fmt: skip


def head_of(config: dict[str, Any], tensors: Mapping[str, Tensor], path: Path) -> str:
    """The head that takes every tensor."""
    architecture = _architecture(config, path)
    needed = _HEAD_OF.get(architecture)
    if needed is not None and needed not in tensors:
        raise ValueError(
            f"the weights of {path.parent} have no {needed}, the head of the {architecture} that "
            "config.json names; name the head encoder to read the encoder alone"
        )
    if "cls.predictions.bias" in tensors:
        # One that is no decoder reads both sides of a token, whatever its class is called: the
        # reference loads it with a warning and masks nothing.
        is_decoder = entry(config, "is_decoder", bool, path)
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


def settings_of(
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
        raise ValueError(f"the weights of {path.parent} have no head for {head}")
    published, problem = PROBLEMS.get(head), config.get("problem_type")
    if published and problem not in (None, published):
        raise ValueError(
            f"{path} must say problem_type={published!r} for the head {head}, found "
            f"{problem!r:.80}; name the head encoder to read the encoder alone"
        )
    return {"num_labels": len(weight), "labels": _labels(config, len(weight), path)}


def _labels(config: dict[str, Any], num_labels: int, path: Path) -> list[str] | None:
    """The names of the classes; None if there are none."""
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
            raise ValueError(f"{path}: {label!r:.80} in id2label is no name of a class")
    found = [str(label) for label in labels]
    if len(set(found)) != num_labels:
        raise ValueError(f"{path} must give every class a name of its own in id2label")
    return found


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
