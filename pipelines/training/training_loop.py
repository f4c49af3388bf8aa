"""The steps of a training run on one rank: taken, logged, saved, skipped where they go wrong."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bert_core.backends.precision import Precision, compute_dtype
from bert_core.training.diagnosis import diagnose
from bert_core.training.guard import RECORD, SkippedStepsError
from bert_core.training.loop import computing_as_trained, train
from bert_core.training.state import Position
from bert_core.training.step import StepReport
from pipelines.config.errors import UserError
from pipelines.training.ranks import Work, wait_for_all
from pipelines.training.restoring import go_back
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
        settings, telemetry = self.work.settings, self.state.telemetry
        num_tokens = torch.tensor(telemetry.num_tokens, dtype=torch.float64, device=self.device)
        is_start = True  # a way back is none
        while True:
            try:
                return self._take_steps(position, num_tokens, is_first=is_start)
            except SkippedStepsError as error:
                is_start = False
                telemetry.num_tokens = float(num_tokens)
                telemetry.skip(error.found)
                if len(position.given_up) >= settings.max_rollbacks:
                    sentence = self._end(error, position)
                    telemetry.close()
                    # Ray ends all ranks once one has raised: what led there is reported first.
                    wait_for_all(self.device)
                    raise UserError(sentence) from error
                position = go_back(
                    self.state, self.work, position,
                    after_step=error.last_step, rate_factor=settings.rollback_rate_factor,
                )  # fmt: skip
            telemetry.roll_back(*position.given_up[-1], position.rate_scale)
            # At once: a resumed run need not meet the same steps again.
            save(self.state, position, is_last=position.step == self.work.num_steps)

    def _take_steps(self, position: Position, num_tokens: Tensor, *, is_first: bool) -> End:
        work, state, settings = self.work, self.state, self.work.settings
        model, optimizer, telemetry = state.model, state.optimizer, state.telemetry
        guard = optimizer.guard
        is_last = position.step == work.num_steps or self._is_enough()
        is_saved = bool(position.given_up) and is_last
        started = time.perf_counter()
        for report in train(
            model,
            optimizer,
            self.speed.timed(model, work.micro_batches),
            seed=settings.seed,
            first_step=position.step,
            num_steps=position.step if is_last else work.num_steps,
            precision=self.precision,
            rate_scale=position.rate_scale,
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
                guard.raise_if_halted()  # on every rank, before one of them logs or saves
                telemetry.skip(guard.found())
                guard.forget()
            if is_logged:
                telemetry.log(done, self._figures(report))
                telemetry.log_speed(done, float(num_tokens))
                telemetry.show_checkpoint(state.checkpoints.figures())
            if is_evaluation:
                with optimizer.averaged():
                    with computing_as_trained(model, optimizer, precision=self.precision):
                        telemetry.log(done, work.evaluate(model))
                    if state.best is not None:
                        state.best.consider(model, telemetry.history)
                is_last = is_last or self._is_enough()
            telemetry.show(done)
            position = replace(position, step=done)
            # While steps are skipped there is nothing worth rolling back to.
            is_saved = False
            if is_last or (is_due and not guard.is_skipping):
                is_saved = save(state, position, is_last=is_last)
            if is_last:
                break
            started = time.perf_counter()
        telemetry.num_tokens = float(num_tokens)
        telemetry.skip(guard.found())
        guard.forget()
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

    def _end(self, error: SkippedStepsError, position: Position) -> str:
        """The message that ends the training run."""
        work, state = self.work, self.state
        step, section = error.last_step, work.section
        dtype = compute_dtype(self.precision, self.device)
        batches = [(index, batch.to(self.device)) for index, batch in work.batches_of(step)]
        diagnosis = diagnose(
            state.model, state.optimizer, batches,
            seed=position.seed, step=step, dtype=dtype,
        )  # fmt: skip
        given_up = ", ".join(f"{first} to {last}" for first, last in position.given_up)
        tried = f", after rolling back past the steps {given_up}" if given_up else ""
        wider = "" if dtype == torch.float32 else f"set {section}.precision=float32, "
        return (
            f"{error.num_in_a_row} steps in a row, {error.first_step} to {step}, had to be "
            f"skipped{tried}: {error.found[-1]}; "
            f"{diagnosis}; lower {section}.learning_rate, raise {section}.warmup_fraction, "
            f"{wider}look at the data of these steps, or raise {section}.spike_factor where such "
            "norms are healthy"
        )
