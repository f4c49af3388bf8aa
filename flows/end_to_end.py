"""Flow: from raw text to registered models that proved themselves."""

from prefect import flow

from flows import stages
from flows.evaluate import make_evaluation
from flows.finetune import Finetuned, has_task, make_classifier
from flows.pretrain import Pretrained, make_encoder
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import EndToEndRecipe, read_recipe
from pipelines.registry.promotion import due_for_promotion
from pipelines.registry.registration import RegisteredModel, Submission
from pipelines.registry.verification import Proof

_DEMO = read_recipe(EndToEndRecipe, "demo")


@flow(
    name="end-to-end",
    flow_run_name="{recipe.name}: raw text to registered models",
    persist_result=False,
)
def end_to_end(recipe: EndToEndRecipe = _DEMO) -> Story:
    """Build whatever is missing of corpus, vocabulary, examples, encoder and classifier, register
    the models, and have each repeat its held-out accuracy in a fresh process."""
    with started_run("end-to-end", recipe) as run:
        pretrained = make_encoder(run)
        finetuned = None
        if has_task(recipe):
            finetuned = make_classifier(run, pretrained)
            make_evaluation(run, finetuned)
        _register_and_prove(run, pretrained, finetuned)
        _show(run, pretrained, finetuned)
    return run.story


def _register_and_prove(
    run: Run[EndToEndRecipe], pretrained: Pretrained, finetuned: Finetuned | None
) -> None:
    """Register as candidates, prove what is new, and make what was proved now champion."""
    names, tracker = run.recipe.registration, run.tracker
    lineage = pretrained._asdict()
    submitted = {"encoder": (names.encoder_name, pretrained.encoder, lineage, pretrained.examples)}
    if finetuned is not None:
        lineage = lineage | {"task": finetuned.task, "classifier": finetuned.classifier}
        submitted["classifier"] = (
            names.classifier_name, finetuned.classifier, lineage, finetuned.task
        )  # fmt: skip
    proofs, verifications = [], []
    for kind, (name, artifact, sources, heldout) in submitted.items():
        submission = Submission(
            kind=kind,
            name=name,
            alias=names.candidate_alias,
            artifact=artifact,
            lineage=sources,
            recipe_yaml=run.recipe.to_yaml(),
        )
        model = run.stage(f"registration, {kind}", stages.registration, submission, tracker)
        run.story.models.append(model)
        if not model.is_verified:
            proofs.append(_proof(run.recipe, model, heldout))
    if proofs:
        verifications = run.stage(
            "verification", stages.verification, proofs, run.context.store.url, tracker
        )
    run.story.verifications = verifications
    run.story.alias = names.alias
    for model in due_for_promotion(run.story.models, verifications):
        promotion = run.stage(
            f"promotion, {model.kind}", stages.promotion,
            tracker, model.name, str(model.version), names.alias,
        )  # fmt: skip
        run.story.promotions.append(promotion)


def _proof(recipe: EndToEndRecipe, model: RegisteredModel, heldout: Artifact) -> Proof:
    return Proof(
        model=model,
        data=heldout,
        max_examples=recipe.pretraining.final_evaluation_examples,
    )


def _show(run: Run[EndToEndRecipe], pretrained: Pretrained, finetuned: Finetuned | None) -> None:
    """What the models say to held-out sentences, for the final screen."""
    tracker, references = run.tracker, {m.kind: m.reference for m in run.story.models}
    run.story.filled_masks = run.stage(
        "fill-mask examples", stages.filled_masks,
        tracker, references["encoder"], pretrained.corpus, pretrained.vocabulary,
    )  # fmt: skip
    if finetuned is not None:
        run.story.predictions = run.stage(
            "example predictions", stages.predictions,
            tracker, references["classifier"], finetuned.task,
        )  # fmt: skip
