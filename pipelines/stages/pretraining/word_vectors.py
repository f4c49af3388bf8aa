"""Word vectors of the training examples, which token embeddings may begin as."""

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.word_vectors import Cooccurrences, word_vectors
from pipelines.artifacts import Artifact
from pipelines.stages.pretraining.baselines import counted_tokens
from pipelines.training.reduction import sum_over_ranks

_MOST_TOKENS: Final = 20_000_000  # counted in ten seconds
_MOST_CONTEXTS: Final = 8192  # the most frequent tokens


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
