"""One pretraining as its workers see it: its model, its batches, its figures.

Short examples come first, then those of the full length. Each phase reads its own from their
beginning, so (seed, step) is the whole position still.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel, count_parameters
from bert_core.training.loop import MicroBatches
from bert_core.training.step_operations import batch_operations
from pipelines.stages.examples.batches import ExampleReader, micro_batches, prefetched
from pipelines.stages.pretraining.budget import steps_within
from pipelines.stages.pretraining.continuing import (
    TokenModel,
    begin_informed,
    continued_model,
    new_model,
)
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.settings import Phase, PretrainingSettings, phases_of
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact
from pipelines.train.job import Timing, Training, TrainingJob
from pipelines.train.ranks import rank_and_world_size
from pipelines.train.settings import ENDLESS


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainingJob(TrainingJob):
    """A pretraining on `examples`, from random weights or from an `encoder`."""

    name: ClassVar[str] = "pretraining"

    settings: PretrainingSettings
    examples: Artifact
    vocabulary: Artifact
    encoder: Artifact | None

    def on_rank(self) -> "Pretraining":
        return Pretraining(self)


class Pretraining(Training):
    """This rank's work."""

    settings: PretrainingSettings
    _model: TokenModel

    def __init__(self, job: PretrainingJob) -> None:
        self._job = job
        self._ranks = rank_and_world_size()
        self._heldout = HeldoutExamples(job.examples, load_tokenizer(job.vocabulary), *self._ranks)
        self._read_ahead: MicroBatches | None = None
        self.settings = job.settings
        self.evaluate_every_steps = job.settings.evaluate_every_steps
        self.num_steps = 0
        if job.settings.budget_minutes is None:
            self.num_steps = job.settings.num_steps
        else:
            self.budget_seconds = 60 * job.settings.budget_minutes
        self._examples = TrainingExamples(self._endless(), job.examples, *self._ranks)

    def _endless(self) -> PretrainingSettings:
        return self.settings.model_copy(update={"num_steps": self.num_steps or ENDLESS})

    def set_num_steps(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self._examples.set_settings(self._endless())

    def steps_within_budget(self, timing: Timing, done: int) -> int:
        """How many steps fit, each phase's as long as its operations say."""
        operations: dict[str, float] = {}
        for phase in phases_of(self._endless()):
            operations[phase.examples] = self._examples.operations(phase, self._model)
        return steps_within(self.settings, timing, done, operations)

    def build_model(self) -> TokenModel:
        job = self._job
        if job.encoder is not None:
            self._model = continued_model(self.settings, job.encoder, job.examples)
        else:
            self._model = new_model(self.settings, job.examples)
        return self._model

    def begin(self, model: TrainableModel) -> None:
        if self.settings.initialization != "published":
            counts = (self._heldout.unigrams.weights - 1).clip(min=0)
            begin_informed(
                cast(TokenModel, model), self.settings, self._job.examples, counts, self._ranks[0]
            )

    @contextmanager
    def reading_ahead(self) -> Iterator["Pretraining"]:
        with prefetched(self._examples.micro_batches, self.num_steps or ENDLESS) as batches:
            self._read_ahead = batches
            try:
                yield self
            finally:
                self._read_ahead = None

    def micro_batches(self, step: int) -> Iterable[tuple[int, Batch]]:
        return (self._read_ahead or self._examples.micro_batches)(step)

    def evaluate(self, model: TrainableModel) -> dict[str, float]:
        return self._heldout.figures(cast(TokenModel, model), self.settings.evaluation_examples)

    def final_evaluation(self, model: TrainableModel) -> dict[str, Any]:
        figures = self._heldout.figures(
            cast(TokenModel, model), self.settings.final_evaluation_examples
        )
        return {**figures, "num_parameters": count_parameters(model)}


class TrainingExamples:
    """A rank's micro-batches of any step, whatever its phase."""

    def __init__(
        self,
        settings: PretrainingSettings,
        examples: Artifact,
        rank: int,
        world_size: int,
    ) -> None:
        self.set_settings(settings)
        self._readers = {
            phase.examples: ExampleReader(examples, phase.examples) for phase in self._phases
        }
        self._ranks = rank, world_size

    def set_settings(self, settings: PretrainingSettings) -> None:
        """Cut the steps into phases as `settings` say, of the same examples."""
        self._settings = settings
        self._phases = phases_of(settings)

    def operations(self, phase: Phase, model: TrainableModel) -> float:
        """What a step of `phase` takes over all ranks, in operations; the same on each of them."""
        batches = self._of_ranks(phase, phase.first_step, 0, 1)
        return sum(batch_operations(model, batch) for _, batch in batches)

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        """Those of this rank, each with its number within the step."""
        phase = next(each for each in reversed(self._phases) if step >= each.first_step)
        return self._of_ranks(phase, step, *self._ranks)

    def _of_ranks(
        self, phase: Phase, step: int, rank: int, world_size: int
    ) -> Iterator[tuple[int, Batch]]:
        reader = self._readers[phase.examples]
        return micro_batches(
            reader,
            seed=self._settings.seed,
            step=step - phase.first_step,
            global_batch_size=phase.cut.global_batch_size,
            micro_batch_size=phase.cut.micro_batch_size,
            rank=rank,
            world_size=world_size,
            masking=self._settings.masking_at(step, reader.masking_config),
        )
