"""Stage: from training examples to a pretrained encoder."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

from bert_core.batch import Batch
from bert_core.config import SIZES
from bert_core.model.catalogue import TrainableModel, count_parameters
from bert_core.training.loop import MicroBatches
from bert_core.training.step_operations import batch_operations
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages import PRETRAINING
from pipelines.stages.examples.batches import ExampleReader, micro_batches, prefetched
from pipelines.stages.examples.settings import ExampleSet
from pipelines.stages.pretraining.continuing import (
    TokenModel,
    begin_informed,
    continued_model,
    new_model,
    settings_for,
)
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of, split_of
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact, Built, Draft
from pipelines.train.checkpoint import MODEL_FILES, CheckpointFolder, publish_model
from pipelines.train.imported import config_of, existing_encoder
from pipelines.train.launch import launched
from pipelines.train.metrics import finish_run, open_run, training_statistics
from pipelines.train.placement import is_single_threaded, resolve_device
from pipelines.train.ranks import rank_and_world_size
from pipelines.train.settings import ENDLESS
from pipelines.train.worker import Timing, Training, TrainingJob

_LEAST_STEPS: Final = 10  # beyond those that a budget was timed by


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`, from random weights or from an existing encoder.

    Its artifact holds weights, tokenizer and curve.
    """
    arithmetic, context = resolve_device(settings.precision, context)
    inputs = {"examples": examples, "vocabulary": vocabulary}
    encoder = None
    if settings.encoder is None:
        assert settings.size is not None, "only an existing encoder's size may have no name"
        num_layers, hidden_size, _ = SIZES[settings.size]
    else:
        encoder = existing_encoder(settings.encoder, context)
        config = config_of(encoder)
        num_layers, hidden_size = config.num_layers, config.hidden_size
        settings = settings_for(settings, encoder, examples, vocabulary, context.observe)
        inputs["encoder"] = encoder
    plain = settings.model_dump(mode="json")
    if settings.budget_minutes is not None:
        plain["num_steps"] = None  # measured once it trains: the budget names the encoder
    job = PretrainingJob(
        stage=PRETRAINING.name,
        settings=settings,
        precision=arithmetic.precision,
        cut=split_of(settings),
        one_thread_each=is_single_threaded(num_layers, hidden_size),
        examples=examples,
        vocabulary=vocabulary,
        encoder=encoder,
    )

    def build(draft: Draft) -> Built:
        with (
            open_run(PRETRAINING.name, plain, draft, context) as run_id,
            launched(job, CheckpointFolder.of(draft), context, run_id) as (checkpoint, result),
        ):
            publish_model(draft, checkpoint, load_tokenizer(vocabulary), result)
        statistics = {
            **result["final"],
            "num_steps": result["num_steps"],
            **training_statistics(result),
        }
        return Built(MODEL_FILES, statistics)

    artifact = context.store.get_or_build(
        PRETRAINING.kind,
        version=PRETRAINING.version,
        settings=arithmetic.named_in(plain),
        inputs=inputs,
        build=build,
    )
    finish_run(artifact, context)
    return artifact


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
    """This rank's work: its model, its batches, its figures."""

    settings: PretrainingSettings
    _model: TokenModel

    def __init__(self, job: PretrainingJob) -> None:
        self._job = job
        self._ranks = rank_and_world_size()
        self._heldout = HeldoutExamples(job.examples, load_tokenizer(job.vocabulary), *self._ranks)
        self._read_ahead: MicroBatches | None = None
        self.settings = job.settings
        self.evaluate_every_steps = job.settings.evaluate_every_steps
        if job.settings.budget_minutes is None:
            self.set_num_steps(job.settings.num_steps)
        else:
            self.budget_seconds = 60 * job.settings.budget_minutes
            self.set_num_steps(0)
        self._readers = {
            phase.examples: ExampleReader(job.examples, phase.examples)
            for phase in phases_of(self._phased)
        }

    def set_num_steps(self, num_steps: int) -> None:
        self.num_steps = num_steps  # 0 until the first steps of a budget were timed
        self._phased = self.settings.model_copy(update={"num_steps": num_steps or ENDLESS})

    def steps_within_budget(self, timing: Timing, done: int) -> int:
        """How many steps fit, each phase's as long as its operations say."""
        operations = {
            phase.examples: sum(
                batch_operations(self._model.config, batch)
                for _, batch in step_batches(self._phased, self._readers, phase.first_step)
            )
            for phase in phases_of(self._phased)
        }
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
            counts, rank = self._heldout.counts, self._ranks[0]
            begin_informed(cast(TokenModel, model), self.settings, self._job.examples, counts, rank)

    @contextmanager
    def reading_ahead(self) -> Iterator["Pretraining"]:
        with prefetched(self._own_batches, self.num_steps or ENDLESS) as batches:
            self._read_ahead = batches
            try:
                yield self
            finally:
                self._read_ahead = None

    def micro_batches(self, step: int) -> Iterable[tuple[int, Batch]]:
        return (self._read_ahead or self._own_batches)(step)

    def _own_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        return step_batches(self._phased, self._readers, step, *self._ranks)

    def evaluate(self, model: TrainableModel) -> dict[str, float]:
        return self._heldout.figures(cast(TokenModel, model), self.settings.evaluation_examples)

    def final_evaluation(self, model: TrainableModel) -> dict[str, Any]:
        figures = self._heldout.figures(
            cast(TokenModel, model), self.settings.final_evaluation_examples
        )
        return {**figures, "num_parameters": count_parameters(model)}


