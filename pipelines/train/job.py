"""A training run as it travels to its workers, and as one of them carries it out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from pipelines.train.placement import BatchSplit
from pipelines.train.settings import TrainingSettings


class Training(ABC):
    """The work of one rank: its model, its share of every step, its evaluations."""

    settings: TrainingSettings
    num_steps: int
    evaluate_every_steps: int
    patience: int | None = None  # evaluations without a lower held-out loss; None: all steps
    layer_decay: float = 1.0  # see `OptimizationConfig`
    rate_scales: Mapping[str, float] = {}

    @abstractmethod
    def build_model(self) -> TrainableModel:
        """The model before its first step; called under the seed of the initialization."""

    def begin(self, model: TrainableModel) -> None:  # noqa: B027  (most need nothing)
        """Prepare a model that no checkpoint was loaded into; every rank calls it."""

    @abstractmethod
    def micro_batches(self, step: int) -> Iterable[tuple[int, Batch]]:
        """This rank's share of a step, each micro-batch with its index among those of all ranks."""

    @abstractmethod
    def evaluate(self, model: TrainableModel) -> dict[str, float]:
        """Held-out figures; every rank calls it and gets the same."""

    @abstractmethod
    def final_evaluation(self, model: TrainableModel) -> dict[str, Any]:
        """Results of the finished model, on the CPU, where verification computes too."""

    def reading_ahead(self) -> AbstractContextManager["Training"]:
        """A block in which `micro_batches` may be read ahead of the step that asks for them."""
        return nullcontext(self)

    # Of a training run whose number of steps follows from a budget of time.
    budget_seconds: float | None = None

    def set_num_steps(self, num_steps: int) -> None:
        """Train for `num_steps`, which the time of the first steps gave."""
        raise NotImplementedError

    def steps_within_budget(self, timing: "Timing", done: int) -> int:
        """How many steps fit the budget after `done` of them; UserError for hardly any."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What parts of a training run take, in seconds."""

    spent: float  # so far
    step: float
    evaluation: float
    checkpoint: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(ABC):
    """What every worker of a training run is given: settings and artifacts, pickled."""

    stage: str  # for people
    settings: TrainingSettings
    precision: Literal["bf16", "float32"]
    cut: BatchSplit  # what the workers share
    one_thread_each: bool = False  # whether a CPU trains this model fastest with a rank a core

    name: ClassVar[str]  # of its checkpoints: a later run of the same name resumes from them

    @abstractmethod
    def on_rank(self) -> Training:
        """The work of the calling rank."""
