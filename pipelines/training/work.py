"""One training run as its workers see it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import MicroBatches
from bert_core.training.optimization.configuration import Restart
from pipelines.training.settings import TrainingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training run as its workers see it."""

    stage: str  # for people
    section: str  # of the recipe, where the settings are
    settings: TrainingSettings
    num_steps: int
    evaluate_every_steps: int
    build_model: Callable[[], TrainableModel]  # called under the seed of the initialization
    micro_batches: MicroBatches  # this rank's share of a step
    batches_of: MicroBatches  # the same, with nothing read ahead
    # Every rank calls these, and all of them get the same figures.
    evaluate: Callable[[TrainableModel], dict[str, float]]
    # After the last step, with the model on the CPU: a proof on any machine computes there, too.
    final_evaluation: Callable[[TrainableModel], dict[str, Any]]
    # Before the first step of a training run that finds no checkpoint; every rank calls it.
    begin: Callable[[TrainableModel], None] | None = None
    layer_decay: float = 1.0  # see `OptimizationConfig`
    rate_scales: Mapping[str, float] = field(default_factory=dict)  # likewise
    restart: Restart | None = None  # of the learning rate
    patience: int | None = None  # evaluations without a lower held-out loss; None: all steps
    # Ends the training run after so many steps, on all ranks alike: where it is only measured.
    is_enough: Callable[[int], bool] = lambda done: False
    # One of every kind that needs as much memory as any; rehearsed before the first step.
    largest_batches: Callable[[], Sequence[Batch]] | None = None

    def is_last(self, done: int) -> bool:
        """Whether the training run ends after `done` steps; all ranks ask once after each step."""
        return done == self.num_steps or self.is_enough(done)
