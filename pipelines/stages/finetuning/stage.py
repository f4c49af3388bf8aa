"""Stage: from a pretrained encoder and labelled items to a model of their task."""

import math
from typing import Final, Literal

from bert_core.model.task_models import TextModel
from bert_core.training.state import read_config
from pipelines.stage import Observer, StageContext, ignore, send_note
from pipelines.stages.dataset.stage import family_of
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import Initialization, train_task_model
from pipelines.stages.finetuning.trials import best_of_trials
from pipelines.store import Artifact
from pipelines.train.imported_models import IMPORTED, config_of
from pipelines.train.settings import resolved_rate

# Few labels want many passes, many labels few (docs/decisions/0041).
_LEAST_EPOCHS, _MOST_EPOCHS = 3, 20
_ITEMS_OF_ONE_EPOCH: Final = 200_000


def build_task_model(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    context: StageContext,
    *,
    initialization: Initialization = "pretrained",
) -> Artifact:
    """A model of the task's family from `encoder`, or from random weights of its shape.

    The best of several where the settings ask for more than one seed, or for values to be tried.
    Statistics: the family's held-out figures, those of the trivial baseline beside them.
    """
    observe = context.observe if initialization == "pretrained" else ignore
    settings = resolved_settings(settings, dataset, encoder, observe)
    build = train_task_model if settings.is_one_training else best_of_trials
    return build(settings, dataset, encoder, context, initialization=initialization)


def resolved_settings(
    settings: FinetuningSettings, dataset: Artifact, encoder: Artifact, observe: Observer
) -> FinetuningSettings:
    """The settings with a value in place of each `auto`, with notes to `observe`."""
    epochs = settings.num_epochs
    if epochs == "auto":
        num_items = dataset.statistics["items"]["train"]
        epochs = automatic_epochs(num_items)
        note = f"finetuning: num_epochs=auto is {epochs:g} for {num_items:,} training items"
        send_note(observe, "finetuning", note)
    rate = resolved_rate(settings.learning_rate, "finetuning", config_of(encoder), observe)
    return settings.model_copy(
        update={
            "num_epochs": float(epochs),
            "learning_rate": rate,
            "pooling": _pooling(settings, dataset, encoder),
            "search": settings.search.around(rate, epochs),
        }
    )


def automatic_epochs(num_items: int) -> int:
    """The passes over `num_items`: three over very many, twenty over a few hundred."""
    wanted = round(math.sqrt(_ITEMS_OF_ONE_EPOCH / max(1, num_items)))
    return min(max(wanted, _LEAST_EPOCHS), _MOST_EPOCHS)


def _pooling(
    settings: FinetuningSettings, dataset: Artifact, encoder: Artifact
) -> Literal["pooler", "mean"]:
    if settings.pooling != "auto":
        return settings.pooling
    if not issubclass(family_of(dataset).model, TextModel):
        return "pooler"
    embedding = read_config(encoder.local_folder()).get("embedding") or {}
    # A published encoder is fine-tuned as its paper does, and opens in transformers as it did.
    is_published = encoder.kind == IMPORTED and not encoder.statistics.get("is_ours")
    return "pooler" if is_published and embedding.get("pooling") != "mean" else "mean"