def step_batches(
    settings: PretrainingSettings,
    readers: Mapping[ExampleSet, ExampleReader],
    step: int,
    rank: int = 0,
    world_size: int = 1,
) -> Iterator[tuple[int, Batch]]:
    """This rank's micro-batches of a step, each with its number within the step.

    Short examples come first, then those of the full length. Each phase reads its own from their
    beginning, so (seed, step) is the whole position.
    """
    phase = next(each for each in reversed(phases_of(settings)) if step >= each.first_step)
    reader = readers[phase.examples]
    return micro_batches(
        reader,
        seed=settings.seed,
        step=step - phase.first_step,
        global_batch_size=phase.cut.global_batch_size,
        micro_batch_size=phase.cut.micro_batch_size,
        rank=rank,
        world_size=world_size,
        masking=settings.masking_at(step, reader.settings.masking_config()),
    )


def training_seconds(
    settings: PretrainingSettings, timing: Timing, done: int, operations: Mapping[ExampleSet, float]
) -> float:
    """What a training run of `settings.num_steps` takes, `done` of them in `timing.spent`.

    `timing.step` is of the first examples; a step of others takes as much longer as it has more
    `operations`, by the name of the examples.
    """
    num_steps, phases = settings.num_steps, phases_of(settings)
    first = operations.get(phases[0].examples, 1.0)
    steps = sum(phase.num_steps * operations.get(phase.examples, first) / first for phase in phases)
    evaluations = num_steps // settings.evaluate_every_steps + 1
    checkpoints = num_steps // settings.checkpoint_every_steps + 1
    return (
        timing.spent
        + (steps - done) * timing.step
        + evaluations * timing.evaluation
        + checkpoints * timing.checkpoint
    )


def steps_within(
    settings: PretrainingSettings, timing: Timing, done: int, operations: Mapping[ExampleSet, float]
) -> int:
    """The most steps that `budget_minutes` allows, `done` of them already.

    Raises UserError where these are hardly more than were timed.
    """
    assert settings.budget_minutes is not None

    def seconds(num_steps: int) -> float:
        chosen = settings.model_copy(update={"num_steps": num_steps})
        return training_seconds(chosen, timing, done, operations)

    fits = bisect_right(range(1, ENDLESS), settings.budget_minutes * 60, key=seconds)
    least = done + _LEAST_STEPS
    if fits < least:
        raise UserError(
            f"pretraining.budget_minutes={settings.budget_minutes:g} is too short: {least} "
            f"steps take about {seconds(least) / 60:.2g} minutes here; raise it, or "
            "lower pretraining.global_batch_size or size"
        )
    return fits
