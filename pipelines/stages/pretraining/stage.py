"""Stage: from training examples to a pretrained encoder."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.artifacts import Artifact, Built, Draft
from pipelines.config.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.budget import with_steps_in_budget
from pipelines.stages.pretraining.continuing import settings_for
from pipelines.stages.pretraining.settings import PretrainingSettings, split_of
from pipelines.stages.pretraining.work import STAGE, pretraining_work
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.arithmetic import Arithmetic, resolve, trains_best_on_single_threads
from pipelines.training.checkpoint_files import MODEL_FILES, CheckpointFolder, publish_model
from pipelines.training.imported_models import existing_encoder
from pipelines.training.launch import Launch, launch
from pipelines.training.runs import Trained, open_run, recorded, throughput, training_input
from pipelines.training.worker import run


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`, from random weights or from an existing encoder.

    Its artifact holds weights, tokenizer and curve.

    Raises UserError where the examples were made with another vocabulary, or in a way that the
    settings do not go with.
    """
    if examples.manifest.inputs.get("vocabulary") != vocabulary.fingerprint:
        raise UserError(
            f"the examples {examples.fingerprint} were made with another vocabulary than "
            f"{vocabulary.fingerprint}; build them again with this one"
        )
    fault = settings.fault_with(ExampleSettings.model_validate(examples.manifest.settings))
    if fault:
        raise UserError(fault)
    arithmetic, context = resolve(settings.precision, context)
    inputs = {"examples": examples, "vocabulary": vocabulary}
    if settings.encoder is not None:
        encoder = existing_encoder(settings.encoder, context)
        settings = settings_for(settings, encoder, examples, vocabulary, context.observe)
        inputs["encoder"] = encoder
    plain = settings.model_dump(mode="json")
    if settings.budget_minutes is not None:
        plain["num_steps"] = None  # measured once it trains: the budget names the encoder
    return context.store.get_or_build(
        PRETRAINING.kind,
        version=PRETRAINING.version,
        settings=arithmetic.named_in(plain),
        inputs=inputs,
        build=partial(_pretrain, settings, plain, arithmetic, inputs, context),
    )


def _pretrain(
    settings: PretrainingSettings,
    plain: Mapping[str, Any],
    arithmetic: Arithmetic,
    inputs: Mapping[str, Artifact],
    context: StageContext,
    draft: Draft,
) -> Built:
    examples = inputs["examples"]
    data = training_input(examples, examples.statistics["train"]["examples"])
    run_id = open_run(STAGE, plain, draft, context, [data])
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
        cut=split_of(settings),
        one_thread_each=trains_best_on_single_threads(settings.size),
    )

    def finish(checkpoint: Path, result: dict[str, Any]) -> Trained:
        publish_model(draft, checkpoint, load_tokenizer(inputs["vocabulary"]), result)
        statistics = {**result["final"], "num_steps": result["num_steps"], **throughput(result)}
        return Trained(statistics, result["computed_on"], result["undelivered"])

    statistics = recorded(run_id, context, lambda: launch(job, context, finish))
    return Built(MODEL_FILES, statistics)


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    settings = PretrainingSettings.model_validate(values["settings"])
    if settings.budget_minutes is not None:
        counted = with_steps_in_budget(settings, values)
        if counted is None:  # stopped, and nothing is trained yet
            return {}
        settings = counted
    with pretraining_work(settings, values) as work:
        return {**run(work, values), "num_steps": settings.num_steps}
