"""How long a step takes where a training will run, measured once by the training's own worker.

A budget of minutes becomes a number of steps by it. The measurement is an artifact: who asks again
gets the same number, and with it the same encoder.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.attempts.checkpoints import CheckpointFolder
from pipelines.core.cluster.connection import connect, local_cpus, nodes
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.stage import Progress, StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.budget import StepRate, within_budget
from pipelines.stages.pretraining.cuts import MANY_STEPS, cut_of, phases_of
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stopwatch import MOST_STEPS, Stopwatch
from pipelines.stages.pretraining.work import STAGE, pretraining_work
from pipelines.training.arithmetic import Arithmetic, trains_best_on_single_threads
from pipelines.training.growth import wait_for_room
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import Node, Placement, StepCut, place
from pipelines.training.worker import run

KIND: Final = "step_rate"
VERSION: Final = 5  # raise with what is measured, or how

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
    examples = ExampleSettings.model_validate(inputs["examples"].manifest.settings)
    whole = settings.model_copy(update={"num_steps": MANY_STEPS})
    rates: dict[str, StepRate] = {}
    for phase in phases_of(whole):
        middle = phase.first_step + phase.num_steps // 2
        alone = settings.model_copy(
            update={
                "short_steps_fraction": float(phase.examples == "short"),
                # A step takes the longer the more it masks: what it masks on average counts.
                "mask_fraction": whole.masking_at(middle, examples.masking_config()).fraction,
                "final_mask_fraction": None,
            }
        )
        artifact = measured_rate(alone, cut_of(whole), arithmetic, inputs, context)
        rates[phase.examples] = StepRate.of(artifact.statistics)
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
    cut: StepCut,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
) -> Artifact:
    """What a step of one phase takes on the ranks that share `cut`, as an artifact's statistics.

    Named by everything that decides it: the settings, the examples, the placement, the machine.
    """
    one_thread_each = trains_best_on_single_threads(settings.size)
    of_cluster, waited_seconds = _nodes(arithmetic, context)
    placement = place(
        context.ranks, of_cluster, cut,
        one_thread_each=one_thread_each, waited_seconds=waited_seconds,
    )  # fmt: skip
    return context.store.get_or_build(
        KIND,
        version=VERSION,
        settings=name_of(settings, arithmetic, context.ranks, placement, of_cluster),
        inputs=inputs,
        build=partial(_measure, settings, cut, arithmetic, inputs, context),
    )


def _nodes(arithmetic: Arithmetic, context: StageContext) -> tuple[Sequence[Node], float]:
    """The nodes that the training may get, and the seconds that they were waited for.

    Of the one node of a local Ray on CPUs its resources are known before it starts: who asks for a
    measurement that is there starts none.
    """
    if "RAY_ADDRESS" not in os.environ and arithmetic.device == "cpu":
        return [{"CPU": float(local_cpus())}], 0.0
    connect()
    waited_seconds = wait_for_room(context.ranks, context.observe, STAGE)
    return nodes(), waited_seconds


def name_of(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    ranks: Ranks,
    placement: Placement,
    of_cluster: Sequence[Node],
) -> dict[str, Any]:
    """Everything but the inputs that decides what a step takes: what the measurement is named by.

    Beside settings and placement these are the nodes, their processor and the training's code.
    """
    decides = settings.model_dump(mode="json", exclude=set(_SAME_SPEED))
    where = {
        "placement": str(placement),
        "shard_optimizer_state": ranks.shard_optimizer_state,
        "checkpointed_layers": ranks.checkpointed_layers,
        "computed_on": [arithmetic.processor, *_resources(of_cluster)],
        "training": PRETRAINING.version,
    }
    return arithmetic.named_in(decides | where)


def _resources(of_cluster: Sequence[Node]) -> list[str]:
    return sorted(
        ", ".join(
            f"{name} {amount:g}"
            for name, amount in sorted(node.items())
            if name in ("CPU", "GPU") or name.startswith("accelerator_type:")
        )
        for node in of_cluster
    )


def as_measured(settings: PretrainingSettings) -> PretrainingSettings:
    """What the measuring run is told: it ends once enough was measured, never for want of steps."""
    too_many = MOST_STEPS + 1
    return settings.model_copy(
        update={
            "num_steps": too_many,
            "budget_minutes": None,
            "learning_rate": _LEARNING_RATE,
            "evaluate_every_steps": too_many,
            "checkpoint_every_steps": too_many,
        }
    )


def _measure(
    settings: PretrainingSettings,
    cut: StepCut,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
    draft: Draft,
) -> Built:
    job = Launch(
        worker=_worker,
        values={
            "settings": as_measured(settings).model_dump(),
            **inputs,
            "precision": arithmetic.precision,
            "run_id": None,
            "tracking_uri": None,
        },
        name=f"{KIND}-{uuid4().hex[:8]}",  # none goes on from another's last step
        checkpoints=CheckpointFolder.of(draft),
        cut=cut,
        one_thread_each=trains_best_on_single_threads(settings.size),
    )

    def finish(checkpoint: Path, told: dict[str, Any]) -> dict[str, Any]:
        statistics: dict[str, Any] = told["judged"]
        return statistics

    return Built([], launch(job, context, finish))


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    with pretraining_work(values) as work:
        watch = Stopwatch()
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
