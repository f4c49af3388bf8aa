"""One optimizer step: the losses of its micro-batches, summed, over the counts of the whole step.

With `torch.distributed` initialised every rank brings its own micro-batches and all of them take
the same update. Nothing here makes the host wait for a GPU.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import backend_for
from bert_core.backends.precision import autocast
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.exchange import GradientExchange
from bert_core.training.optimization import Optimizer
from bert_core.training.ranks import sum_over_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step did. Figures stay on the device until somebody reads them."""

    step: int
    learning_rate: float
    losses: dict[str, Tensor]  # mean over the whole step on all ranks, by the loss's name
    grad_norm: Tensor  # of all trainable parameters, before clipping
    num_tokens: Tensor  # on all ranks
    num_sequences: Tensor
    is_finite: Tensor  # False: the update was not made, this time or ever since

    @property
    def loss(self) -> Tensor:
        """What the step minimised: the sum of its losses."""
        return torch.stack(list(self.losses.values())).sum()


def optimizer_step(
    model: TrainableModel,
    optimizer: Optimizer,
    micro_batches: Sequence[tuple[int, Batch]],
    *,
    seed: int,
    step: int,
    dtype: torch.dtype = torch.float32,
) -> StepReport:
    """Update `model` by the micro-batches of step `step`, on the model's device.

    `micro_batches` holds this rank's share, each with its index in the whole step; dropout depends
    on (seed, step, index). Where the gradient is not finite the update is left out, and all later
    ones: see `StepReport.is_finite`. Raises ValueError for a batch that the model cannot take, and
    where other parameters are frozen than when the optimizer was built.
    """
    arena = optimizer.arena
    arena.refuse_changed()
    names = model.loss_names
    counts = sum_over_ranks(_counts(names, micro_batches, arena.values.device))
    # A loss nobody has a label for is 0, not 0 / 0.
    divisors = counts[: len(names)].clamp(min=1.0)
    arena.gradients.zero_()
    sums = torch.zeros(len(names), device=arena.values.device)
    config = optimizer.config
    device = arena.values.device
    exchange = GradientExchange(model, arena, config.exchange_dtype, config.bucket_megabytes)
    copies = backend_for(device).takes_compute_weights
    weights = arena.compute_weights(dtype) if copies else None
    with autocast(model, dtype, weights, copies=copies):
        for number, (index, batch) in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            with exchange.while_backward() if is_last else nullcontext():
                losses = model.loss_sums(batch, DropoutKey.at(seed, step, index, device))
                totals = torch.stack([losses[name].total for name in names])
                (totals / divisors).sum().backward()
            sums += totals.detach()
    exchange.finish()
    sums = sum_over_ranks(sums)
    grad_norm = torch.linalg.vector_norm(arena.gradients)
    max_norm = config.max_grad_norm
    learning_rate = config.learning_rate_at(step)
    is_finite = optimizer.update(
        learning_rate,
        divisor=None if max_norm is None else (grad_norm / max_norm).clamp(min=1.0),
        halt=~grad_norm.isfinite(),
        step=step,
    )
    return StepReport(
        step=step,
        learning_rate=learning_rate,
        losses=dict(zip(names, (sums / divisors).unbind(), strict=True)),
        grad_norm=grad_norm,
        num_tokens=counts[-2],
        num_sequences=counts[-1],
        is_finite=is_finite,
    )


def _counts(
    names: Sequence[str], micro_batches: Sequence[tuple[int, Batch]], device: torch.device
) -> Tensor:
    """How many labels each loss has in these micro-batches, then tokens and sequences."""
    rows = [
        [*(batch.counts.get(name, 0) for name in names),
         batch.tokens.num_tokens, batch.tokens.num_sequences]
        for _, batch in micro_batches
    ]  # fmt: skip
    totals = [sum(column) for column in zip(*rows, strict=True)] or [0] * (len(names) + 2)
    # Exact in float32 up to 16.7 million labels a step.
    return torch.tensor(totals, dtype=torch.float32).to(device, non_blocking=True)
