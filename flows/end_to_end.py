"""Flow: from raw text to registered, verified models."""

from prefect import flow

from flows.chain import build_chain
from flows.promote import compare_and_promote
from flows.report import RunReport
from flows.run import Overrides, Run, started_run
from flows.stopping import cancel_if_stopped
from pipelines.recipes.files import read_recipe
from pipelines.recipes.recipe import Recipe, Until
from pipelines.registry.prove import Evaluation, verify
from pipelines.registry.register import Submission, register
from pipelines.show import filled_masks, log_evidence
from pipelines.store import Artifact
from pipelines.train.imported import existing_encoder

_DEMO = read_recipe("demo")


@flow(
    name="end-to-end",
    flow_run_name="{recipe.name} to {until}",
    persist_result=False,
    on_crashed=[cancel_if_stopped],
)
def end_to_end(
    recipe: Recipe = _DEMO, until: Until = "registration", overrides: Overrides = ()
) -> RunReport:
    """Build whatever is missing of corpus, vocabulary, examples, encoder and task model, register
    the models, have each repeat its held-out score in a fresh process, and make what is better
    than its champion champion."""
    with started_run("end-to-end", recipe, overrides, until) as run:
        build_chain(run, until)
        if until == "registration":
            _register_and_prove(run)
            _show(run)
    return run.report


def _register_and_prove(run: Run) -> None:
    """Register candidates, verify new ones, and promote those that are better."""
    names, made = run.recipe.registration, run.artifacts
    submissions, heldout = [], []
    if "examples" in made:
        submissions.append(_submission(run, "encoder", names.encoder_name, "pretraining"))
        heldout.append(made["examples"])
    if "finetuning" in made:
        family = made["dataset"].statistics["family"]
        submissions.append(_submission(run, family, names.classifier_name, "finetuning"))
        heldout.append(made["dataset"])
    evaluations: dict[str, Evaluation] = {}
    for submission, data in zip(submissions, heldout, strict=True):
        kind = submission.kind
        model = run.stage(f"registration, {kind}", register, submission, run.tracker)
        run.report.models.append(model)
        # A run killed between registration and verification may have logged none.
        if not model.reused or not model.is_verified:
            run.stage(
                f"evidence, {kind}", log_evidence,
                run.tracker, model.run_id, submission.artifact, submission.evaluation,
            )  # fmt: skip
        if not model.is_verified:
            verification = run.stage(
                f"verification, {kind}", verify, model, data, run.context.store.url, run.tracker,
                max_examples=run.recipe.pretraining.final_evaluation_examples,
            )  # fmt: skip
            run.report.verifications.append(verification)
            evaluations[model.reference] = verification.evaluation
    for model in run.report.models:
        # Whatever an earlier run compared stays where it or a person put it.
        if model.awaits_promotion or model.reference in evaluations:
            compare_and_promote(run, model, evaluations.get(model.reference))


def _submission(run: Run, kind: str, name: str, stage: str) -> Submission:
    made = run.artifacts
    return Submission(
        kind=kind,
        name=name,
        alias=run.recipe.registration.candidate_alias,
        artifact=made[stage],
        lineage=_lineage(run, with_task=stage == "finetuning"),
        recipe_yaml=run.recipe.to_yaml(),
        evaluation=made.get("evaluation") if stage == "finetuning" else None,
    )


def _lineage(run: Run, *, with_task: bool) -> dict[str, Artifact]:
    """What a model was made from, by kind, with the encoder that pretraining continued."""
    stages = ["corpus", "vocabulary", "examples", "pretraining"]
    stages += ["dataset", "finetuning"] if with_task else []
    lineage = {
        run.artifacts[name].kind: run.artifacts[name] for name in stages if name in run.artifacts
    }
    continued = run.recipe.pretraining.encoder if run.recipe.pretrains else None
    if continued is not None:
        lineage["base_encoder"] = existing_encoder(continued, run.context)
    return lineage


def _show(run: Run) -> None:
    """Masked words that the encoder fills, for the report."""
    made, report = run.artifacts, run.report
    if "corpus" in made:
        report.filled_masks = run.stage(
            "fill-mask examples", filled_masks,
            run.tracker, report.models[0].uri, made["corpus"], made["vocabulary"],
        )  # fmt: skip
