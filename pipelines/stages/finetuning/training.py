"""One training run of a model of a task, from a pretrained encoder or from random weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from bert_core.batch import Batch
from bert_core.config import EncoderConfig, size_of
from bert_core.model.catalogue import TrainableModel, count_parameters
from bert_core.model.rows import CODE_FILE
from bert_core.training.initialization import load_encoder_into
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.config.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.dataset.stage import family_of, figures_of, read_items
from pipelines.stages.finetuning import FINETUNING
from pipelines.stages.finetuning.preparation import prepare
from pipelines.stages.finetuning.settings import FinetuningSettings, split_of
from pipelines.tasks import Answers, Reading
from pipelines.tasks.encoding import batches, shuffled
from pipelines.training.arithmetic import Arithmetic, resolve, trains_best_on_single_threads
from pipelines.training.checkpoint_files import MODEL_FILES, CheckpointFolder, publish_model
from pipelines.training.curve import best_step
from pipelines.training.imported_models import config_of
from pipelines.training.launch import Launch, launch
from pipelines.training.ranks import Work, means_over_ranks, rank_and_world_size
from pipelines.training.runs import Trained, open_run, recorded, throughput, training_input
from pipelines.training.worker import run

STAGE = "finetuning"

Initialization = Literal["pretrained", "random"]


# Neither do other training runs change one, nor how its encoder was called.
OF_NO_TRAINING = {"compare_with_random", "encoder", "num_seeds", "search"}


def train_task_model(
    settings: FinetuningSettings,
    dataset: Artifact,
    encoder: Artifact,
    context: StageContext,
    *,
    initialization: Initialization = "pretrained",
) -> Artifact:
    """Train one model of the task's family from `encoder`, or from random weights of its shape.

    Statistics: the family's held-out figures, those of the trivial baseline beside them.
    """
    arithmetic, context = resolve(settings.precision, context)
    plain = settings.model_dump(mode="json", exclude=OF_NO_TRAINING)
    return context.store.get_or_build(
        FINETUNING.kind,
        version=FINETUNING.version,
        settings=arithmetic.named_in(plain | {"initialization": initialization}),
        inputs={"dataset": dataset, "encoder": encoder},
        build=partial(_finetune, settings, arithmetic, dataset, encoder, initialization, context),
    )


def _finetune(
    settings: FinetuningSettings,
    arithmetic: Arithmetic,
    dataset: Artifact,
    encoder: Artifact,
    initialization: Initialization,
    context: StageContext,
    draft: Draft,
) -> Built:
    tokenizer = WordPieceTokenizer.from_directory(encoder.local_folder())
    encoder_config = config_of(encoder)
    reading = reading_of(settings, encoder_config)
    # Windows of long texts are examples of their own.
    train = family_of(dataset).examples(read_items(dataset, "train"), tokenizer, reading)
    assert settings.num_epochs != "auto", "a stage resolves it before it trains"
    num_steps = max(1, math.ceil(len(train) * settings.num_epochs / settings.global_batch_size))
    data = training_input(dataset, dataset.statistics["items"]["train"])
    plain = settings.model_dump(mode="json")
    run_id = open_run(f"{STAGE}-{initialization}", plain, draft, context, [data])
    job = Launch(
        worker=_worker,
        values={
            "stage": f"{STAGE} from {initialization} weights",
            "settings": settings.model_dump(),
            "num_steps": num_steps,
            "dataset": dataset,
            "encoder": encoder,
            "initialization": initialization,
            "precision": arithmetic.precision,
            "run_id": run_id,
            "tracking_uri": context.tracker.uri if context.tracker else None,
        },
        name=STAGE,
        checkpoints=CheckpointFolder.of(draft),
        cut=split_of(settings),
        one_thread_each=trains_best_on_single_threads(size_of(encoder_config)),
    )

    def finish(checkpoint: Path, result: dict[str, Any]) -> Trained:
        publish_model(draft, checkpoint, tokenizer, result)
        statistics = {
            **figures_of(Answers(*result["final"]["answers"]), dataset),
            "score": dataset.statistics["score"],
            "num_parameters": result["final"]["num_parameters"],
            **_steps_of(result["history"], settings),
            **throughput(result),
        }
        return Trained(statistics, result["computed_on"], result["undelivered"])

    statistics = recorded(run_id, context, lambda: launch(job, context, finish))
    return Built(files_of(dataset), statistics)


def _worker(values: dict[str, Any]) -> dict[str, Any]:
    """Runs on every Ray Train worker."""
    settings = FinetuningSettings.model_validate(values["settings"])
    dataset, encoder = values["dataset"], values["encoder"]
    rank, world_size = rank_and_world_size()
    tokenizer = WordPieceTokenizer.from_directory(encoder.local_folder())
    encoder_config, family = config_of(encoder), family_of(dataset)
    reading = reading_of(settings, encoder_config)
    whole = Reading(reading.max_tokens, rank=rank, world_size=world_size)
    heldout = read_items(dataset, "heldout")
    train_examples = family.examples(read_items(dataset, "train"), tokenizer, reading)
    heldout_examples = family.examples(heldout, tokenizer, reading)

    def build_model() -> TrainableModel:
        dropout = settings.dropout
        config = replace(
            encoder_config, hidden_dropout=dropout, attention_dropout=dropout,
            classifier_dropout=None,
        )  # fmt: skip
        model = family.build_model(config, heldout.labels)
        if values["initialization"] == "pretrained":
            load_encoder_into(model, encoder.local_folder())
        prepare(model, settings, train_examples)
        return model

    def micro_batches(step: int) -> Iterator[tuple[int, Batch]]:
        num_examples = len(train_examples)
        chosen = shuffled(num_examples, settings.seed, step, settings.global_batch_size)
        size = settings.micro_batch_size
        for index in range(rank, math.ceil(len(chosen) / size), world_size):
            yield index, train_examples.batch(chosen[index * size : (index + 1) * size])

    def evaluate(model: TrainableModel) -> dict[str, float]:
        size, device = settings.micro_batch_size, next(model.parameters()).device
        means = means_over_ranks(
            tuple(family.curve),
            math.ceil(len(heldout_examples) / size),
            (
                (number, model.evaluation_sums(batch.to(device)))
                for number, batch in batches(heldout_examples, size, rank, world_size)
            ),
        )
        return {family.curve[name]: value for name, value in means.items()}

    def final_evaluation(model: TrainableModel) -> dict[str, Any]:
        # In the windows of the published model, which may advance by another stride.
        answers = family.answers(model, tokenizer, heldout, whole)
        return {"answers": tuple(answers), "num_parameters": count_parameters(model)}

    work = Work(
        stage=values["stage"],
        section=STAGE,
        settings=settings,
        layer_decay=settings.layer_decay,
        rate_scales=settings.rate_scales,
        num_steps=values["num_steps"],
        evaluate_every_steps=settings.evaluate_every_steps(values["num_steps"]),
        patience=settings.patience,
        build_model=build_model,
        micro_batches=micro_batches,
        batches_of=micro_batches,
        evaluate=evaluate,
        final_evaluation=final_evaluation,
    )
    return run(work, values)


def _steps_of(history: Sequence[Mapping[str, Any]], settings: FinetuningSettings) -> dict[str, int]:
    """How many steps were taken, and after which the published weights are as they are."""
    taken = {"num_steps": history[-1]["step"]}
    return taken if settings.patience is None else {**taken, "best_step": best_step(history)}


def files_of(dataset: Artifact) -> list[str]:
    """The files of a model of these items, with the code of a user's own task."""
    return [*MODEL_FILES, *dataset.names(CODE_FILE)]


def reading_of(settings: FinetuningSettings, encoder: EncoderConfig) -> Reading:
    """How items are read; raises UserError where the encoder reads fewer tokens than that."""
    readable = encoder.max_position_embeddings
    if settings.max_tokens is not None and settings.max_tokens > readable:
        raise UserError(
            f"finetuning.max_tokens={settings.max_tokens} is more than the {readable} positions "
            "that the encoder was pretrained on; lower it or raise examples.max_tokens"
        )
    is_in_windows = settings.long_texts == "windows"
    return Reading(settings.max_tokens or readable, settings.window_stride, is_in_windows)
