"""One optimizer step: the losses of its micro-batches, summed, over the counts of the whole step.

With `torch.distributed` initialised every rank brings its own micro-batches and all of them take
the same update. Nothing here makes the host wait for a GPU.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.exchange import sum_over_ranks
from bert_core.training.optimizer import Optimizer

_NORM_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step did. Figures stay on the device until they are read."""

    step: int
    learning_rate: float
    losses: dict[str, Tensor]  # mean over the whole step on all ranks, by the loss's name
    grad_norm: Tensor  # of all trainable parameters, before clipping
    num_tokens: Tensor  # on all ranks
    num_sequences: Tensor
    is_taken: Tensor  # False: the guard left the update out
    is_stop_wanted: Tensor  # whether any rank wanted to stop after this step

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
    wants_stop: bool = False,
) -> StepReport:
    """Update `model` by the micro-batches of step `step`, on the model's device.

    `micro_batches` holds this rank's share, each with its index in the whole step; dropout depends
    on (seed, step, index). The optimizer's guard may skip the update: see `StepReport.is_taken`.
    `wants_stop` reaches all ranks with the counts. Raises ValueError for a batch that the model
    cannot take, and if the model has changed since the optimizer was built (see
    `ParameterArena.check_unchanged`).
    """
    names = model.loss_names
    counts, sums = step_gradients(
        model, optimizer, micro_batches,
        seed=seed, step=step, dtype=dtype, wants_stop=wants_stop,
    )  # fmt: skip
    losses = sums / counts[: len(names)].clamp(min=1.0)
    grad_norm = gradient_norm(optimizer.arena.gradients)
    max_norm = optimizer.config.max_grad_norm
    learning_rate = optimizer.config.learning_rate_at(step)
    is_taken = optimizer.update(
        learning_rate,
        divisor=None if max_norm is None else (grad_norm / max_norm).clamp(min=1.0),
        skip=optimizer.guard.should_skip(step, losses.sum(), grad_norm),
    )
    return StepReport(
        step=step,
        learning_rate=learning_rate,
        losses=dict(zip(names, losses.unbind(), strict=True)),
        grad_norm=grad_norm,
        num_tokens=counts[-3],
        num_sequences=counts[-2],
        is_taken=is_taken,
        is_stop_wanted=counts[-1] > 0,
    )


def step_gradients(
    model: TrainableModel,
    optimizer: Optimizer,
    micro_batches: Sequence[tuple[int, Batch]],
    *,
    seed: int,
    step: int,
    dtype: torch.dtype,
    wants_stop: bool = False,
) -> tuple[Tensor, Tensor]:
    """Leave the gradients of the whole step in the arena; returns its counts and loss sums.

    The counts, over all ranks: labels of each loss, tokens, sequences, ranks that want to stop.
    All ranks call it. Raises what `optimizer_step` raises.
    """
    arena = optimizer.arena
    arena.check_unchanged()
    names = model.loss_names
    device = arena.values.device
    counts = sum_over_ranks(_counts(names, micro_batches, device, wants_stop=wants_stop))
    # A loss without labels is 0, not 0 / 0.
    divisors = counts[: len(names)].clamp(min=1.0)
    arena.gradients.zero_()
    sums = torch.zeros(len(names), device=device)
    exchange = optimizer.exchange
    with arena.computing(dtype):
        for number, (index, batch) in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            key = DropoutKey.at(seed, step, index, device)
            with exchange.while_backward() if is_last else nullcontext():
                losses = model.loss_sums(batch, key)
                totals = torch.stack([losses[name].total for name in names])
                (totals / divisors).sum().backward()
            sums += totals.detach()
    exchange.finish()
    return counts, sum_over_ranks(sums)


def gradient_norm(gradients: Tensor) -> Tensor:
    """The norm of one buffer, in parts: on a CPU torch's of 110 million numbers is 1% too small."""
    return get_total_norm(gradients.split(_NORM_ELEMENTS))


def diagnose(
    model: TrainableModel,
    optimizer: Optimizer,
    micro_batches: Sequence[tuple[int, Batch]],
    *,
    seed: int,
    step: int,
    dtype: torch.dtype,
) -> str:
    """The largest gradients and parameters of a step that was skipped, by name, in a line.

    Computes the gradients again: skipped steps have not changed the weights. All ranks call it.
    """
    step_gradients(model, optimizer, micro_batches, seed=seed, step=step, dtype=dtype)
    arena = optimizer.arena
    lists = []
    for buffer in (arena.gradients, arena.values):
        norms = {name: float(view.norm()) for name, view in arena.views(buffer).items()}
        # No number counts as the largest.
        largest = sorted(norms, key=lambda name: -norms[name] if norms[name] >= 0 else -math.inf)
        lists.append(", ".join(f"{name} (norm {norms[name]:.4g})" for name in largest[:3]))
    return f"largest gradients: {lists[0]}; largest parameters: {lists[1]}"


def _counts(
    names: Sequence[str],
    micro_batches: Sequence[tuple[int, Batch]],
    device: torch.device,
    *,
    wants_stop: bool,
) -> Tensor:
    """Labels of each loss in these micro-batches, then tokens, sequences, `wants_stop`."""
    rows = [
        [*(batch.counts.get(name, 0) for name in names),
         batch.tokens.num_tokens, batch.tokens.num_sequences]
        for _, batch in micro_batches
    ]  # fmt: skip
    totals = [sum(column) for column in zip(*rows, strict=True)] or [0] * (len(names) + 2)
    # Exact in float32 up to 16.7 million labels a step.
    totals = [*totals, int(wants_stop)]
    return torch.tensor(totals, dtype=torch.float32).to(device, non_blocking=True)
