"""The seam: the few operations that a model is computed with, and which backend computes them.

`plain` is ordinary torch and its autograd: the reference, what a GPU runs and a compiler traces.
`cpu` computes the same with backward passes written by hand for a CPU's caches. The device decides
unless one is named.

B = sequences, T = ragged tokens, R = rows computed for them, H = heads, K = head width, D = H * K,
M = predicted tokens, V = vocabulary.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bert_core.backends import cpu, plain
from bert_core.backends.context import current_context, in_context
from bert_core.backends.dropout import AttentionDropout, DropoutMask
from bert_core.batch import RaggedBatch

BACKENDS = ("plain", "cpu")


class Layout(Protocol):
    """In which order a backend computes the tokens of a batch; made once, used by every layer."""

    def sort(self, tokens: RaggedBatch) -> RaggedBatch:
        """The batch in this order, R tokens."""

    def restore(self, hidden: Tensor) -> Tensor:
        """[R, D] in this order -> [T, D] in the batch's own."""

    def rows_at(self, positions: Tensor) -> Tensor:
        """Which rows hold the tokens at P `positions` of the batch; maybe more after them."""


class Backend(Protocol):
    """What a module of this package offers. Vectors and tables are float32 parameters."""

    # Whether matrices are copied to the number format once a step, with a place for gradients.
    takes_compute_weights: bool

    def lay_out(self, tokens: RaggedBatch) -> Layout:
        """How this backend wants the tokens of a batch."""

    def linear(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """values weight^T + bias: [T, in] -> [T, out]."""

    def feed_forward(
        self, hidden: Tensor, widen_weight: Tensor, widen_bias: Tensor,
        narrow_weight: Tensor, narrow_bias: Tensor,
    ) -> Tensor:  # fmt: skip
        """Two linear maps with the exact GELU between them: [T, D] -> [T, D]."""

    def add_norm(
        self, values: Tensor, update: Tensor | None, mask: DropoutMask | None,
        weight: Tensor, bias: Tensor, eps: float,
    ) -> Tensor:  # fmt: skip
        """Layer normalization of `values` + what `mask` leaves of `update`, all [T, D]."""

    def look_up(self, table: Tensor, ids: Tensor) -> Tensor:
        """[V, D] and T ids -> [T, D] rows of the table, in float32 in any precision."""

    def take_rows(self, values: Tensor, index: Tensor) -> Tensor:
        """[T, D] and M indices -> [M, D]."""

    def attend(
        self, qkv: Tensor, layout: Any, causal: bool, dropped: AttentionDropout | None
    ) -> Tensor:
        """softmax(Q K^T / sqrt(K)) V in each sequence: [T, 3, H, K] -> [T, D]."""

    def fill_rows(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """[M, D] and [M], maybe with rows after them that do not count."""

    def vocabulary_loss_sum(
        self, hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor
    ) -> Tensor:
        """-log softmax(hidden embeddings^T + bias)[label], summed over the labels not < 0."""


def backend_for(device: torch.device) -> Backend:
    """The backend of this thread for tensors on `device`; a compiler always sees `plain`."""
    name = current_context().backend
    is_plain = torch.compiler.is_compiling() or name == "plain" or device.type != "cpu"
    return plain if is_plain else cpu


def use_backend(name: str) -> AbstractContextManager[None]:
    """Compute with the backend of this name in the block, on this thread; blocks nest.

    Raises ValueError for an unknown name.
    """
    if name not in BACKENDS:
        raise ValueError(f"a backend must be one of {', '.join(BACKENDS)}, got {name!r}")
    return in_context(replace(current_context(), backend=name))
