"""What a run needs, checked once: by the command before anything starts, or by a deployment's run.

Imports are inside the function, in the order of its checks: a mistake that the first ones notice
ends the command before torch, Ray or MLflow are imported.
"""

from pipelines.errors import UserError
from pipelines.recipes.recipe import Recipe, Until
from pipelines.registry.find import REGISTERED
from pipelines.stage import check_nodes, check_store_and_tracker
from pipelines.store import ArtifactStore
from pipelines.train.existing import check_encoder

_OF_LABELS = ("finetuning", "evaluation", "registration")


def check_run(recipe: Recipe, until: Until) -> None:
    """Check in seconds that `recipe` can be run up to `until`.

    Raises UserError for a store, tracker or node of the cluster that cannot take part, an encoder
    that is not there, an input that cannot be read or cannot be enough, and settings that ask for
    what cannot be done.
    """
    if not recipe.pretrains and until not in _OF_LABELS:
        raise UserError(
            f"with finetuning.encoder nothing is built up to {until}; leave out one of them, or "
            "continue the encoder with pretraining.encoder"
        )
    if not recipe.has_labels and until in ("finetuning", "evaluation"):
        raise UserError(
            f"{until} needs labelled texts, and the recipe's are of kind 'none'; name some with "
            "--labels or in the recipe"
        )
    if recipe.pretrains and recipe.examples.objective == "clm" and until in _OF_LABELS:
        raise UserError(
            "a left-to-right encoder (examples.objective=clm) can be pretrained, but not "
            "fine-tuned or registered; add --until pretraining, or choose mlm or mlm_nsp"
        )
    check_store_and_tracker(recipe.runtime)
    for name in recipe.named_encoders.values():
        if not name.startswith(REGISTERED):  # those are looked up by the run: MLflow imports slowly
            check_encoder(name, ArtifactStore(recipe.runtime.store_url(), is_patient=False))
    if recipe.pretrains:
        from pipelines.stages.corpus.sources import check_inputs as check_corpus

        labels = check_corpus(recipe.corpus)
    else:
        labels = frozenset()
    trains_encoder = recipe.pretrains and until in ("pretraining", *_OF_LABELS)
    trains_task = recipe.has_labels and until in _OF_LABELS
    if trains_encoder:
        from pipelines.stages.pretraining.settings import split_of
        from pipelines.train.settings import check_ranks

        check_ranks(recipe.runtime, split_of(recipe.pretraining))
    if trains_task:
        from pipelines.stages.dataset.items import check_inputs as check_dataset
        from pipelines.stages.finetuning.settings import split_of as split_of_finetuning
        from pipelines.stages.finetuning.training import check_settings
        from pipelines.train.settings import check_ranks

        if recipe.finetuning.is_one_training:  # of several each has a worker of its own
            check_ranks(recipe.runtime, split_of_finetuning(recipe.finetuning))
        family = check_dataset(recipe.dataset, labels)
        if family is not None:
            check_settings(recipe.finetuning, family.model)
    check_nodes(recipe.runtime, trains=trains_encoder or trains_task)
