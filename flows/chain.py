"""The chain: from a recipe to artifacts, a stage after the other."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from flows.report import RANDOM_TWIN
from pipelines.recipes.recipe import Recipe, Until
from pipelines.registry.package import resolved_encoder
from pipelines.stage import Stage, StageContext
from pipelines.stages import (
    CORPUS,
    DATASET,
    EVALUATION,
    EXAMPLES,
    FINETUNING,
    PRETRAINING,
    VOCABULARY,
)
from pipelines.stages.corpus.stage import build_corpus
from pipelines.stages.dataset.stage import build_dataset
from pipelines.stages.evaluation import build_evaluation
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.finetuning.stage import build_task_model
from pipelines.stages.pretraining.continuing import check_objective
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import build_vocabulary
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker
from pipelines.train.imported import existing_encoder

ENCODER: Final = "encoder to start from"


class Chained(Protocol):
    """What walks the chain: a run, or a plan of one."""

    recipe: Recipe
    context: StageContext
    artifacts: dict[str, Artifact]

    @property
    def tracker(self) -> Tracker: ...

    def build(self, stage: Stage, function: Callable[..., Artifact], *inputs: Any) -> Artifact: ...

    def stage(
        self, title: str, function: Callable[..., Any], *inputs: Any, **options: Any
    ) -> Any: ...


def build_chain(run: Chained, until: Until) -> None:
    """Build what is missing of the artifacts up to `until`, and keep them in `run.artifacts`.

    Without labelled items the chain ends with the encoder.
    """
    recipe = run.recipe = with_encoders_in_store(run)
    corpus = None
    if recipe.finetuning.encoder is not None:
        encoder = existing_encoder(recipe.finetuning.encoder, run.context)
        run.artifacts["pretraining"] = encoder
    else:
        corpus = run.build(CORPUS, build_corpus, recipe.corpus)
        if until == "corpus":
            return
        vocabulary = run.build(VOCABULARY, build_vocabulary, recipe.tokenizer, corpus)
        if until == "vocabulary":
            return
        examples = run.build(EXAMPLES, build_examples, recipe.examples, corpus, vocabulary)
        if until == "examples":
            return
        encoder = run.build(PRETRAINING, build_encoder, recipe.pretraining, examples, vocabulary)
    if until == "pretraining" or not recipe.has_labels:
        return
    dataset = run.build(DATASET, build_dataset, recipe.dataset, corpus)
    model = run.build(FINETUNING, build_task_model, recipe.finetuning, dataset, encoder)
    if recipe.finetuning.compare_with_random:
        run.stage(
            RANDOM_TWIN, build_task_model,
            recipe.finetuning, dataset, encoder, run.context, initialization="random",
        )  # fmt: skip
    if until != "finetuning":
        run.build(EVALUATION, build_evaluation, model, dataset)


def with_encoders_in_store(run: Chained) -> Recipe:
    """The run's recipe with a fingerprint in place of every encoder that it names.

    Stages know the store, not the registry: what a name or a folder refers to is imported into the
    store here. Raises UserError if there is no such encoder, or if pretraining would continue from
    one that cannot learn the objective of the examples.
    """
    recipe, fingerprints = run.recipe, {}
    for section, name in recipe.named_encoders.items():
        if name not in fingerprints:
            encoder = run.stage(ENCODER, resolved_encoder, name, run.tracker, run.context)
            fingerprints[name] = encoder.fingerprint
        settings = getattr(recipe, section).model_copy(update={"encoder": fingerprints[name]})
        recipe = recipe.model_copy(update={section: settings})
    if recipe.pretrains and recipe.pretraining.encoder is not None:
        check_objective(recipe.examples, existing_encoder(recipe.pretraining.encoder, run.context))
    return recipe
