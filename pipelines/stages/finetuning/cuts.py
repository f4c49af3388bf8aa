"""How the steps of a fine-tuning are cut: read from a recipe, without torch."""

from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.training.placement import StepCut


def cut_of(settings: FinetuningSettings) -> StepCut:
    """What the workers of one training share."""
    return StepCut(
        section="finetuning",
        examples_per_step=settings.examples_per_step,
        micro_batch_examples=settings.micro_batch_examples,
    )


def shared_cut(settings: FinetuningSettings) -> StepCut | None:
    """The same; None where several trainings are compared, which have a worker each."""
    return cut_of(settings) if settings.is_one_training else None
