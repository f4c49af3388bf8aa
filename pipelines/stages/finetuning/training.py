"""One training run of a model of a task, from a pretrained encoder or from random weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from bert_core.batch import Batch, LabelledBatch
from bert_core.config import EncoderConfig
from bert_core.model.catalogue import Model, TrainableModel, count_parameters
from bert_core.model.preparation import freeze, resize_positions
from bert_core.model.rows import CODE_FILE
from bert_core.model.task_models import SequenceRegressor, TaskModel, TextLabeller, TextModel
from bert_core.training.state import load_encoder_into
from bert_core.training.temperature import best_temperature, divide_logits, losses_by_temperature
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.stage import StageContext, send_note
from pipelines.stages import FINETUNING
from pipelines.stages.dataset.items import validation_parts
from pipelines.stages.dataset.stage import family_of, figures_of, read_items, read_train_groups
from pipelines.stages.finetuning.settings import FinetuningSettings, split_of
from pipelines.store import Artifact, Built, Draft
from pipelines.tasks import Answers, Reading, TaskExamples
from pipelines.tasks.encoding import Sequences, batches, shuffled
from pipelines.train.checkpoint import MODEL_FILES, CheckpointFolder, publish_model
from pipelines.train.imported import config_of
from pipelines.train.launch import launched
from pipelines.train.metrics import best_step, finish_run, open_run, training_statistics
from pipelines.train.placement import is_single_threaded, resolve_device
from pipelines.train.ranks import means_over_ranks, rank_and_world_size, sum_over_ranks
from pipelines.train.worker import Training, TrainingJob

Initialization = Literal["pretrained", "random"]
_FEWEST_EVALUATIONS, _EVALUATIONS_AN_EPOCH = 5, 2

# Settings that change no single training run: other runs beside it, and how its encoder was named.
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
    arithmetic, context = resolve_device(settings.precision, context)
    config = config_of(encoder)
    job = FinetuningJob(
        stage=f"{FINETUNING.name} from {initialization} weights",
        settings=settings,
        precision=arithmetic.precision,
        cut=split_of(settings),
        one_thread_each=is_single_threaded(config.num_layers, config.hidden_size),
        dataset=dataset,
        encoder=encoder,
        initialization=initialization,
    )

    def build(draft: Draft) -> Built:
        run = f"{FINETUNING.name}-{initialization}"
        with (
            open_run(run, settings.model_dump(mode="json"), draft, context) as run_id,
            launched(job, CheckpointFolder.of(draft), context, run_id) as (checkpoint, result),
        ):
            tokenizer = WordPieceTokenizer.from_directory(encoder.local_folder())
            final = result["final"]
            if final["left_out"]:
                send_note(context.observe, FINETUNING.name, f"finetuning: {final['left_out']}")
            publish_model(draft, checkpoint, tokenizer, result, final["temperature"])
        statistics = {
            **figures_of(Answers(*final["answers"]), dataset),
            "score": dataset.statistics["score"],
            "num_parameters": final["num_parameters"],
            "validation_items": final["validation_items"],
            "temperature": final["temperature"],
            **_steps_of(result["history"], settings),
            **training_statistics(result),
        }
        return Built(files_of(dataset), statistics)

    plain = settings.model_dump(mode="json", exclude=OF_NO_TRAINING)
    artifact = context.store.get_or_build(
        FINETUNING.kind,
        version=FINETUNING.version,
        settings=arithmetic.named_in(plain | {"initialization": initialization}),
        inputs={"dataset": dataset, "encoder": encoder},
        build=build,
    )
    finish_run(artifact, context)
    return artifact


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningJob(TrainingJob):
    """A fine-tuning on the items of `dataset`."""

    name: ClassVar[str] = "finetuning"

    settings: FinetuningSettings
    dataset: Artifact
    encoder: Artifact
    initialization: Initialization

    def on_rank(self) -> "Finetuning":
        return Finetuning(self)


class Finetuning(Training):
    """This rank's work."""

    settings: FinetuningSettings

    def __init__(self, job: FinetuningJob) -> None:
        settings, folder = job.settings, job.encoder.local_folder()
        self._job = job
        self._ranks = rank_and_world_size()
        self._family = family_of(job.dataset)
        self._tokenizer = WordPieceTokenizer.from_directory(folder)
        self._reading = reading_of(settings, config_of(job.encoder))
        self._items = read_items(job.dataset, "heldout")
        train = read_items(job.dataset, "train")
        assert settings.validation_items != "auto", "the stage resolves it before it trains"
        learned, validated = validation_parts(
            train, self._family, settings.validation_items, settings.seed,
            read_train_groups(job.dataset),
        )  # fmt: skip
        if settings.patience is not None and not validated.rows:
            raise UserError(
                "finetuning.patience needs validation items, and none can be set aside: too many "
                "training items belong together; leave it out, or give more items"
            )
        self._num_validated = len(validated.rows)
        evaluated = validated if validated.rows else self._items
        learned, evaluated = self._family.on_one_scale(learned, evaluated)
        # Windows of long texts are examples of their own.
        self._train = self._family.examples(learned, self._tokenizer, self._reading)
        self._evaluated = self._family.examples(evaluated, self._tokenizer, self._reading)
        for part, examples in {
            "training": self._train,
            "held-out or validation": self._evaluated,
        }.items():
            if isinstance(examples, Sequences) and not examples.encoded.sequences:
                raise UserError(
                    f"no {part} item can be used: {examples.left_out}; raise "
                    "finetuning.max_tokens, or give shorter answers"
                )
        assert settings.num_epochs != "auto", "the stage resolves it before it trains"
        passes = len(self._train) * settings.num_epochs
        self.settings = settings
        self.num_steps = max(1, math.ceil(passes / settings.global_batch_size))
        self.evaluate_every_steps = evaluation_interval(self.num_steps, settings)
        self.patience = settings.patience
        self.layer_decay = settings.layer_decay
        self.embeddings_rate = settings.embeddings_rate

    def build_model(self) -> TrainableModel:
        encoder, dropout = self._job.encoder, self.settings.dropout
        config = replace(
            config_of(encoder), hidden_dropout=dropout, attention_dropout=dropout,
            classifier_dropout=None,
        )  # fmt: skip
        model = self._family.build_model(config, self._items.labels)
        if self._job.initialization == "pretrained":
            load_encoder_into(model, encoder.local_folder())
        prepare(model, self.settings, self._train)
        return model

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        settings, (rank, world_size) = self.settings, self._ranks
        chosen = shuffled(len(self._train), settings.seed, step, settings.global_batch_size)
        size = settings.micro_batch_size
        for index in range(rank, math.ceil(len(chosen) / size), world_size):
            yield index, self._train.batch(chosen[index * size : (index + 1) * size])

    def evaluate(self, model: TrainableModel) -> dict[str, float]:
        size, device = self.settings.micro_batch_size, next(model.parameters()).device
        means = means_over_ranks(
            tuple(self._family.curve),
            self._num_evaluated_batches,
            (
                (number, model.evaluation_sums(batch.to(device)))
                for number, batch in batches(self._evaluated, size, *self._ranks)
            ),
        )
        figures = {self._family.curve[name]: value for name, value in means.items()}
        if not self._num_validated:
            return figures
        return {f"validation/{name.removeprefix('eval/')}": figures[name] for name in figures}

    def final_evaluation(self, model: TrainableModel) -> dict[str, Any]:
        rank, world_size = self._ranks
        temperature = self._temperature(model)
        if temperature != 1.0:
            divide_logits(cast(TaskModel, model), temperature)
        whole = Reading(self._reading.max_tokens, rank=rank, world_size=world_size)
        answers = self._family.answers(model, self._tokenizer, self._items, whole)
        return {
            "answers": (answers.values, answers.num_truncated),
            "left_out": self._train.left_out if isinstance(self._train, Sequences) else "",
            "num_parameters": count_parameters(model),
            "validation_items": self._num_validated,
            "temperature": temperature,
        }

    @property
    def _num_evaluated_batches(self) -> int:
        return math.ceil(len(self._evaluated) / self.settings.micro_batch_size)

    def _temperature(self, model: TrainableModel) -> float:
        """That of the validation items; 1 without any, and for what has no probabilities.

        So it is where these are means over windows of a text, which no temperature of logits fits.
        """
        is_probable = isinstance(model, TaskModel) and model.has_probabilities
        if not self._num_validated or not is_probable or getattr(model, "reads_windows", False):
            return 1.0
        evaluated = batches(self._evaluated, self.settings.micro_batch_size, *self._ranks)
        losses = losses_by_temperature(
            cast(TaskModel, model),
            ((number, cast(LabelledBatch, batch)) for number, batch in evaluated),
            self._num_evaluated_batches,
        )
        # A row is of one rank, so that the sum is the same for any number of them.
        return best_temperature(sum_over_ranks(losses).sum(axis=0))


