"""A new encoder: its model, and what it may know of its examples before the first step."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.config import encoder_config
from bert_core.model.catalogue import LanguageModel, PretrainingModel
from bert_core.model.initialization import (
    WORD_VECTOR_SCALE,
    attend_to_neighbours,
    begin_as_word_vectors,
    predict_frequencies,
)
from bert_core.word_vectors import Cooccurrences, word_vectors
from pipelines.artifacts import Artifact
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.pretraining.baselines import counted_tokens
from pipelines.stages.pretraining.continuing import TokenModel
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.training.reduction import sum_over_ranks

_MOST_TOKENS: Final = 20_000_000  # counted in ten seconds
_MOST_CONTEXTS: Final = 8192  # the most frequent tokens


def new_model(settings: PretrainingSettings, examples: Artifact) -> TokenModel:
    """A model with random weights, as many positions as the longest examples have."""
    said = ExampleSettings.model_validate(examples.manifest.settings)
    assert settings.size is not None, "only an encoder to go on from may have a size without a name"
    config = encoder_config(
        settings.size,
        examples.statistics["vocab_size"],
        max_position_embeddings=said.max_tokens,
        hidden_dropout=settings.dropout,
        attention_dropout=settings.dropout,
        causal=said.objective == "clm",
    )
    if said.objective == "clm":
        return LanguageModel(config)
    return PretrainingModel(config, next_sentence=said.objective == "mlm_nsp")


def begin_informed(
    model: TokenModel,
    settings: PretrainingSettings,
    examples: Artifact,
    counts: NDArray[np.float64],
    rank: int,
) -> None:
    """Let `model` begin as `initialization` says; all ranks call it.

    `counts` [V] says how often each token occurs in the training examples.
    """
    if settings.initialization == "informed":
        width = model.config.hidden_size
        vectors = example_vectors(examples, counts, width, settings.seed, rank)
        begin_as_word_vectors(model.encoder, vectors)
        attend_to_neighbours(model.encoder, seed=settings.seed, embedding_scale=WORD_VECTOR_SCALE)
    predict_frequencies(model.vocabulary_head, torch.from_numpy(counts))


def example_vectors(
    examples: Artifact, counts: NDArray[np.float64], width: int, seed: int, rank: int = 0
) -> Tensor:
    """[V, width] vectors of the tokens that `counts` [V] says occur; all ranks call it.

    The first rank makes them and the others receive them: they begin with the same bits. A token
    that is never asked for has a count of 0, and no vector.
    """
    vectors = np.zeros((len(counts), width), np.float32)
    if rank == 0:
        is_counted = counts > 0
        most_frequent = np.argsort(-counts, kind="stable")[:_MOST_CONTEXTS]
        found = Cooccurrences(len(counts), most_frequent[is_counted[most_frequent]])
        for ids in counted_tokens(examples, _MOST_TOKENS):
            found.add(ids.flatten().to_numpy(), np.asarray(ids.offsets), is_counted)
        known = min(width, *found.counts.shape)  # of a vocabulary smaller than the encoder is wide
        vectors[:, :known] = word_vectors(found, known, seed=seed).numpy()
    return torch.from_numpy(sum_over_ranks(vectors))
