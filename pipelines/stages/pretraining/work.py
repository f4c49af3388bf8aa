"""One pretraining as its workers see it: its model, its batches, its figures.

Short examples come first, then those of the full length. Each phase reads its own from their
beginning, so (seed, step) is the whole position still.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from bert_core.batch import Batch
from bert_core.masking import MaskingConfig
from bert_core.model.catalogue import TrainableModel, count_parameters
from bert_core.training.optimizer_settings import Restart
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import (
    ExampleReader,
    micro_batches,
    prefetched,
)
from pipelines.stages.pretraining.continuing import (
    TokenModel,
    begin_informed,
    continued_model,
    new_model,
)
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.ranks import Work, rank_and_world_size

STAGE = "pretraining"


@contextmanager
def pretraining_work(settings: PretrainingSettings, values: dict[str, Any]) -> Iterator[Work]:
    """The work of `settings` with the `examples` and `vocabulary` among `values`, for this rank.

    Where there is an `encoder` among them the model starts from that. Batches are read ahead until
    the block is left.
    """
    rank, world_size = rank_and_world_size()
    tokenizer = load_tokenizer(values["vocabulary"])
    training = TrainingExamples(settings, values["examples"], rank, world_size)
    heldout = HeldoutExamples(values["examples"], tokenizer, rank, world_size)

    def build_model() -> TokenModel:
        if "encoder" in values:
            return continued_model(settings, values["encoder"], values["examples"])
        return new_model(settings, values["examples"])

    def evaluate(model: TrainableModel) -> dict[str, float]:
        return heldout.figures(cast(TokenModel, model), settings.evaluation_examples)

    def final_evaluation(model: TrainableModel) -> dict[str, Any]:
        figures = heldout.figures(cast(TokenModel, model), settings.final_evaluation_examples)
        return {**figures, "num_parameters": count_parameters(model)}

    def begin(model: TrainableModel) -> None:
        counts = (heldout.unigrams.weights - 1).clip(min=0)
        begin_informed(cast(TokenModel, model), settings, values["examples"], counts, rank)

    with prefetched(training.micro_batches, settings.num_steps) as prefetched_batches:
        yield Work(
            stage=STAGE,
            section=STAGE,
            settings=settings,
            num_steps=settings.num_steps,
            evaluate_every_steps=settings.evaluate_every_steps,
            build_model=build_model,
            begin=begin if settings.initialization != "published" else None,
            micro_batches=prefetched_batches,
            batches_of=training.micro_batches,
            restart=restart_of(settings),
            evaluate=evaluate,
            final_evaluation=final_evaluation,
        )


def restart_of(settings: PretrainingSettings) -> Restart | None:
    """Where the learning rate starts over; None where one schedule reaches over all steps."""
    rate, phases = settings.full_learning_rate, phases_of(settings)
    if rate is None or len(phases) == 1:
        return None
    share = settings.full_warmup_fraction
    warmup = settings.warmup_fraction if share is None else share
    return Restart(
        step=phases[1].first_step,
        learning_rate=rate,
        warmup_steps=round(phases[1].num_steps * warmup),
    )


class TrainingExamples:
    """This rank's micro-batches of any step, whatever its phase."""

    def __init__(
        self,
        settings: PretrainingSettings,
        examples: Artifact,
        rank: int,
        world_size: int,
    ) -> None:
        self._settings = settings
        self._phases = phases_of(settings)
        self._readers = {
            phase.examples: ExampleReader(examples, phase.examples) for phase in self._phases
        }
        self._ranks = rank, world_size

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        """Those of this rank, each with its number within the step."""
        phase = next(each for each in reversed(self._phases) if step >= each.first_step)
        reader = self._readers[phase.examples]
        rank, world_size = self._ranks
        masking: MaskingConfig = self._settings.masking_at(step, reader.masking_config)
        return micro_batches(
            reader,
            seed=self._settings.seed,
            step=step - phase.first_step,
            global_batch_size=phase.cut.global_batch_size,
            micro_batch_size=phase.cut.micro_batch_size,
            rank=rank,
            world_size=world_size,
            masking=masking,
        )
