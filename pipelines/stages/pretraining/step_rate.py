"""How long a step takes where a training will run, measured once by the training's own worker.

A budget of minutes becomes a number of steps by it. The measurement is an artifact: who asks again
gets the same number, and with it the same encoder.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import SETTLING_STEPS, MicroBatches
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.attempts.checkpoints import CheckpointFolder
from pipelines.core.cluster.connection import connect, nodes
from pipelines.core.cluster.machine import computing_machine
from pipelines.core.stage import Progress, StageContext
from pipelines.stages.pretraining.budget import StepRate, within_budget
from pipelines.stages.pretraining.phases import phases_of
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.work import STAGE, pretraining_work
from pipelines.training.arithmetic import Arithmetic, trains_best_on_single_threads
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import place
from pipelines.training.reduction import sum_over_ranks
from pipelines.training.worker import run, this_rank

KIND: Final = "step_rate"
VERSION: Final = 1

_SETTLING_SECONDS: Final = 10.0  # at most, where steps are long
_MEASURED_SECONDS: Final = 10.0
_FEWEST_STEPS, _MOST_STEPS = 3, 200  # that are measured
_LEARNING_RATE: Final = 1e-6  # what is learned is thrown away; it must only stay finite
# A step takes as long whatever these say. A setting that is not named here decides.
_SAME_SPEED: Final = frozenset({
    "num_steps", "budget_minutes", "learning_rate", "warmup_fraction", "schedule",
    "decay_fraction", "full_learning_rate", "full_warmup_fraction", "weight_decay", "betas",
    "muon_momentum", "max_gradient_norm", "spike_factor", "max_skipped_steps", "max_rollbacks",
    "rollback_rate_factor", "seed", "log_every_steps", "checkpoint_every_steps",
    "evaluate_every_steps", "final_evaluation_examples",
})  # fmt: skip


def with_steps_in_budget(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> PretrainingSettings:
    """`settings` with the steps that their `budget_minutes` come to in its place.

    What a step takes is measured unless the store knows it. Raises UserError where the budget is
    too small, and whatever a training's placement raises.
    """
    kinds = [phase.examples for phase in phases_of(settings.model_copy(update={"num_steps": 100}))]
    rates: dict[str, StepRate] = {}
    for kind in kinds:
        alone = settings.model_copy(update={"short_steps_fraction": float(kind == "short")})
        artifact = measured_rate(alone, arithmetic, inputs, context)
        rates[kind] = StepRate.of(artifact.statistics)
    found = within_budget(settings, rates)
    seconds = ", then ".join(f"{rate.step:.3g} s" for rate in rates.values())
    note = (
        f"{STAGE}: {settings.budget_minutes:g} minutes are {found.num_steps:,} steps of {seconds} "
        "and their evaluations here"
    )
    context.observe(Progress(stage=STAGE, done=0, total=found.num_steps, unit="steps", note=note))
    return found


def measured_rate(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> Artifact:
    """What a step of one phase takes on the ranks of `context`, as an artifact's statistics.

    Named by everything that decides it: the settings, the examples, the placement, the machine.
    """
    connect()
    one_thread_each = trains_best_on_single_threads(settings.size)
    cut = phases_of(settings)[0].cut
    ranks = context.ranks
    placement = place(ranks, nodes(), cut, one_thread_each=one_thread_each)
    decides = settings.model_dump(mode="json", exclude=set(_SAME_SPEED))
    where = {
        "placement": str(placement),
        "shard_optimizer_state": ranks.shard_optimizer_state,
        "checkpointed_layers": ranks.checkpointed_layers,
        "computed_on": _computed_on(),
    }
    return context.store.get_or_build(
        KIND,
        version=VERSION,
        settings=arithmetic.named_in(decides | where),
        inputs=inputs,
        build=partial(_measure, settings, arithmetic, inputs, context),
    )


def _computed_on() -> list[str]:
    """The nodes that a training may get: this machine's processor, or what a cluster is of."""
    if "RAY_ADDRESS" not in os.environ:
        return [computing_machine()["processor"], *_resources()]
    return _resources()


