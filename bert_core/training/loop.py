"""One optimizer step, the loop around it, and the figures of an evaluation.

A step sums the losses of its micro-batches over the counts of the whole step. With
`torch.distributed` initialised every rank brings its own micro-batches and all of them take the
same update. Nothing in a step makes the host wait for a GPU.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from bert_core.backends.context import (
    Precision,
    compute_dtype,
    computing,
    keep_freed_memory,
    return_freed_memory,
)
from bert_core.backends.dropout import DropoutKey
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.arena import ParameterArena, num_ranks, sum_over_ranks
from bert_core.training.optimizer import Optimizer

_NORM_ELEMENTS = 1 << 20
# After this many micro-batches hardly a matrix product is left to compile.
SETTLING_BATCHES = 8
# A GPU's host asks every so many steps whether training goes on: it waits for the GPU then.
_READ_EVERY_STEPS = 8

MicroBatches = Callable[[int], Iterable[tuple[int, Batch]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step did. Figures stay on the device until they are read."""

    step: int
    learning_rate: float
    losses: dict[str, Tensor]  # mean over the whole step on all ranks, by the loss's name
    grad_norm: Tensor  # of all trainable parameters, before clipping
    num_tokens: Tensor  # on all ranks
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
    on (seed, step, index). `wants_stop` reaches all ranks with the counts. Raises ValueError for a
    batch that the model cannot take, and if the model has changed since the optimizer was built
    (see `ParameterArena.check_unchanged`).
    """
    names = model.loss_names
    counts, sums = _step_gradients(
        model, optimizer, micro_batches,
        seed=seed, step=step, dtype=dtype, wants_stop=wants_stop,
    )  # fmt: skip
    losses = sums / counts[: len(names)].clamp(min=1.0)
    grad_norm = gradient_norm(optimizer.arena.gradients)
    max_norm = optimizer.config.max_grad_norm
    learning_rate = optimizer.config.learning_rate_at(step)
    with computing(dtype):
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
        num_tokens=counts[-2],
        is_taken=is_taken,
        is_stop_wanted=counts[-1] > 0,
    )


def _step_gradients(
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

    The counts are of labels of each loss, tokens, and ranks that want to stop.
    """
    arena, exchange, names = optimizer.arena, optimizer.exchange, model.loss_names
    arena.check_unchanged()
    device = arena.values.device
    batches = [batch for _, batch in micro_batches]
    own = [sum(batch.counts.get(name, 0) for batch in batches) for name in names]
    own.append(sum(batch.tokens.num_tokens for batch in batches))
    # Exact in float32 up to 16.7 million labels a step.
    counts = torch.tensor([*own, int(wants_stop)], dtype=torch.float32)
    counts = sum_over_ranks(counts.to(device, non_blocking=True))
    # A loss without labels is 0, not 0 / 0.
    divisors = counts[: len(names)].clamp(min=1.0)
    arena.gradients.zero_()
    sums = torch.zeros(len(names), device=device)
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


def _diagnosis(arena: ParameterArena) -> str:
    """The largest gradients and parameters, by name, in a line."""
    lists = []
    for buffer in (arena.gradients, arena.values):
        norms = {name: float(view.norm()) for name, view in arena.views(buffer).items()}
        # No number counts as the largest.
        largest = sorted(norms, key=lambda name: -norms[name] if norms[name] >= 0 else -math.inf)
        lists.append(", ".join(f"{name} (norm {norms[name]:.4g})" for name in largest[:3]))
    return f"largest gradients: {lists[0]}; largest parameters: {lists[1]}"


def train(
    model: TrainableModel,
    optimizer: Optimizer,
    micro_batches: MicroBatches,
    *,
    seed: int,
    first_step: int = 0,
    num_steps: int | None = None,
    precision: Precision = "auto",
    wants_stop: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Take steps `first_step` to `num_steps` - 1 (the optimizer's own number by default).

    `micro_batches(step)` gives this rank's micro-batches of a step, each with its index among
    those of all ranks. A report is handed over after each step: log, evaluate and save between
    two of them, or stop iterating. Equal arguments make equal weights, bit for bit on a CPU with
    the same number of threads, interrupted or not. Ranks start with the weights of rank 0.

    SkippedStepsError is raised, on all ranks after the same step, after too many skipped steps in a
    row (see `GuardConfig`), and after the last step if none could be taken. Once `wants_stop()` is
    true on any rank all of them end after the same step. (A GPU is asked for both every eighth
    step.) Raises ValueError for an unknown `precision`, and whatever `optimizer_step` raises.
    """
    return_freed_memory()
    device = optimizer.arena.values.device
    dtype = compute_dtype(precision, device)
    last_step = optimizer.config.num_steps if num_steps is None else num_steps
    guard = optimizer.guard
    _start_alike(model, optimizer)
    num_computed = 0  # micro-batches
    for step in range(first_step, last_step):
        batches = [(index, batch.to(device)) for index, batch in micro_batches(step)]
        report = optimizer_step(
            model, optimizer, batches, seed=seed, step=step, dtype=dtype, wants_stop=wants_stop()
        )
        if num_computed < SETTLING_BATCHES <= num_computed + len(batches):
            keep_freed_memory()
        num_computed += len(batches)
        is_last = step + 1 == last_step
        is_read = is_last or device.type == "cpu" or (step + 1) % _READ_EVERY_STEPS == 0
        if (is_read and guard.is_halted) or (is_last and not guard.has_taken):
            # Skipped steps have not changed the weights: the gradients are those of the step again.
            _step_gradients(model, optimizer, batches, seed=seed, step=step, dtype=dtype)
            raise guard.error(_diagnosis(optimizer.arena))
        yield report
        if is_read and report.is_stop_wanted:
            break


@torch.no_grad()
def _start_alike(model: nn.Module, optimizer: Optimizer) -> None:
    """Give all ranks the weights of rank 0: different ones would stay different."""
    if num_ranks() == 1:
        return
    trained = optimizer.arena.parameters
    frozen = [tensor for name, tensor in model.state_dict().items() if name not in trained]
    for tensor in (optimizer.arena.values, *frozen):
        dist.broadcast(tensor, 0)


def evaluate(
    model: TrainableModel, batches: Iterable[Batch], *, precision: Precision = "float32"
) -> dict[str, float]:
    """Each figure of `model.figure_names`: its exact mean over the items of all batches.

    Without dropout or gradients, on the model's device. Raises ValueError if no item counts, or for
    a batch that the model cannot take.
    """
    totals, counts = (dict.fromkeys(model.figure_names, 0.0) for _ in range(2))
    with model.inference(precision):
        for batch in batches:
            for name, (total, num_items) in model.evaluation_sums(batch.to(model.device)).items():
                totals[name] += float(total)
                counts[name] += num_items
    for name, count in counts.items():
        if not count:
            raise ValueError(f"there is nothing to average: no item counted for {name}")
    return {name: total / counts[name] for name, total in totals.items()}
