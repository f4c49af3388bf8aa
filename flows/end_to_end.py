"""Flow: from raw text to registered, verified models."""

from prefect import flow

from flows.chain import build_chain, with_resolved_encoders
from flows.promote import compare_and_promote
from flows.reporting.run_report import RunReport
from flows.run import Overrides, Run, network_task, plain_task, started_run
from flows.stopping import cancel_if_stopped
from pipelines.artifacts import Artifact
from pipelines.insight import showcase
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import EndToEndRecipe
from pipelines.registry.promote import awaiting_promotion
from pipelines.registry.prove import Proof, verify
from pipelines.registry.register import Submission, register
from pipelines.stage import StageContext
from pipelines.stages import CHAIN
from pipelines.training.imported_models import existing_encoder

_DEMO = read_recipe(EndToEndRecipe, "demo")
_ENCODER_LINEAGE = ("corpus", "vocabulary", "examples", "pretraining")
_WENT_ON_FROM = "went_on_from"  # the encoder that the pretraining began with, among the lineage

registration = network_task(register)
verification = network_task(verify)
filled_masks = plain_task(showcase.filled_masks)
predictions = plain_task(showcase.predictions)


@flow(
    name="end-to-end",
    flow_run_name="{recipe.name}: raw text to registered models",
    persist_result=False,
    on_crashed=[cancel_if_stopped],
)
def end_to_end(recipe: EndToEndRecipe = _DEMO, overrides: Overrides = ()) -> RunReport:
    """Build whatever is missing of corpus, vocabulary, examples, encoder and classifier, register
    the models, have each repeat its held-out accuracy in a fresh process, and make what is better
    than its champion champion."""
    with started_run("end-to-end", recipe, overrides, default=_DEMO) as run:
        made = build_chain(run, CHAIN)
        _register_and_prove(run, made)
        _show(run, made)
    return run.report


def _register_and_prove(run: Run[EndToEndRecipe], made: dict[str, Artifact]) -> None:
    """Register candidates, verify new ones, and promote those that are better."""
    names, tracker = run.recipe.registration, run.tracker
    recipe = with_resolved_encoders(run)  # an alias may name another encoder later
    lineage = _lineage(recipe, made, run.context)
    submitted = {}
    if "examples" in made:
        submitted["encoder"] = (names.encoder_name, made["pretraining"], lineage, made["examples"])
    if "finetuning" in made:
        lineage = lineage | {made[name].kind: made[name] for name in ("dataset", "finetuning")}
        submitted[made["dataset"].statistics["family"]] = (
            names.classifier_name, made["finetuning"], lineage, made["dataset"]
        )  # fmt: skip
    proofs, verifications = [], []
    for kind, (name, artifact, sources, heldout) in submitted.items():
        evaluation = made.get("evaluation") if artifact is made.get("finetuning") else None
        submission = Submission(
            kind=kind,
            name=name,
            alias=names.candidate_alias,
            artifact=artifact,
            lineage=sources,
            recipe_yaml=recipe.to_yaml(),
            evaluation=evaluation,
        )
        model = run.stage(f"registration, {kind}", registration, submission, tracker)
        run.report.models.append(model)
        # A run killed between registration and verification may have logged none.
        if not model.reused or not model.is_verified:
            from pipelines.insight.pictures import log_evidence  # matplotlib takes a second

            evidence = network_task(log_evidence)
            run.stage(f"evidence, {kind}", evidence, tracker, model.run_id, artifact, evaluation)
        if not model.is_verified:
            most = run.recipe.pretraining.final_evaluation_examples
            proofs.append(Proof(model=model, data=heldout, max_examples=most))
    if proofs:
        verifications = run.stage(
            "verification", verification, proofs, run.context.store.url, tracker
        )
    run.report.verifications = verifications
    run.report.alias = names.alias
    evaluations = {proved.model.reference: proved.evaluation for proved in verifications}
    for model in awaiting_promotion(run.report.models, verifications):
        compare_and_promote(run, model, evaluations.get(model.reference))


def _lineage(
    recipe: EndToEndRecipe, made: dict[str, Artifact], context: StageContext
) -> dict[str, Artifact]:
    """What the encoder was made from; `recipe` names its starting encoder by fingerprint."""
    lineage = {made[name].kind: made[name] for name in _ENCODER_LINEAGE if name in made}
    if not recipe.given and recipe.pretraining.encoder is not None:
        lineage[_WENT_ON_FROM] = existing_encoder(recipe.pretraining.encoder, context)
    return lineage


def _show(run: Run[EndToEndRecipe], made: dict[str, Artifact]) -> None:
    """Answers of the models to held-out sentences, for the report."""
    tracker, references = run.tracker, [model.reference for model in run.report.models]
    if "corpus" in made:
        run.report.filled_masks = run.stage(
            "fill-mask examples", filled_masks,
            tracker, references[0], made["corpus"], made["vocabulary"],
        )  # fmt: skip
    if "finetuning" in made and made["dataset"].statistics["family"] == "classification":
        run.report.predictions = run.stage(
            "example predictions", predictions,
            tracker, references[-1], made["dataset"],
        )  # fmt: skip