def evaluation_interval(num_steps: int, settings: FinetuningSettings) -> int:
    """How many steps lie between evaluations: never more of these than were asked for."""
    if settings.num_evaluations != "auto":
        return math.ceil(num_steps / settings.num_evaluations)
    assert settings.num_epochs != "auto", "the stage resolves it before it trains"
    an_epoch = 0 if settings.patience is None else _EVALUATIONS_AN_EPOCH  # to stop in time
    return math.ceil(num_steps / max(_FEWEST_EVALUATIONS, round(an_epoch * settings.num_epochs)))


def _steps_of(history: Sequence[Mapping[str, Any]], settings: FinetuningSettings) -> dict[str, int]:
    """How many steps were taken, and after which the published weights are as they are."""
    taken = {"num_steps": history[-1]["step"]}
    is_stopped = settings.patience is not None and "validation/loss" in history[-1]
    return {**taken, "best_step": best_step(history)} if is_stopped else taken


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
    return Reading(settings.max_tokens or readable, is_in_windows)


def check_settings(settings: FinetuningSettings, model: type[Model]) -> None:
    """Raise UserError where models of this class cannot do what the settings ask for."""
    head = model.head_name
    if settings.pooling == "mean" and not issubclass(model, TextModel):
        raise UserError(
            "finetuning.pooling=mean is for models of whole texts, and the head of a "
            f"{head} model reads something else; leave it out"
        )
    if settings.long_texts == "windows" and not issubclass(model, TextLabeller):
        raise UserError(
            "finetuning.long_texts=windows is for texts with one or several classes; a "
            f"{head} model reads long texts in its own way (docs/tasks.md); leave it out"
        )


def prepare(model: TrainableModel, settings: FinetuningSettings, train: TaskExamples) -> None:
    """Set how much the model reads, what its head reads, what is frozen, and how losses are scaled.

    The settings go with the model, as `check_settings` says. Raises UserError where it has fewer
    layers than are to be frozen.
    """
    if settings.pooling == "mean":
        assert isinstance(model, TextModel)
        model.pooler = None
    if settings.max_tokens is not None:  # it reads no position that it was not fine-tuned on
        resize_positions(model, settings.max_tokens)
    num_layers = model.config.num_layers
    if settings.freeze_layers > num_layers:
        raise UserError(
            f"finetuning.freeze_layers={settings.freeze_layers} is more than the {num_layers} "
            "layers of the encoder; lower it"
        )
    if settings.freeze_embeddings or settings.freeze_layers:
        freeze(model, embeddings=settings.freeze_embeddings, layers=settings.freeze_layers)
    if settings.long_texts == "windows":
        assert isinstance(model, TextLabeller)
        model.reads_windows = True
    if isinstance(model, SequenceRegressor):
        assert isinstance(train, Sequences)
        values = np.asarray(train.labels, np.float64)
        model.mean, model.deviation = float(values.mean()), float(values.std()) or 1.0
