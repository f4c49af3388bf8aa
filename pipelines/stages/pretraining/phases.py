"""Phases of a training run, and how their steps are cut: read from a recipe, without torch.

Short examples come first, which cost little, then those of the full length.
"""

from dataclasses import dataclass

from pipelines.stages.examples.settings import ExampleSet
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.training.placement import BatchSplit

MANY_STEPS = 10**9  # in which a phase with any share has a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps in a row that read the same examples in equal micro-batches."""

    examples: ExampleSet
    first_step: int
    num_steps: int
    cut: BatchSplit


def phases_of(settings: PretrainingSettings) -> tuple[Phase, ...]:
    """The phases that have a step, in their order."""
    num_short = round(settings.num_steps * settings.short_steps_fraction)
    short = Phase(
        examples="short",
        first_step=0,
        num_steps=num_short,
        cut=BatchSplit(
            section="pretraining",
            global_batch_size=settings.short_global_batch_size or settings.global_batch_size,
            micro_batch_size=(settings.short_micro_batch_size or settings.micro_batch_size),
            prefix="short_",
        ),
    )
    full = Phase(
        examples="train",
        first_step=num_short,
        num_steps=settings.num_steps - num_short,
        cut=BatchSplit(
            section="pretraining",
            global_batch_size=settings.global_batch_size,
            micro_batch_size=settings.micro_batch_size,
        ),
    )
    return tuple(phase for phase in (short, full) if phase.num_steps)


def split_of(settings: PretrainingSettings) -> BatchSplit:
    """What the workers share: of the phases' cuts the one with the fewest micro-batches."""
    if settings.budget_minutes is not None:  # how many steps that are is measured one day
        settings = settings.model_copy(update={"num_steps": MANY_STEPS})
    cuts = [phase.cut for phase in phases_of(settings)]
    # Of two alike that of the full length, whose settings the short steps take where they have none
    return min(cuts, key=lambda cut: (cut.num_micro_batches, cut.prefix))
