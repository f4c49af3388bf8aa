"""The steps of a training run on one rank: taken, logged, saved, skipped where they go wrong."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from bert_core.backends.precision import Precision
from bert_core.training.guard import RECORD, SkippedStepsError
from bert_core.training.loop import train
from bert_core.training.state import Position
from bert_core.training.step import StepReport
from pipelines.config.errors import UserError
from pipelines.training.ranks import Work, wait_for_all
from pipelines.training.saving import End, TrainState, save
from pipelines.training.speed import Speed


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """Takes the steps of `work` until the last one or a stop."""

    work: Work
    state: TrainState
    speed: Speed
    device: torch.device
    precision: Precision
    wants_stop: Callable[[], bool]
    started: float  # when the process was ready, on the clock of `time.perf_counter`

    def train_on(self, position: Position) -> End:
        """Take all steps that are left, or as many as there is time for.

        All ranks call it. Raises UserError if steps have to be skipped again and again.
        """
        try:
            return self._take_steps(position)
        except SkippedStepsError as error:
            telemetry = self.state.telemetry
            telemetry.skip(self.state.optimizer.guard.new_skipped())
            telemetry.close()
            # Ray ends all ranks once one has raised: what led there is reported first.
            wait_for_all(self.device)
            raise UserError(
                f"{error} ({self.work.section} has learning_rate, warmup_fraction, precision and "
                "spike_factor)"
            ) from error

    def _take_steps(self, position: Position) -> End:
        work, state, settings = self.work, self.state, self.work.settings
        model, optimizer, telemetry = state.model, state.optimizer, state.telemetry
        guard = optimizer.guard
        num_tokens = torch.tensor(telemetry.num_tokens, dtype=torch.float64, device=self.device)
        is_first = True
        is_last = position.step == work.num_steps or self._is_enough()
        is_saved = False
        started = time.perf_counter()
        for report in train(
            model,
            optimizer,
            self.speed.timed(model, work.micro_batches),
            seed=settings.seed,
            first_step=position.step,
            num_steps=position.step if is_last else work.num_steps,
            precision=self.precision,
            wants_stop=self.wants_stop,
        ):
            done = report.step + 1
            is_last = work.is_last(done)
            if is_first:
                is_first = False
                telemetry.first_step_seconds.append(round(time.perf_counter() - self.started, 3))
            num_tokens += report.num_tokens  # on the device: reading it would wait for the step
            telemetry.take_step(done, time.perf_counter() - started)
            is_due = done % settings.checkpoint_every_steps == 0
            is_evaluation = done % work.evaluate_every_steps == 0 or is_last
            is_logged = is_due or is_last or done % settings.log_every_steps == 0
            if is_logged or is_evaluation or done % RECORD == 0:
                telemetry.skip(guard.new_skipped())
            if is_logged:
                telemetry.log(done, self._figures(report))
                telemetry.log_speed(done, float(num_tokens))
                telemetry.show_checkpoint(state.checkpoints.figures())
            if is_evaluation:
                with optimizer.averaged():
                    telemetry.log(done, work.evaluate(model))
                    if state.best is not None:
                        state.best.consider(model, telemetry.history)
                is_last = is_last or self._is_enough()
            telemetry.show(done)
            position = replace(position, step=done)
            is_saved = False
            if is_last or is_due:
                is_saved = save(state, position, is_last=is_last)
            if is_last:
                break
            started = time.perf_counter()
        telemetry.num_tokens = float(num_tokens)
        telemetry.skip(guard.new_skipped())
        return End(position=position, is_last=is_last, is_saved=is_saved)

    def _is_enough(self) -> bool:
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
