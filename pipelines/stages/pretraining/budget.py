"""How many steps fit a budget of minutes, from the time of the first ones."""

from collections.abc import Mapping
from typing import Final

from pipelines.errors import UserError
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of
from pipelines.train.job import Timing

_LEAST_STEPS: Final = 10


def training_seconds(
    settings: PretrainingSettings, timing: Timing, done: int, operations: Mapping[str, float]
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
    settings: PretrainingSettings, timing: Timing, done: int, operations: Mapping[str, float]
) -> int:
    """The most steps that `budget_minutes` allows, `done` of them already.

    Raises UserError where these are hardly more than were timed.
    """
    assert settings.budget_minutes is not None

    def seconds(num_steps: int) -> float:
        chosen = settings.model_copy(update={"num_steps": num_steps})
        return training_seconds(chosen, timing, done, operations)

    budget = settings.budget_minutes * 60
    fits, too_many = 0, 1
    while seconds(too_many) <= budget:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if seconds(middle) <= budget else (fits, middle)
    least = done + _LEAST_STEPS
    if fits < least:
        raise UserError(
            f"pretraining.budget_minutes={settings.budget_minutes:g} is too short: {least} "
            f"steps take about {seconds(least) / 60:.2g} minutes here; raise it, or "
            "lower pretraining.global_batch_size or size"
        )
    return fits
