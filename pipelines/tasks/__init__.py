"""The families of tasks that an encoder is fine-tuned for: one module each, which holds `FAMILY`.

The stages of labelled items, fine-tuning and evaluation know a family by what `TaskFamily` names,
and by nothing else. A person's own task is a file with a class, named by its path: `rows` makes a
family of it. What several families share is in modules of its own, such as
`encoding`, `scoring`, `calibration` and `tfidf`.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:  # reading a recipe asks for the families' names alone
    import numpy as np
    import pyarrow as pa

    from bert_core.batch import LabelledBatch, RowBatch
    from bert_core.config import EncoderConfig
    from bert_core.model.catalogue import Model, TrainableModel
    from bert_core.vocabulary import WordPieceTokenizer
    from pipelines.tasks.scoring import WeightedScore

Form = Literal["texts", "label_lists", "pairs", "choices", "words", "questions", "rows"]
"""What a record of labelled data holds: see `pipelines.stages.dataset.records`."""
Item = dict[str, Any]  # by the family's schema
FAMILIES: Final = (
    "classification", "multi_label", "multiple_choice", "question_answering", "regression",
    "sentence_embedding", "tagging",
)  # fmt: skip


class Items(NamedTuple):
    """Labelled items of one split, and the names of the classes where there are any."""

    rows: Sequence[Item]
    labels: tuple[str, ...] = ()


class Reading(NamedTuple):
    """How a model reads what is longer than it: in windows, or cut.

    With `text_windows` texts that are labelled as a whole are learned in windows, too. Answers are
    shared out among ranks.
    """

    max_tokens: int
    text_windows: bool = False
    rank: int = 0
    world_size: int = 1


class Probable(NamedTuple):
    """N answers as probabilities of C classes each, and the classes that are right."""

    probabilities: "np.ndarray"  # [N, C]
    classes: "np.ndarray"  # [N]


class Answers(NamedTuple):
    """What a model says to every item, as plain values; and how many items were cut."""

    values: list[Any]
    num_truncated: int
    probable: Probable | None = None  # of a model that gives probabilities


Baselines = Mapping[str, Sequence[Any]]  # by the simpler model's name, values as in `Answers`


class BadItemError(ValueError):
    """An item that cannot be learned from: what every item must, and what was found."""

    def __init__(self, must: str, found: str) -> None:
        super().__init__(f"an item must {must}, found {found}")
        self.must = must  # the same for all such items
        self.found = found


class TaskExamples(Protocol):
    """The items of one split as the encoder takes them: N sequences, or groups of them."""

    def __len__(self) -> int:
        """N."""

    def batch(self, indices: "np.ndarray") -> "LabelledBatch | RowBatch":
        """The examples at `indices`, in that order."""


class TaskFamily(Protocol):
    """One kind of task: its items, its model, and how its answers are scored."""

    form: Form = "texts"
    score: str  # the figure that says most
    curve: Mapping[str, str]  # the model's evaluation sums, and what they are called in a curve
    model: "type[TrainableModel]"  # that answers it
    guess: str = "constant guess"  # what `described` compares with, such as "majority class"

    @property
    def schema(self) -> "pa.Schema":
        """Of an item."""

    def item(self, record: Mapping[str, Any]) -> Item:
        """A record of the family's form as an item; raises BadItemError for one that is none."""

    def group(self, item: Item) -> str:
        """What an item is about: items about the same are never on both sides of a split."""
        text: str = item["text"]
        return text

    def content(self, item: Item) -> str:
        """All that a model reads of an item: an answer to what was trained on is from memory."""
        return "\n".join(filter(None, (self.group(item), item.get("second_text"))))

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """The classes, in order; raises UserError where nothing can be learned or measured."""

    def classes_of(self, items: Sequence[Item]) -> set[str]:
        """The classes that the items name, which a model has to know; none where it has none."""
        return set()

    def unknown_classes(self, items: Items) -> list[str]:
        """The classes that the items name and that `items.labels` lack, in order."""
        return sorted(self.classes_of(items.rows) - {*items.labels})

    def check_scored(self, rows: Sequence[Item]) -> None:
        """Raise UserError where scores of the answers to these items would say nothing."""
        return  # by default they always say something

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """Counts of the two parts, and figures named `baseline/…`, ready for JSON."""

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        """The answers of simpler models that learned from `train` alone; none by default."""
        return {}

    def build_model(self, config: "EncoderConfig", labels: tuple[str, ...]) -> "TrainableModel":
        """The encoder of `config` with the family's head, from torch's generator."""
        settings: dict[str, Any] = {"num_labels": len(labels), "labels": labels} if labels else {}
        return self.model(config, **settings)

    def on_one_scale(self, learned: Items, measured: Items) -> tuple[Items, Items]:
        """What is learned from and what is measured during that, as `examples` takes them.

        Raises UserError where items that were set aside leave nothing to learn or to measure.
        """
        return learned, measured

    def examples(
        self, items: Items, tokenizer: "WordPieceTokenizer", reading: Reading
    ) -> TaskExamples:
        """The items as the model learns from them."""

    def answers(
        self, model: "Model", tokenizer: "WordPieceTokenizer", items: Items, reading: Reading
    ) -> Answers:
        """What a model of the family says to the items; all ranks get all of it."""

    def scores(self, answers: Answers, items: Items) -> "Mapping[str, WeightedScore]":
        """The scores of the answers, `score` among them, as functions of how often items count."""

    def figures(self, answers: Answers, items: Items) -> dict[str, float]:
        """The scores of all items, and what is not made of sums over items."""
        from pipelines.tasks.scoring import figures_of

        return figures_of(self.scores(answers, items), len(items.rows))

    def report(self, answers: Answers, items: Items) -> dict[str, Any]:
        """Details of the answers beyond their scores, ready for JSON; none by default."""
        return {}


def by_split(
    train: Items, heldout: Items, count: Callable[[Sequence[Item]], Any]
) -> dict[str, Any]:
    """What `count` says of the items of each split."""
    return {"train": count(train.rows), "heldout": count(heldout.rows)}


def is_own(name: str) -> bool:
    """Whether this names a file with a person's own task, and no family of ours."""
    return name.endswith(".py")


def family_module(name: str) -> str:
    """A family's module by its name, which people may write as in `multi-label`.

    For a user's own task it is the name of its file.
    """
    return PurePosixPath(name).stem if is_own(name) else name.replace("-", "_")


def family_title(module: str) -> str:
    """A family's name as people are shown it: `multi-label`, as its preset is called."""
    return module.replace("_", "-")


def family(name: str) -> TaskFamily:
    """The family of this name, or the task in this file.

    Raises ModuleNotFoundError where there is none, UserError for a file that cannot be used.
    """
    if is_own(name):
        from pipelines.tasks.rows import read_task

        return read_task(name, FAMILIES)
    named: TaskFamily = import_module(f"{__name__}.{family_module(name)}").FAMILY
    return named


def family_for(model: "Model", name: str) -> TaskFamily:
    """The family `name` with which `model` is evaluated: that of its own class, if it has one."""
    from bert_core.model.rows import RowModel
    from pipelines.tasks.rows import RowTask

    return RowTask(type(model)) if isinstance(model, RowModel) else family(name)


def family_of_model(model: "Model") -> str | None:
    """The name of the family whose items `model` answers; None where there is none."""
    from bert_core.model.rows import RowModel

    if isinstance(model, RowModel):
        return model.head_name
    return next((name for name in FAMILIES if type(model) is family(name).model), None)
