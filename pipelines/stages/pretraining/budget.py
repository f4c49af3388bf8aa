"""How many steps fit a budget of time, by what was measured of a step."""

from dataclasses import dataclass, fields
from typing import Any, Self

from pipelines.core.errors import UserError
from pipelines.stages.pretraining.cuts import phases_of
from pipelines.stages.pretraining.settings import PretrainingSettings

_MINUTE = 60.0
_LEAST_STEPS = 10  # fewer are no training


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRate:
    """What the parts of a training take, in seconds."""

    step: float
    start: float  # the first steps, beyond what as many later ones take
    evaluation: float
    first_evaluation: float  # which also counts the training examples' tokens
    checkpoint: float

    @classmethod
    def of(cls, statistics: dict[str, Any]) -> Self:
        """As `asdict` gave it."""
        return cls(**{field.name: statistics[f"{field.name}_seconds"] for field in fields(cls)})

    def statistics(self) -> dict[str, float]:
        """What `of` reads."""
        return {
            f"{field.name}_seconds": round(getattr(self, field.name), 6) for field in fields(self)
        }


def training_seconds(settings: PretrainingSettings, rates: dict[str, StepRate]) -> float:
    """What a training takes from its first step to its last checkpoint.

    `rates` holds what was measured of each kind of examples.
    """
    num_steps, rate = settings.num_steps, next(iter(rates.values()))
    evaluations = -(-num_steps // settings.evaluate_every_steps)
    checkpoints = -(-num_steps // settings.checkpoint_every_steps)
    return (
        sum(phase.num_steps * rates[phase.examples].step for phase in phases_of(settings))
        + sum(rates[phase.examples].start for phase in phases_of(settings))
        + rate.first_evaluation
        + (evaluations - 1) * rate.evaluation
        + checkpoints * rate.checkpoint
    )


def within_budget(settings: PretrainingSettings, rates: dict[str, StepRate]) -> PretrainingSettings:
    """The same settings with the most steps that `budget_minutes` allows, in its place.

    Raises UserError where these are fewer than make a training.
    """
    assert settings.budget_minutes is not None

    def with_steps(num_steps: int) -> PretrainingSettings:
        return settings.model_copy(update={"num_steps": num_steps, "budget_minutes": None})

    budget = settings.budget_minutes * _MINUTE
    fits, too_many = 0, 1
    while training_seconds(with_steps(too_many), rates) <= budget:
        fits, too_many = too_many, 2 * too_many
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if training_seconds(with_steps(middle), rates) <= budget:
            fits = middle
        else:
            too_many = middle
    if fits < _LEAST_STEPS:
        needed = training_seconds(with_steps(_LEAST_STEPS), rates) / _MINUTE
        raise UserError(
            f"pretraining.budget_minutes must be enough for {_LEAST_STEPS} steps, which take about "
            f"{needed:.2g} minutes here, got {settings.budget_minutes:g}; raise it, or lower "
            "pretraining.examples_per_step or size"
        )
    return with_steps(fits)
