"""How many steps fit a budget of minutes, measured by the training run itself before its first one.

The number is kept beside the run's checkpoints: a resumed run takes as many steps on any machine.
"""

import gc
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final

import ray.train.torch
import torch
from pyarrow.fs import FileSystem

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import SETTLING_BATCHES, MicroBatches
from pipelines.config.errors import UserError
from pipelines.stage import Progress
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining.settings import ENDLESS, PretrainingSettings, phases_of, split_of
from pipelines.stages.pretraining.work import STAGE, pretraining_work
from pipelines.training.checkpoint_files import write_whole
from pipelines.training.messages import ProgressSender
from pipelines.training.ranks import broadcast, rank_and_world_size
from pipelines.training.worker import run

_FILE: Final = "budget.json"  # beside the checkpoints, and removed with them
_LEAST_STEPS: Final = 10
_LEARNING_RATE: Final = 1e-6  # what is learned is thrown away; it must only stay finite
_MEASURED_SECONDS: Final = 20.0  # what else a machine does changes within ten
_FEWEST_MEASURED: Final = 3
MOST_MEASURED: Final = SETTLING_BATCHES + 400  # steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the parts of a training run take, in seconds."""

    step: float
    start: float  # the first steps, beyond what as many later ones take
    evaluation: float
    first_evaluation: float  # which also counts the training examples' tokens
    checkpoint: float


def with_steps_in_budget(
    settings: PretrainingSettings, values: dict[str, Any]
) -> PretrainingSettings | None:
    """`settings` with as many steps as fit, in place of `budget_minutes`.

    A resumed run keeps its number; else the workers, all of which call this, measure it. None if
    the run is stopped meanwhile. Raises UserError if the budget is too small.
    """
    is_first, device = rank_and_world_size()[0] == 0, ray.train.torch.get_device()
    folder, filesystem = values["checkpoints"]
    path = f"{folder}/{_FILE}"
    num_steps = broadcast(_kept(filesystem, path) if is_first else None, device)
    note = "resuming with the {:,} steps that this budget gave before"
    if num_steps is None:
        timings = broadcast(_measured_phases(settings, values), device)
        if timings is None:
            return None
        num_steps = steps_within(settings, timings)
        if is_first:
            filesystem.create_dir(folder, recursive=True)
            write_whole(filesystem, path, json.dumps({"num_steps": num_steps}))
        seconds = ", then ".join(f"{timing.step:.3g} s" for timing in timings.values())
        note = f"{settings.budget_minutes:g} minutes: {{:,}} steps of {seconds}, and evaluations"
    if is_first:
        sender = ProgressSender(values["messages"])
        note = f"{STAGE}: {note.format(num_steps)}"
        sender.send(Progress(stage=STAGE, done=0, total=num_steps, unit="steps", note=note))
        sender.close()
    return settings.model_copy(update={"num_steps": num_steps, "budget_minutes": None})


def _kept(filesystem: FileSystem, path: str) -> int | None:
    try:
        with filesystem.open_input_file(path) as file:
            return int(json.loads(file.read())["num_steps"])
    except FileNotFoundError:
        return None


