"""What one Ray Train worker does: restore the last checkpoint, take steps, report, save."""

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import ray.train.torch
import torch
from ray.actor import ActorHandle

from bert_core.backends.context import compute_dtype, return_freed_memory
from bert_core.model.preparation import checkpoint_activations
from bert_core.training.guard import RECORD, GuardConfig, SkippedStepsError
from bert_core.training.loop import SETTLING_BATCHES, train
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position
from bert_core.training.step import StepReport
from bert_core.training.step_operations import measured_matrix_rate
from pipelines.errors import UserError
from pipelines.train.checkpoints import CheckpointFolder, Checkpoints
from pipelines.train.job import Timing, Training, TrainingJob
from pipelines.train.messages import ProgressSender, listening_for_stop
from pipelines.train.metrics import Best, MetricLog, Speed, Telemetry
from pipelines.train.preflight import check_disk_space, meet, within_memory
from pipelines.train.ranks import (
    broadcast,
    rank_and_world_size,
    share_of_node,
    this_node,
    wait_for_all,
)
from pipelines.train.saving import TrainState, restore, save, save_at_end
from pipelines.train.settings import ENDLESS
from pipelines.versions import computing_machine

# The first steps of a training run with a budget of time are timed, for at most this long and this
# share of the budget. Their rate is next to nothing, since the warm-up has no end yet.
_TIMED_SECONDS, _TIMED_SHARE = 20.0, 0.05
_FEWEST_TIMED, _MOST_TIMED = 3, 400  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a worker is given: the job, and where and how to do it."""

    job: TrainingJob
    checkpoints: CheckpointFolder
    is_local_store: bool
    messages: "ActorHandle[Any]"
    run_id: str | None
    tracking_uri: str | None
    num_threads: int
    checkpointed_layers: int


def train_on_rank(config: dict[str, Assignment]) -> dict[str, Any]:
    """Train from the last checkpoint to the last step, or to a stop; returns the result.

    Raises UserError for too many skipped steps in a row, and if a worker's memory is too small.
    """
    started = time.perf_counter()
    assignment = config["assignment"]
    job = assignment.job
    rank, num_ranks = rank_and_world_size()
    torch.set_num_threads(assignment.num_threads)
    return_freed_memory()  # the parameters move when the optimizer is built
    device = ray.train.torch.get_device()
    meet(job.stage, device)
    training = job.on_rank()
    settings = training.settings
    torch.manual_seed(settings.seed)
    with within_memory(job.stage, device, share_of_node()[1]):
        model = training.build_model()
        checkpoint_activations(model, min(assignment.checkpointed_layers, model.config.num_layers))
        model = model.to(device)
        optimizer = build_optimizer(
            model,
            optimization(training),
        )
        rate = measured_matrix_rate(compute_dtype(job.precision, device), device)
        speed = Speed(num_ranks=num_ranks, matrix_rate=rate)
        state = TrainState(
            model=model,
            optimizer=optimizer,
            telemetry=_telemetry(assignment, training, speed, is_speaker=rank == 0),
            checkpoints=Checkpoints(assignment.checkpoints),
            is_writer=rank == 0,
            node=this_node(),
            best=None if training.patience is None else Best(training.patience),
        )
        telemetry = state.telemetry
        with closing(telemetry):  # also after an error: what led there is reported
            position = restore(state, settings.seed)
            if position.step:
                telemetry.show(position.step, f"{job.stage} resumed from step {position.step}")
            else:
                if rank == 0:
                    folder = assignment.checkpoints.path if assignment.is_local_store else None
                    check_disk_space(job.stage, model, optimizer.config, folder, state.best)
                training.begin(model)
            with listening_for_stop(assignment.messages if rank == 0 else None) as wants_stop:
                loop = TrainingLoop(
                    job=job, training=training, state=state, speed=speed, device=device,
                    wants_stop=wants_stop, started=started,
                )  # fmt: skip
                end = loop.train_from(position)
            result: dict[str, Any] = {
                "checkpoint": save_at_end(
                    state, end.position, is_last=end.is_last, is_saved=end.is_saved
                )
            }
            if end.is_last:
                with optimizer.averaged():
                    if state.best is not None:
                        state.best.put_into(model)
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
        rate_scales=training.rate_scales,
        averaging_decay=settings.averaging_decay,
        exchange_dtype=settings.exchange_dtype,
        guard=GuardConfig(
            spike_factor=settings.spike_factor, max_skipped_in_a_row=settings.max_skipped_steps
        ),
    )


def _telemetry(
    assignment: Assignment, training: Training, speed: Speed, *, is_speaker: bool
) -> Telemetry:
    stage, num_steps = assignment.job.stage, training.num_steps
    if not is_speaker:
        return Telemetry(stage, num_steps, speed)
    metrics = None
    if assignment.run_id is not None and assignment.tracking_uri is not None:
        metrics = MetricLog(assignment.tracking_uri, assignment.run_id)
    return Telemetry(stage, num_steps, speed, ProgressSender(assignment.messages), metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Where a training run ended."""

    position: Position
    is_last: bool = False  # not stopped before
    is_saved: bool = False  # handed over to be stored


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """Takes the steps of `training` until the last one or a stop."""

    job: TrainingJob
    training: Training
    state: TrainState
    speed: Speed
    device: torch.device
    wants_stop: Callable[[], bool]
    started: float  # when the process was ready, on the clock of `time.perf_counter`

    def train_from(self, position: Position) -> End:
        """Take all steps that are left. All ranks call it.

        Raises UserError if steps have to be skipped again and again.
        """
        telemetry = self.state.telemetry
        try:
            if self.training.budget_seconds is not None:
                if not telemetry.num_steps:
                    end = self._take_timed_steps(position, self.training.budget_seconds)
                    if not telemetry.num_steps:
                        return end
                    position = end.position
                self._set_num_steps(telemetry.num_steps)
            return self._take_steps(position, self.training.num_steps)
        except SkippedStepsError as error:
            telemetry.skip(self.state.optimizer.guard.new_skipped())
            telemetry.close()
            # Ray ends all ranks once one has raised: what led there is reported first.
            wait_for_all(self.device)
            raise UserError(
                f"{error} ({self.job.cut.section} has learning_rate, warmup_fraction, precision "
                "and spike_factor)"
            ) from error

    def _take_steps(
        self, position: Position, num_steps: int, is_enough: Callable[[int], bool] | None = None
    ) -> End:
        """Take steps until `num_steps` are done, a stop is wanted, or `is_enough(done)`."""
        training, state, settings = self.training, self.state, self.training.settings
        model, optimizer, telemetry = state.model, state.optimizer, state.telemetry
        num_tokens = torch.tensor(telemetry.num_tokens, dtype=torch.float64, device=self.device)
        is_last = position.step == num_steps or self._is_patience_over()
        is_first, is_saved = True, False
        started = time.perf_counter()
        with training.reading_ahead():
            for report in train(
                model,
                optimizer,
                self.speed.timed(model, training.micro_batches),
                seed=settings.seed,
                first_step=position.step,
                num_steps=position.step if is_last else num_steps,
                precision=self.job.precision,
                wants_stop=self.wants_stop,
            ):
                done = report.step + 1
                is_last = done == num_steps
                if is_first and is_enough is None:
                    telemetry.first_step_seconds.append(
                        round(time.perf_counter() - self.started, 3)
                    )
                is_first = False
                num_tokens += report.num_tokens  # on the device: reading it would wait for the step
                telemetry.take_step(done, time.perf_counter() - started)
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
                is_saved = False
                if is_last or is_due:
                    telemetry.num_tokens = float(num_tokens)
                    is_saved = save(state, position, is_last=is_last)
                if is_last or (is_enough is not None and is_enough(done)):
                    break
                started = time.perf_counter()
        telemetry.num_tokens = float(num_tokens)
        telemetry.skip(optimizer.guard.new_skipped())
        return End(position=position, is_last=is_last, is_saved=is_saved)

    def _evaluate(self, step: int) -> None:
        state, telemetry = self.state, self.state.telemetry
        with state.optimizer.averaged():
            telemetry.log(step, self.training.evaluate(state.model))
            if state.best is not None:
                state.best.consider(state.model, telemetry.history)

    def _take_timed_steps(self, position: Position, budget: float) -> End:
        """Take the first steps, and set the number of steps from their time; not after a stop."""
        training, telemetry = self.training, self.state.telemetry
        longest = min(_TIMED_SECONDS, _TIMED_SHARE * budget)
        per_rank = -(-self.job.cut.num_micro_batches // rank_and_world_size()[1])
        settled_at = position.step + -(-SETTLING_BATCHES // per_rank)
        settled = 0.0

        def is_enough(done: int) -> bool:
            nonlocal settled
            if done <= settled_at:
                settled = telemetry.training_seconds
                return False
            passed = broadcast(telemetry.training_seconds - settled, self.device)
            num_timed = done - settled_at
            return num_timed >= _MOST_TIMED or (num_timed >= _FEWEST_TIMED and passed >= longest)

        end = self._take_steps(position, ENDLESS, is_enough)
        done = end.position.step
        num_timed = done - settled_at
        if num_timed < _FEWEST_TIMED:
            return end
        step_seconds = (telemetry.training_seconds - settled) / num_timed
        began = time.perf_counter()
        self._evaluate(done)
        evaluated = time.perf_counter()
        save(self.state, end.position)
        saved = time.perf_counter()
        timing = Timing(
            spent=saved - self.started,
            step=step_seconds,
            evaluation=evaluated - began,
            checkpoint=saved - evaluated,
        )
        num_steps = training.steps_within_budget(broadcast(timing, self.device), done)
        telemetry.num_steps = num_steps
        telemetry.note(
            f"{budget / 60:g} minutes: {num_steps:,} steps of {step_seconds:.3g} s, and evaluations"
        )
        save(self.state, end.position)  # a resumed run takes as many
        return end

    def _set_num_steps(self, num_steps: int) -> None:
        self.training.set_num_steps(num_steps)
        optimizer = self.state.optimizer
        warmup_steps = round(num_steps * self.training.settings.warmup_fraction)
        optimizer.config = replace(optimizer.config, num_steps=num_steps, warmup_steps=warmup_steps)

    def _is_patience_over(self) -> bool:
        """Whether the held-out losses no longer fall; same on all ranks."""
        best = self.state.best
        return best is not None and best.is_over(self.state.telemetry.history)

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
