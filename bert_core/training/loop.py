"""The training loop, one optimizer step after the other, and the figures of an evaluation."""

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from bert_core.backends.context import (
    Precision,
    compute_dtype,
    keep_freed_memory,
    return_freed_memory,
)
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.exchange import num_ranks, sum_over_ranks
from bert_core.training.optimizer import Optimizer
from bert_core.training.step import StepReport, diagnose, optimizer_step

# After this many micro-batches hardly a matrix product is left to compile (see `memory`).
SETTLING_BATCHES = 8
# A GPU's host asks every so many steps whether training goes on: it waits for the GPU then.
_READ_EVERY_STEPS = 8

MicroBatches = Callable[[int], Iterable[tuple[int, Batch]]]


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
    two of them, or stop iterating. The batches go where the model was when its optimizer was built.
    Equal arguments make equal weights, bit for bit on a CPU with the same number of threads,
    whether or not the run was interrupted. Ranks start with the weights of rank 0.

    A step is skipped if its loss or gradient is not finite or far too large (see `GuardConfig`).
    SkippedStepsError is raised, on all ranks after the same step, after too many in a row, and
    after the last step if none could be taken. `wants_stop()` is asked before each step; once it is
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
            raise guard.error(
                diagnose(model, optimizer, batches, seed=seed, step=step, dtype=dtype)
            )
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

    Without dropout or gradients, on the model's device. With `torch.distributed` initialised every
    rank calls it with its own batches, or none, and all get the same figures. Raises ValueError
    if no item counts on any rank, or for a batch that the model cannot take.
    """
    names, device = model.figure_names, model.device
    totals = torch.zeros(len(names), dtype=torch.float64, device=device)
    counts = [0] * len(names)
    with model.precision(precision):
        for batch in batches:
            sums = model.evaluation_sums(batch.to(device))
            totals += torch.stack([sums[name].total.detach().double() for name in names])
            counts = [
                count + sums[name].num_items for name, count in zip(names, counts, strict=True)
            ]
    # A rank without a batch must build the table on the same kind of device as the others.
    table = torch.stack([totals, torch.tensor(counts, dtype=torch.float64, device=device)])
    figures = {}
    for name, total, count in zip(names, *sum_over_ranks(table).tolist(), strict=True):
        if not count:
            raise ValueError(f"there is nothing to average: no item counted for {name}")
        figures[name] = total / count
    return figures