def training_seconds(settings: PretrainingSettings, timings: dict[str, Timing]) -> float:
    """What a training run takes from its first step to its last checkpoint.

    `timings` holds what was measured of each kind of examples.
    """
    num_steps, timing = settings.num_steps, next(iter(timings.values()))
    evaluations = -(-num_steps // settings.evaluate_every_steps)
    checkpoints = -(-num_steps // settings.checkpoint_every_steps)
    return (
        sum(phase.num_steps * timings[phase.examples].step for phase in phases_of(settings))
        + sum(timings[phase.examples].start for phase in phases_of(settings))
        + timing.first_evaluation
        + (evaluations - 1) * timing.evaluation
        + checkpoints * timing.checkpoint
    )


def steps_within(settings: PretrainingSettings, timings: dict[str, Timing]) -> int:
    """The most steps that `budget_minutes` allows.

    Raises UserError where these are fewer than make a training run.
    """
    assert settings.budget_minutes is not None

    def seconds(num_steps: int) -> float:
        return training_seconds(settings.model_copy(update={"num_steps": num_steps}), timings)

    budget = settings.budget_minutes * 60
    fits, too_many = 0, 1
    while seconds(too_many) <= budget:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if seconds(middle) <= budget else (fits, middle)
    if fits < _LEAST_STEPS:
        raise UserError(
            f"pretraining.budget_minutes={settings.budget_minutes:g} is too short: {_LEAST_STEPS} "
            f"steps take about {seconds(_LEAST_STEPS) / 60:.2g} minutes here; raise it, or "
            "lower pretraining.global_batch_size or size"
        )
    return fits


def _measured_phases(
    settings: PretrainingSettings, values: dict[str, Any]
) -> dict[str, Timing] | None:
    """The timing of each phase by its examples; None where the run is stopped meanwhile."""
    examples = ExampleSettings.model_validate(values["examples"].manifest.settings)
    whole = settings.model_copy(update={"num_steps": ENDLESS})
    timings: dict[str, Timing] = {}
    for phase in phases_of(whole):
        middle = phase.first_step + phase.num_steps // 2
        alone = settings.model_copy(
            update={
                "num_steps": MOST_MEASURED + 1,
                "budget_minutes": None,
                "learning_rate": _LEARNING_RATE,
                "evaluate_every_steps": MOST_MEASURED + 1,
                "checkpoint_every_steps": MOST_MEASURED + 1,
                "short_steps_fraction": float(phase.examples == "short"),
                # A step takes the longer the more it masks: what it masks on average counts.
                "mask_fraction": whole.masking_at(middle, examples.masking_config()).fraction,
                "final_mask_fraction": None,
            }
        )
        timing = _measured(alone, values)
        if timing is None:
            return None
        timings[phase.examples] = timing
    return timings


def _measured(settings: PretrainingSettings, values: dict[str, Any]) -> Timing | None:
    """The timing of a training run that is then forgotten."""
    folder, filesystem = values["checkpoints"]
    aside = f"{folder}-measured-{token_hex(4)}"
    per_rank = -(-split_of(settings).num_micro_batches // rank_and_world_size()[1])
    watch = Stopwatch(settling_steps=-(-SETTLING_BATCHES // per_rank))
    with pretraining_work(settings, values) as work:
        measuring = replace(
            work,
            stage="measuring a step",
            micro_batches=watch.from_first(work.micro_batches),
            is_enough=watch.is_enough,
            evaluate=watch.twice(work.evaluate),
            final_evaluation=lambda model: {"timing": watch.timing()},
        )
        found = run(measuring, {**values, "run_id": None, "checkpoints": (aside, filesystem)})
    gc.collect()  # its model and its optimizer refer to each other
    if rank_and_world_size()[0] == 0:
        filesystem.delete_dir(aside)
    return found["final"]["timing"] if "final" in found else None


@dataclass(slots=True)
class Stopwatch:
    """Notes when a training run begins and ends steps, evaluates and has saved."""

    # The first steps take longer: new shapes are compiled, and memory is allocated.
    settling_steps: int
    started: float = 0.0
    settled: float = 0.0
    last_step: int = 0
    ended: float = 0.0
    evaluated: list[float] = field(default_factory=list)  # before, between and after two

    def from_first(self, micro_batches: MicroBatches) -> MicroBatches:
        """The same; the clock starts where a step first asks for its batches."""

        def watched(step: int) -> Iterable[tuple[int, Batch]]:
            self.started = self.started or _now()
            return micro_batches(step)

        return watched

    def is_enough(self, done: int) -> bool:
        """Whether enough was measured after `done` steps, by the first rank's clock."""
        self.last_step, self.ended = done, _now()
        if done <= self.settling_steps:
            self.settled = self.ended
            return False
        passed = broadcast(self.ended - self.settled, ray.train.torch.get_device())
        is_long = done - self.settling_steps >= _FEWEST_MEASURED and passed >= _MEASURED_SECONDS
        return done >= MOST_MEASURED or is_long

    def twice(
        self, evaluate: Callable[[TrainableModel], dict[str, float]]
    ) -> Callable[[TrainableModel], dict[str, float]]:
        """The same evaluation twice: the first one has more to do."""

        def watched(model: TrainableModel) -> dict[str, float]:
            self.evaluated = [_now()]
            for _ in range(2):
                figures = evaluate(model)
                self.evaluated.append(_now())
            return figures

        return watched

    def timing(self) -> Timing:
        """What was measured; called when the checkpoint is saved."""
        assert self.ended > self.settled, "the training run ended before enough was measured"
        step = (self.ended - self.settled) / (self.last_step - self.settling_steps)
        before, between, after = self.evaluated
        return Timing(
            step=step,
            start=max(0.0, self.settled - self.started - self.settling_steps * step),
            evaluation=after - between,
            first_evaluation=between - before,
            checkpoint=_now() - after,
        )


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
