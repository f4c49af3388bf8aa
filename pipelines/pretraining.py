"""Stage: from training examples to a pretrained encoder."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from bert_core.batch import Batch
from bert_core.config import encoder_config
from bert_core.models import (
    LanguageModel,
    PretrainingModel,
    TrainableModel,
    count_parameters,
)
from bert_core.state import load_model
from pipelines.artifacts import Artifact, Draft
from pipelines.batches import ExampleReader, micro_batches, prefetched
from pipelines.errors import UserError
from pipelines.evaluation.baselines import pretraining_baselines
from pipelines.evaluation.pretraining import pretraining_figures
from pipelines.stage import StageContext
from pipelines.training.launch import Launch, launch
from pipelines.training.results import (
    MODEL_FOLDER,
    open_run,
    publish_model,
    recorded,
    throughput,
)
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Work, run, this_rank
from pipelines.vocabulary import load_tokenizer

VERSION = 1  # raise when the same settings would train another encoder
STAGE = "pretraining"


class PretrainingSettings(TrainingSettings):
    """The encoder's size and how long, how wide and how fast it is pretrained."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field(
        default="mini",
        description="Layers x width: tiny 2x128, mini 4x256, small 4x512, medium 8x512, "
        "base 12x768, large 24x1024.",
    )
    num_steps: int = Field(default=1000, ge=1, description="Optimizer steps.")
    examples_per_step: int = Field(
        default=64, ge=1, description="Examples of one optimizer step, over all workers."
    )
    micro_batch_examples: int = Field(
        default=64,
        ge=1,
        description="Examples that one worker computes at once; a step is cut into these.",
    )
    learning_rate: float = Field(
        default=1e-3, gt=0, le=1, description="Peak learning rate, reached after the warm-up."
    )
    evaluate_every_steps: int = Field(
        default=200, ge=1, description="Optimizer steps between two held-out evaluations."
    )
    evaluation_examples: int = Field(
        default=512, ge=1, description="Held-out examples of the evaluations during training."
    )
    final_evaluation_examples: int = Field(
        default=20_000, ge=1, description="Held-out examples of the final evaluation."
    )


def build_encoder(
    settings: PretrainingSettings, examples: Artifact, vocabulary: Artifact, context: StageContext
) -> Artifact:
    """Pretrain an encoder on `examples`; its artifact holds weights, tokenizer and curve.

    Raises UserError where the examples were made with another vocabulary.
    """
    if examples.manifest.inputs.get("vocabulary") != vocabulary.fingerprint:
        raise UserError(
            f"the examples {examples.fingerprint} must have been made with the vocabulary "
            f"{vocabulary.fingerprint}, found {examples.manifest.inputs.get('vocabulary')}; "
            "build the examples again with this vocabulary"
        )
    return context.store.get_or_build(
        "encoder",
        version=VERSION,
        settings=settings,
        inputs={"examples": examples, "vocabulary": vocabulary},
        build=partial(_pretrain, settings, examples, vocabulary, context),
    )


def _pretrain(
    settings: PretrainingSettings,
    examples: Artifact,
    vocabulary: Artifact,
    context: StageContext,
    draft: Draft,
) -> dict[str, Any]:
    run_id = open_run(STAGE, settings, draft.fingerprint, context)
    job = Launch(
        worker=_worker,
        values={
            "settings": settings.model_dump(),
            "examples": examples,
            "vocab_size": vocabulary.statistics["size"],
            "run_id": run_id,
            "tracking_uri": context.tracker.uri if context.tracker else None,
        },
        name=STAGE,
        work_url=draft.work_url,
    )

    def finish(checkpoint: Path, told: dict[str, Any]) -> dict[str, Any]:
        tokenizer = load_tokenizer(vocabulary)
        publish_model(draft, checkpoint, tokenizer, told)
        model = load_model(checkpoint / MODEL_FOLDER)
        assert isinstance(model, TrainableModel)
        heldout = ExampleReader(examples, "heldout")
        num_heldout = settings.final_evaluation_examples
        return {
            **pretraining_figures(model, heldout, num_heldout),
            **pretraining_baselines(examples, tokenizer, num_heldout),
            "num_parameters": count_parameters(model),
            "num_steps": settings.num_steps,
            **throughput(told),
        }

    return recorded(run_id, context, lambda: launch(job, context, finish))


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    settings = PretrainingSettings.model_validate(values["settings"])
    rank, world_size = this_rank()
    train_reader = ExampleReader(values["examples"], "train")
    heldout_reader = ExampleReader(values["examples"], "heldout")

    is_language_model = train_reader.settings.objective == "clm"

    def build_model() -> TrainableModel:
        config = encoder_config(
            settings.size,
            values["vocab_size"],
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
        )

    def evaluate(model: TrainableModel) -> dict[str, float]:
        return pretraining_figures(
            model,
            heldout_reader,
            settings.evaluation_examples,
            rank=rank,
            world_size=world_size,
        )

    with prefetched(batches_of, settings.num_steps) as prefetched_batches:
        work = Work(
            stage=STAGE,
            settings=settings,
            num_steps=settings.num_steps,
            evaluate_every_steps=settings.evaluate_every_steps,
            build_model=build_model,
            micro_batches=prefetched_batches,
            evaluate=evaluate,
        )
        return run(work, values)
