"""Stage: from training examples to a pretrained encoder."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.attempts.checkpoints import CheckpointFolder
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.begun_budget import steps_settled
from pipelines.stages.pretraining.continuing import settled
from pipelines.stages.pretraining.cuts import cut_of
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.work import STAGE, pretraining_work
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.arithmetic import Arithmetic, settle, trains_best_on_single_threads
from pipelines.training.launch import Launch, launch
from pipelines.training.results import MODEL_FILES, publish_model, throughput
from pipelines.training.starting import starting_encoder
from pipelines.training.telemetry.inputs import training_input
from pipelines.training.telemetry.runs import Trained, open_run, recorded
from pipelines.training.worker import run


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`, from random weights or from an encoder that is there.

    Its artifact holds weights, tokenizer and curve.

    Raises UserError where the examples were made with another vocabulary, or in a way that the
    settings do not go with.
    """
    if examples.manifest.inputs.get("vocabulary") != vocabulary.fingerprint:
        raise UserError(
            f"the examples {examples.fingerprint} must have been made with the vocabulary "
            f"{vocabulary.fingerprint}, found {examples.manifest.inputs.get('vocabulary')}; "
            "build the examples again with this vocabulary"
        )
    fault = settings.fault_with(ExampleSettings.model_validate(examples.manifest.settings))
    if fault:
        raise UserError(fault)
    arithmetic, context = settle(settings.precision, context)
    inputs = {"examples": examples, "vocabulary": vocabulary}
    if settings.encoder is not None:
        encoder = starting_encoder(settings.encoder, context)
        settings = settled(settings, encoder, examples, vocabulary, context.observe)
        inputs["encoder"] = encoder
    with steps_settled(settings, arithmetic, inputs, context) as counted:
        return context.store.get_or_build(
            PRETRAINING.kind,
            version=PRETRAINING.version,
            settings=arithmetic.named_in(counted.model_dump(mode="json")),
            inputs=inputs,
            build=partial(_pretrain, counted, arithmetic, inputs, context),
        )


def _pretrain(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
    draft: Draft,
) -> Built:
    examples = inputs["examples"]
    data = training_input(examples, examples.statistics["train"]["examples"])
    run_id = open_run(STAGE, settings, draft, context, [data])
    job = Launch(
        worker=_worker,
        values={
            "settings": settings.model_dump(),
            **inputs,
            "precision": arithmetic.precision,
            "run_id": run_id,
            "tracking_uri": context.tracker.uri if context.tracker else None,
        },
        name=STAGE,
        checkpoints=CheckpointFolder.of(draft),
        cut=cut_of(settings),
        one_thread_each=trains_best_on_single_threads(settings.size),
    )

    def finish(checkpoint: Path, told: dict[str, Any]) -> Trained:
        publish_model(draft, checkpoint, load_tokenizer(inputs["vocabulary"]), told)
        statistics = {**told["judged"], "num_steps": settings.num_steps, **throughput(told)}
        return Trained(statistics, told["computed_on"], told["undelivered"])

    statistics = recorded(run_id, context, lambda: launch(job, context, finish))
    return Built(MODEL_FILES, statistics)


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    with pretraining_work(values) as work:
        return run(work, values)
