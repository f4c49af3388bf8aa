"""Stage: from training examples to a pretrained encoder."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

from bert_core.batch import Batch
from bert_core.config import encoder_config
from bert_core.model.catalogue import (
    LanguageModel,
    PretrainingModel,
    TrainableModel,
    count_parameters,
)
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.attempts.checkpoints import CheckpointFolder
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.examples.batches import ExampleReader, micro_batches, prefetched
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.arithmetic import Arithmetic, settle, trains_best_on_single_threads
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import StepCut
from pipelines.training.results import MODEL_FILES, publish_model, throughput
from pipelines.training.telemetry.inputs import training_input
from pipelines.training.telemetry.runs import Trained, deliver, open_run, recorded
from pipelines.training.worker import Work, run, this_rank

STAGE = "pretraining"

TokenModel = PretrainingModel | LanguageModel


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`; its artifact holds weights, tokenizer and curve.

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
    return context.store.get_or_build(
        PRETRAINING.kind,
        version=PRETRAINING.version,
        settings=arithmetic.named_in(settings.model_dump(mode="json")),
        inputs={"examples": examples, "vocabulary": vocabulary},
        build=partial(_pretrain, settings, arithmetic, examples, vocabulary, context),
    )


def _pretrain(
    settings: PretrainingSettings,
    arithmetic: Arithmetic,
    examples: Artifact,
    vocabulary: Artifact,
    context: StageContext,
    draft: Draft,
) -> Built:
    data = training_input(examples, examples.statistics["train"]["examples"])
    run_id = open_run(STAGE, settings, draft, context, [data])
    job = Launch(
        worker=_worker,
        values={
            "settings": settings.model_dump(),
            "examples": examples,
            "vocabulary": vocabulary,
            "precision": arithmetic.precision,
            "run_id": run_id,
            "tracking_uri": context.tracker.uri if context.tracker else None,
        },
        name=STAGE,
        checkpoints=CheckpointFolder.of(draft),
        cut=StepCut(
            section=STAGE,
            examples_per_step=settings.examples_per_step,
            micro_batch_examples=settings.micro_batch_examples,
        ),
        one_thread_each=trains_best_on_single_threads(settings.size),
    )

    def finish(checkpoint: Path, told: dict[str, Any]) -> Trained:
        publish_model(draft, checkpoint, load_tokenizer(vocabulary), told)
        deliver(told["undelivered"], run_id, context)
        statistics = {**told["judged"], "num_steps": settings.num_steps, **throughput(told)}
        return Trained(statistics, told["computed_on"])

    statistics = recorded(run_id, context, lambda: launch(job, context, finish))
    return Built(MODEL_FILES, statistics)


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    settings = PretrainingSettings.model_validate(values["settings"])
    rank, world_size = this_rank()
    train_reader = ExampleReader(values["examples"], "train")
    tokenizer = load_tokenizer(values["vocabulary"])
    heldout = HeldoutExamples(values["examples"], tokenizer, rank, world_size)
    is_language_model = train_reader.settings.objective == "clm"

    def build_model() -> TokenModel:
        config = encoder_config(
            settings.size,
            train_reader.vocab_size,
            max_position_embeddings=train_reader.max_tokens,
            hidden_dropout=settings.dropout,
            attention_dropout=settings.dropout,
            causal=is_language_model,
        )
        if is_language_model:
            return LanguageModel(config)
        return PretrainingModel(config, next_sentence=train_reader.has_pairs)

    def batches_of(step: int) -> Iterator[tuple[int, Batch]]:
        return micro_batches(
            train_reader,
            seed=settings.seed,
            step=step,
            examples_per_step=settings.examples_per_step,
            micro_batch_examples=settings.micro_batch_examples,
            rank=rank,
            world_size=world_size,
            masking=settings.masking_at(step, train_reader.masking_config),
        )

    def evaluate(model: TrainableModel) -> dict[str, float]:
        return heldout.figures(cast(TokenModel, model), settings.evaluation_examples)

    def judge(model: TrainableModel) -> dict[str, Any]:
        figures = heldout.figures(cast(TokenModel, model), settings.final_evaluation_examples)
        return {**figures, "num_parameters": count_parameters(model)}

    with prefetched(batches_of, settings.num_steps) as prefetched_batches:
        work = Work(
            stage=STAGE,
            settings=settings,
            num_steps=settings.num_steps,
            evaluate_every_steps=settings.evaluate_every_steps,
            build_model=build_model,
            micro_batches=prefetched_batches,
            batches_of=batches_of,
            evaluate=evaluate,
            judge=judge,
        )
        return run(work, values)
