"""One pretraining as its workers see it: its model, its batches, its figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from bert_core.model.catalogue import TrainableModel, count_parameters
from pipelines.stages.examples.batches import prefetched
from pipelines.stages.pretraining.continuing import TokenModel, continued_model
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.new_model import begin_informed, new_model
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.training_examples import TrainingExamples, restart_of
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.ranks import rank_and_world_size, share_of_node
from pipelines.training.worker import Work

STAGE = "pretraining"


@contextmanager
def pretraining_work(settings: PretrainingSettings, values: dict[str, Any]) -> Iterator[Work]:
    """The work of `settings` with the `examples` and `vocabulary` among `values`, for this rank.

    Where there is an `encoder` among them the model starts from that. Batches are read ahead until
    the block is left.
    """
    rank, world_size = rank_and_world_size()
    tokenizer = load_tokenizer(values["vocabulary"])
    share = share_of_node()
    training = TrainingExamples(settings, values["examples"], rank, world_size, share)
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
        counts = (heldout.unigrams().weights - 1).clip(min=0)
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
            largest_batches=training.largest_batches,
            restart=restart_of(settings),
            evaluate=evaluate,
            final_evaluation=final_evaluation,
        )