def _resources() -> list[str]:
    return sorted(
        ", ".join(
            f"{name} {amount:g}"
            for name, amount in sorted(node.items())
            if name in ("CPU", "GPU") or name.startswith("accelerator_type:")
        )
        for node in nodes()
    )


def _measure(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
    draft: Draft,
) -> Built:
    changed = {
        "num_steps": SETTLING_STEPS + _MOST_STEPS,
        "budget_minutes": None,
        "learning_rate": _LEARNING_RATE,
        "evaluate_every_steps": SETTLING_STEPS + _MOST_STEPS,
        "checkpoint_every_steps": SETTLING_STEPS + _MOST_STEPS,
    }
    job = Launch(
        worker=_worker,
        values={
            "settings": settings.model_copy(update=changed).model_dump(),
            **inputs,
            "precision": arithmetic.precision,
            "run_id": None,
            "tracking_uri": None,
        },
        name=KIND,
        checkpoints=CheckpointFolder.of(draft),
        cut=phases_of(settings)[0].cut,
        one_thread_each=trains_best_on_single_threads(settings.size),
    )

    def finish(checkpoint: Path, told: dict[str, Any]) -> dict[str, Any]:
        statistics: dict[str, Any] = told["judged"]
        return statistics

    return Built([], launch(job, context, finish))


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    with pretraining_work(values) as work:
        watch = _Stopwatch()
        return run(
            replace(
                work,
                stage="measuring a step",
                micro_batches=watch.from_first(work.micro_batches),
                is_enough=watch.is_enough,
                evaluate=watch.evaluations(work.evaluate),
                judge=lambda model: watch.rate().statistics(),
            ),
            values,
        )


@dataclass(slots=True)
class _Stopwatch:
    """Looks at the clock where a training begins a step, ends one, evaluates and has saved."""

    started: float = 0.0
    settled: float = 0.0
    settled_steps: int = 0  # 0: not yet
    last_step: int = 0
    ended: float = 0.0
    evaluated: list[float] = field(default_factory=list)  # before, between and after two

    def from_first(self, micro_batches: MicroBatches) -> MicroBatches:
        """The same; the clock starts where a step first asks for its batches."""

        def watched(step: int) -> Iterator[tuple[int, Batch]]:
            self.started = self.started or _now()
            return iter(micro_batches(step))

        return watched

    def is_enough(self, done: int) -> bool:
        """Whether enough was measured after `done` steps; the same on all ranks."""
        if self.settled_steps:
            if done == self.last_step:
                self.ended = _now()
            return done == self.last_step
        passed = _of_first_rank(_now() - self.started)
        if done >= SETTLING_STEPS or (done > 1 and passed > _SETTLING_SECONDS):
            wanted = round(_MEASURED_SECONDS / (passed / done))
            self.settled_steps, self.settled = done, _now()
            self.last_step = done + min(_MOST_STEPS, max(_FEWEST_STEPS, wanted))
        return False

    def evaluations(
        self, evaluate: Callable[[TrainableModel], dict[str, float]]
    ) -> Callable[[TrainableModel], dict[str, float]]:
        """The same twice: the first one has more to do."""

        def watched(model: TrainableModel) -> dict[str, float]:
            self.evaluated = [_now()]
            for _ in range(2):
                figures = evaluate(model)
                self.evaluated.append(_now())
            return figures

        return watched

    def rate(self) -> StepRate:
        """What was measured; called when the checkpoint is saved."""
        step = (self.ended - self.settled) / (self.last_step - self.settled_steps)
        before, between, after = self.evaluated
        return StepRate(
            step=step,
            start=max(0.0, self.settled - self.started - self.settled_steps * step),
            evaluation=after - between,
            first_evaluation=between - before,
            checkpoint=_now() - after,
        )


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _of_first_rank(value: float) -> float:
    """What rank 0 says; all ranks call it."""
    return float(sum_over_ranks(np.array([value if this_rank()[0] == 0 else 0.0]))[0])
