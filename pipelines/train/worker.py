"""What one Ray Train worker does: restore the last checkpoint, take steps, report, save, end.

A mistake of a person's, or a lack of memory or disk, is a UserError: it ends the training run on
all ranks.
"""

import math
import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import ray.train.torch
import torch
from ray.actor import ActorHandle

from bert_core.backends.context import return_freed_memory
from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.guard import RECORD, GuardConfig, SkippedStepsError
from bert_core.training.loop import SETTLING_BATCHES, StepReport, train
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position
from pipelines.errors import DivergedError, UserError, first_line
from pipelines.train.checkpoint import (
    CheckpointFolder,
    Checkpoints,
    TrainState,
    check_disk_space,
    restore,
    save,
    save_at_end,
)
from pipelines.train.metrics import EarlyStopping, MetricLog, Telemetry
from pipelines.train.ranks import all_gather, broadcast, rank_and_world_size
from pipelines.train.settings import ENDLESS, BatchSplit, TrainingSettings
from pipelines.versions import computing_machine, other_versions

# The first steps of a training run with a budget of time are timed, for at most this long and this
# share of the budget. Their rate is next to nothing, since the warm-up has no end yet.
_TIMED_SECONDS, _TIMED_SHARE = 20.0, 0.05
_FEWEST_TIMED, _MOST_TIMED = 3, 400  # steps
# In errors of torch, C++ and oneDNN when there is no memory left.
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a memory", "out of memory")


