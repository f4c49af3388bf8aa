"""Stage: from a pretrained encoder and labelled items to a model of their task."""

from pipelines.artifacts import Artifact
from pipelines.core.stage import StageContext, ignore
from pipelines.stages.finetuning.automatic import settled
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import Initialization, train_task_model
from pipelines.stages.finetuning.trials import best_of_trials


def build_task_model(
    settings: FinetuningSettings,
    labelled: Artifact,
    encoder: Artifact,
    context: StageContext,
    *,
    initialization: Initialization = "pretrained",
) -> Artifact:
    """A model of the task's family from `encoder`, or from random weights of its shape.

    The best of several where the settings ask for more than one seed, or for values to be tried.
    Statistics: the family's held-out figures, those of answering without looking beside them.
    """
    told = context.observe if initialization == "pretrained" else ignore
    settings = settled(settings, labelled, encoder, told)
    build = train_task_model if settings.is_one_training else best_of_trials
    return build(settings, labelled, encoder, context, initialization=initialization)
