"""The families of tasks that an encoder is fine-tuned for: one module each, which holds `FAMILY`.

The stages of labelled texts, fine-tuning and evaluation know a family by what `TaskFamily` names,
and by nothing else: a new family is a new module here, and a recipe that asks for it.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # reading a recipe asks for the families' names alone
    import numpy as np

    from bert_core.batch import LabelledBatch
    from bert_core.config import EncoderConfig
    from bert_core.model.catalogue import TrainableModel
    from bert_core.vocabulary import WordPieceTokenizer
    from pipelines.artifacts import Artifact


class Answers(NamedTuple):
    """What a model says to every held-out item, as plain values; and how many items were cut."""

    values: list[int]
    num_truncated: int


class TaskExamples(Protocol):
    """The items of one split as the encoder takes them."""

    def __len__(self) -> int: ...

    def batch(self, indices: "np.ndarray") -> "LabelledBatch":
        """The items at `indices`, in that order."""

    def longest(self, size: int) -> "LabelledBatch":
        """The `size` items of most tokens: no batch of as many needs more memory."""

    def batches(
        self, size: int, rank: int, world_size: int
    ) -> "Iterator[tuple[int, LabelledBatch]]":
        """This rank's share of the batches of all items in order, `size` at a time, numbered."""

    def shuffled(self, seed: int, step: int, examples_per_step: int) -> "np.ndarray":
        """Indices of the items that optimizer step `step` learns from."""


class TaskFamily(Protocol):
    """One kind of task: its items, its model, and how its answers are scored."""

    curve: Mapping[str, str]  # the model's evaluation sums, and what they are called in a curve

    def build_model(self, config: "EncoderConfig", labelled: "Artifact") -> "TrainableModel":
        """The encoder of `config` with the family's head, from torch's generator."""

    def examples(
        self, labelled: "Artifact", split: str, tokenizer: "WordPieceTokenizer", max_tokens: int
    ) -> TaskExamples:
        """The items of `train` or `heldout`, cut to `max_tokens`."""

    def answers(
        self,
        model: "TrainableModel",
        tokenizer: "WordPieceTokenizer",
        labelled: "Artifact",
        rank: int = 0,
        world_size: int = 1,
    ) -> Answers:
        """What `model` says to the held-out items, shared out among the ranks; all get all of it.

        Raises UserError for a model with another head.
        """

    def figures(self, answers: Answers, labelled: "Artifact") -> dict[str, float]:
        """The scores of the held-out answers, each beside its `baseline/`."""

    def report(self, answers: Answers, labelled: "Artifact") -> dict[str, Any]:
        """What is worth knowing of the held-out answers beyond their scores, ready for JSON."""


def family_names() -> tuple[str, ...]:
    """Every family there is, in alphabetical order."""
    return tuple(sorted(module.name for module in iter_modules(__path__)))


def family_of(labelled: "Artifact") -> TaskFamily:
    """The family that an artifact of labelled items was made for."""
    module = import_module(f"{__name__}.{labelled.statistics['family']}")
    family: TaskFamily = module.FAMILY
    return family