class Training(ABC):
    """The work of one rank: its model, its share of every step, its evaluations."""

    settings: TrainingSettings
    num_steps: int  # 0 where a budget decides, until the first steps were timed
    evaluate_every_steps: int
    patience: int | None = None  # evaluations without a lower validation loss; None: all steps
    layer_decay: float = 1.0  # see `OptimizationConfig`
    embeddings_rate: float = 1.0
    budget_seconds: float | None = None  # which the number of steps follows from

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

    def set_num_steps(self, num_steps: int) -> None:
        """Train for `num_steps`, which the time of the first steps gave."""
        self.num_steps = num_steps

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker is given: the job, and where and how to do it."""

    job: TrainingJob
    checkpoints: CheckpointFolder
    messages: "ActorHandle[Any]"
    run_id: str | None
    tracking_uri: str | None
    num_threads: int
    versions: Mapping[str, str]  # of the process that launched it


def train_on_rank(assignment: Assignment) -> dict[str, Any]:
    """Train from the last checkpoint to the last step, or to a stop; returns the result."""
    started = time.perf_counter()
    job = assignment.job
    if others := other_versions(assignment.versions):  # a node that joined after the check of nodes
        raise UserError(f"{platform.node()} {others}")
    rank = rank_and_world_size()[0]
    node = ray.train.get_context()
    torch.set_num_threads(assignment.num_threads)
    return_freed_memory()  # the parameters move when the optimizer is built
    device = ray.train.torch.get_device()
    training = job.on_rank()
    torch.manual_seed(training.settings.seed)
    with within_memory(job.stage):
        model = training.build_model()
        model = model.to(device)
        optimizer = build_optimizer(model, optimization(training))
        metrics = None
        if rank == 0 and assignment.run_id is not None and assignment.tracking_uri is not None:
            metrics = MetricLog(assignment.tracking_uri, assignment.run_id)
        messages = assignment.messages if rank == 0 else None
        telemetry = Telemetry(job.stage, training.num_steps, messages, metrics)
        state = TrainState(
            model=model,
            optimizer=optimizer,
            telemetry=telemetry,
            checkpoints=Checkpoints(assignment.checkpoints),
            is_writer=rank == 0,
            first_of_node=rank - node.get_local_rank(),  # Ray numbers them node by node
            best=None if training.patience is None else EarlyStopping(training.patience),
        )
        with closing(telemetry):  # also after an error: what led there is reported
            position = restore(state, training.settings.seed)
            if position.step:
                telemetry.show(position.step, f"{job.stage} resumed from step {position.step}")
            else:
                if rank == 0:
                    check_disk_space(job.stage, state)
                training.begin(model)
            loop = TrainingLoop(
                job=job,
                training=training,
                state=state,
                stop=messages.stop_wish.remote() if messages is not None else None,
                started=started,
            )
            position, is_last = loop.train_from(position)
            result: dict[str, Any] = {"checkpoint": save_at_end(state, position)}
            if is_last:
                if state.best is not None:
                    state.best.load_into(model)
                result["final"] = training.final_evaluation(model.cpu())
                result["computed_on"] = computing_machine()
    return {**telemetry.summary(), **result}


def optimization(training: Training) -> OptimizationConfig:
    """The optimizer's own configuration for a training run."""
    settings = training.settings
    num_steps = training.num_steps or ENDLESS
    assert settings.learning_rate != "auto", "a stage resolves the rate before it trains"
    return OptimizationConfig(
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        warmup_steps=round(num_steps * settings.warmup_fraction),
        num_steps=num_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_gradient_norm,
        schedule=settings.schedule,
        decay_fraction=settings.decay_fraction,
        betas=settings.betas,
        muon_momentum=settings.muon_momentum,
        layer_decay=training.layer_decay,
        embeddings_rate=training.embeddings_rate,
        exchange_dtype=settings.exchange_dtype,
        guard=GuardConfig(
            spike_factor=settings.spike_factor, max_skipped_in_a_row=settings.max_skipped_steps
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """Takes the steps of `training` until the last one or a stop. All ranks call its methods."""

    job: TrainingJob
    training: Training
    state: TrainState
    stop: "ray.ObjectRef | None"  # resolves when a stop is requested; rank 0 passes it on
    started: float  # when the process was ready, on the clock of `time.perf_counter`

    def train_from(self, position: Position) -> tuple[Position, bool]:
        """Take all steps that are left; returns where it ended, and whether all are done."""
        training, telemetry = self.training, self.state.telemetry
        try:
            if training.budget_seconds is not None:
                if not telemetry.num_steps:
                    position = self._take_timed_steps(position, training.budget_seconds)
                    if not telemetry.num_steps:  # stopped before
                        return position, False
                training.set_num_steps(telemetry.num_steps)
                optimizer, whole = self.state.optimizer, optimization(training)
                optimizer.config = replace(
                    optimizer.config, num_steps=whole.num_steps, warmup_steps=whole.warmup_steps
                )
            return self._take_steps(position, training.num_steps)
        except SkippedStepsError as error:
            telemetry.skip(self.state.optimizer.guard.new_skipped())
            telemetry.close()
            # Ray ends all ranks once one has raised: what led there is reported first.
            all_gather(None)
            raise DivergedError(
                f"{error} ({self.job.cut.section} has learning_rate, warmup_fraction, precision "
                "and spike_factor)"
            ) from error

    def _take_steps(
        self, position: Position, num_steps: int, is_enough: Callable[[int], bool] | None = None
    ) -> tuple[Position, bool]:
        """Take steps until `num_steps` are done, a stop is wanted, or `is_enough(done)`."""
        training, state, settings = self.training, self.state, self.training.settings
        optimizer, telemetry = state.optimizer, state.telemetry
        is_last = position.step >= num_steps or self._is_patience_over()
        if is_last:  # where the run stood when it was to be published
            return position, True
        num_tokens = torch.tensor(telemetry.num_tokens, dtype=torch.float64, device=state.device)
        with training.reading_ahead() as reading:
            reports = train(
                state.model,
                optimizer,
                reading.micro_batches,
                seed=position.seed,
                first_step=position.step,
                num_steps=num_steps,
                precision=self.job.precision,
                wants_stop=self._is_stop_wanted,
            )
            started = time.perf_counter()
            for report in reports:
                done = report.step + 1
                is_last = done == num_steps
                num_tokens += report.num_tokens  # on the device: reading it would wait for the step
                telemetry.training_seconds += time.perf_counter() - started
                is_due = done % settings.checkpoint_every_steps == 0
                is_evaluation = done % training.evaluate_every_steps == 0 or is_last
                is_logged = is_due or is_last or done % settings.log_every_steps == 0
                if is_logged or is_evaluation or done % RECORD == 0:
                    telemetry.skip(optimizer.guard.new_skipped())
                if is_logged:
                    telemetry.log(done, self._figures(report))
                    telemetry.log_speed(done, float(num_tokens))
                if is_evaluation:
                    self._evaluate(done)
                    is_last = is_last or self._is_patience_over()
                telemetry.show(done)
                position = replace(position, step=done)
                if is_due and not is_last:
                    save(state, position)
                if is_last or (is_enough is not None and is_enough(done)):
                    break
                started = time.perf_counter()
        telemetry.num_tokens = float(num_tokens)
        telemetry.skip(optimizer.guard.new_skipped())
        return position, is_last

    def _is_stop_wanted(self) -> bool:
        return self.stop is not None and bool(ray.wait([self.stop], timeout=0)[0])

    def _is_patience_over(self) -> bool:
        best = self.state.best  # the same on all ranks
        return best is not None and best.should_stop(self.state.telemetry.history)

    def _evaluate(self, step: int) -> None:
        state, telemetry = self.state, self.state.telemetry
        telemetry.log(step, self.training.evaluate(state.model))
        if state.best is not None:
            state.best.update(state.model, telemetry.history)

    def _figures(self, report: StepReport) -> dict[str, float]:
        losses = {f"train/{name}_loss": float(value) for name, value in report.losses.items()}
        skipped = self.state.telemetry.skipped
        figures = {
            "train/loss": float(report.loss),
            **(losses if len(losses) > 1 else {}),
            "train/learning_rate": report.learning_rate,
            "train/gradient_norm": float(report.grad_norm),
            **({"train/skipped_steps": len(skipped)} if skipped else {}),
        }
        return {name: value for name, value in figures.items() if math.isfinite(value)}

    def _take_timed_steps(self, position: Position, budget: float) -> Position:
        """Take the first steps, and set the number of steps from their time; not after a stop."""
        training, state, telemetry = self.training, self.state, self.state.telemetry
        longest = min(_TIMED_SECONDS, _TIMED_SHARE * budget)
        per_rank = -(-self.job.cut.num_micro_batches // rank_and_world_size()[1])
        settled_at = position.step + -(-SETTLING_BATCHES // per_rank)
        settled = 0.0

        def is_enough(done: int) -> bool:
            nonlocal settled
            if done <= settled_at:
                settled = telemetry.training_seconds
                return False
            passed = broadcast(telemetry.training_seconds - settled, state.device)
            num_timed = done - settled_at
            return num_timed >= _MOST_TIMED or (num_timed >= _FEWEST_TIMED and passed >= longest)

        position, _ = self._take_steps(position, ENDLESS, is_enough)
        num_timed = position.step - settled_at
        if num_timed < _FEWEST_TIMED:
            return position
        step_seconds = (telemetry.training_seconds - settled) / num_timed
        began = time.perf_counter()
        self._evaluate(position.step)
        evaluated = time.perf_counter()
        save(state, position)
        saved = time.perf_counter()
        timing = Timing(
            spent=saved - self.started,
            step=step_seconds,
            evaluation=evaluated - began,
            checkpoint=saved - evaluated,
        )
        # The next checkpoint holds it: what resumes from there takes as many steps.
        telemetry.num_steps = training.steps_within_budget(
            broadcast(timing, state.device), position.step
        )
        telemetry.show(
            position.step,
            f"{self.job.stage}: {budget / 60:g} minutes: {telemetry.num_steps:,} steps of "
            f"{step_seconds:.3g} s, and evaluations",
        )
        return position


@contextmanager
def within_memory(stage: str) -> Iterator[None]:
    """Explain a lack of memory in the block in a sentence, with what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own is a RuntimeError
        is_lack = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not (is_lack or any(words in str(error) for words in _NO_MEMORY)):
            raise
        raise UserError(
            f"{stage} does not fit the memory of its worker ({first_line(error)}); lower "
            "micro_batch_size, size or runtime.training_workers"
        ) from error
