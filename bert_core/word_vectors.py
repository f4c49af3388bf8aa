"""Vectors of tokens, close for tokens that occur in the same contexts.

Co-occurrences are counted, weighted by 1 / distance, turned into positive pointwise mutual
information and reduced by a truncated singular value decomposition (Levy, Goldberg and Dagan,
"Improving Distributional Similarity with Lessons Learned from Word Embeddings", 2015: contexts
smoothed by the power 0.75, the root of the singular values). V = vocabulary, C = contexts, D =
width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

# The count of a token at each distance: proportional to 1 / distance, as integers.
_WEIGHTS: Final = (60, 30, 20, 15, 12)
_SMOOTHING: Final = 0.75  # power of the contexts' counts: rare ones would weigh too much
# Of the subspace iteration (Halko, Martinsson and Tropp, 2011): more columns than are asked for,
# and passes over the counts.
_MORE_COLUMNS: Final = 32
_PASSES: Final = 4
_NOTHING: Final = 1e-4  # of the longest vector


class Cooccurrences:
    """How often each of V tokens occurs near each of C others that are `contexts`.

    It holds V x C numbers of four bytes.
    """

    def __init__(self, vocab_size: int, contexts: NDArray[np.int64]) -> None:
        self._column = torch.full((vocab_size,), -1)
        self._column[torch.from_numpy(contexts)] = torch.arange(len(contexts))
        self.counts = torch.zeros(vocab_size, len(contexts))  # [V, C]

    def add(self, ids: NDArray[Any], offsets: NDArray[Any], is_counted: NDArray[np.bool_]) -> None:
        """Count the sequences that begin at `offsets` in `ids`; the last one ends where that says.

        Tokens that are not `is_counted` [V] have no neighbours and are none, and no token is a
        neighbour across the end of a sequence.
        """
        numbers = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        sequence = torch.from_numpy(numbers)
        tokens = torch.from_numpy(ids[offsets[0] : offsets[-1]].astype(np.int64))
        counts = torch.from_numpy(is_counted)[tokens]
        flat, num_contexts = self.counts.view(-1), self.counts.shape[1]
        for distance, weight in enumerate(_WEIGHTS, start=1):
            left, right = tokens[:-distance], tokens[distance:]
            is_pair = sequence[:-distance] == sequence[distance:]
            is_pair &= counts[:-distance] & counts[distance:]
            for token, context in ((left, right), (right, left)):
                column = self._column[context]
                chosen = is_pair & (column >= 0)
                cells = token[chosen] * num_contexts + column[chosen]
                flat.scatter_add_(0, cells, torch.full(cells.shape, float(weight)))


def word_vectors(cooccurrences: Cooccurrences, width: int, *, seed: int) -> Tensor:
    """[V, D] vectors of length 1, randomly rotated; zeros for a token without neighbours.

    Rotated, so that all columns carry the same amount of information. The counts are overwritten.
    Computed on one thread, so that the bits do not depend on the number of threads. There must be
    as many tokens and contexts as dimensions.
    """
    information = cooccurrences.counts
    assert width <= min(information.shape)
    with _one_thread():
        _weigh(information)
        vectors = _largest_singular(information, width)
        rotation = torch.empty(width, width)
        nn.init.orthogonal_(rotation, generator=torch.Generator().manual_seed(seed))
        lengths = vectors.norm(dim=1, keepdim=True)
        # Rounding errors are no vector.
        is_known = lengths > _NOTHING * lengths.max()
        return torch.where(is_known, vectors / lengths, 0.0) @ rotation


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _weigh(counts: Tensor) -> None:
    """Turn counts into positive pointwise mutual information, in place."""
    of_contexts = counts.sum(dim=0) ** _SMOOTHING
    shares = (of_contexts / of_contexts.sum()).clamp(min=torch.finfo(torch.float32).tiny)
    for rows in counts.split(1024):
        of_tokens = rows.sum(dim=1, keepdim=True).clamp(min=1.0)
        rows.div_(of_tokens).div_(shares).clamp_(min=1.0).log_()


def _largest_singular(matrix: Tensor, width: int) -> Tensor:
    """[V, D] the left singular vectors times the roots of the D largest singular values."""
    num_columns = min(width + _MORE_COLUMNS, *matrix.shape)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(matrix.shape[1], num_columns, generator=generator)
    for _ in range(_PASSES):
        basis, _ = torch.linalg.qr(matrix @ basis)
        basis, _ = torch.linalg.qr(matrix.T @ basis)
    left, values, _ = torch.linalg.svd(matrix @ basis, full_matrices=False)
    vectors: Tensor = left[:, :width] * values[:width].sqrt()
    return vectors
