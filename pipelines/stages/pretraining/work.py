"""One pretraining as its workers see it: its model, its batches, its figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import (
    LanguageModel,
    PretrainingModel,
    TrainableModel,
    count_parameters,
)
from bert_core.model.initialization import (
    WORD_VECTOR_SCALE,
    attend_to_neighbours,
    begin_as_word_vectors,
    predict_frequencies,
)
from pipelines.artifacts import Artifact
from pipelines.stages.examples.batches import prefetched
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining.continuing import TokenModel, continued_model
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.pretraining.phases import TrainingExamples, restart_of
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.word_vectors import example_vectors
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.training.ranks import share_of_node, this_rank
from pipelines.training.worker import Work

STAGE = "pretraining"


@contextmanager
def pretraining_work(values: dict[str, Any]) -> Iterator[Work]:
    """The work of the `settings`, `examples` and `vocabulary` among `values`, for this rank.

    Where there is an `encoder` among them the model starts from that. Batches are read ahead until
    the block is left.
    """
    settings = PretrainingSettings.model_validate(values["settings"])
    rank, world_size = this_rank()
    tokenizer = load_tokenizer(values["vocabulary"])
    share = share_of_node()
    training = TrainingExamples(settings, values["examples"], rank, world_size, share)
    heldout = HeldoutExamples(values["examples"], tokenizer, rank, world_size)

    def build_model() -> TokenModel:
        if "encoder" in values:
            return continued_model(settings, values["encoder"], values["examples"])
        return _new_model(settings, values["examples"])

    def evaluate(model: TrainableModel) -> dict[str, float]:
        return heldout.figures(cast(TokenModel, model), settings.evaluation_examples)

    def judge(model: TrainableModel) -> dict[str, Any]:
        figures = heldout.figures(cast(TokenModel, model), settings.final_evaluation_examples)
        return {**figures, "num_parameters": count_parameters(model)}

    def begin_informed(model: TrainableModel) -> None:
        counts = (heldout.unigrams().weights - 1).clip(min=0)
        if settings.initialization == "informed":
            width = model.config.hidden_size
            vectors = example_vectors(values["examples"], counts, width, settings.seed, rank)
            begin_as_word_vectors(model.encoder, vectors)
            attend_to_neighbours(
                model.encoder, seed=settings.seed, embedding_scale=WORD_VECTOR_SCALE
            )
        predict_frequencies(cast(TokenModel, model).vocabulary_head, torch.from_numpy(counts))

    with prefetched(training.micro_batches, settings.num_steps) as prefetched_batches:
        yield Work(
            stage=STAGE,
            section=STAGE,
            settings=settings,
            num_steps=settings.num_steps,
            evaluate_every_steps=settings.evaluate_every_steps,
            build_model=build_model,
            begin=begin_informed if settings.initialization != "published" else None,
            micro_batches=prefetched_batches,
            batches_of=training.micro_batches,
            first_steps=training.first_steps,
            largest_batches=training.largest_batches,
            restart=restart_of(settings),
            evaluate=evaluate,
            judge=judge,
        )


def _new_model(settings: PretrainingSettings, examples: Artifact) -> TokenModel:
    """A model with random weights, as many positions as the longest examples have."""
    told = ExampleSettings.model_validate(examples.manifest.settings)
    assert settings.size is not None, "only an encoder to go on from may have a size without a name"
    config = encoder_config(
        settings.size,
        examples.statistics["vocab_size"],
        max_position_embeddings=told.max_tokens,
        hidden_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        causal=told.objective == "clm",
    )
    if told.objective == "clm":
        return LanguageModel(config)
    return PretrainingModel(config, next_sentence=told.objective == "mlm_nsp")
