"""The training loop: one optimizer step after the other, and a look at the caller between them."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from torch import Tensor

from bert_core.backends.memory import keep_freed_memory, return_freed_memory
from bert_core.backends.precision import Precision, compute_dtype
from bert_core.model.trainable import TrainableModel
from bert_core.training.compilation import compile_model, computing_compiled
from bert_core.training.optimization import AdamW, NonFiniteGradientError
from bert_core.training.step import StepReport, optimizer_step
from bert_core.training.transfer import DeviceBatches, MicroBatches

# After these hardly a product is left to compile (see `memory`).
SETTLING_STEPS = 8

__all__ = ["MicroBatches", "NonFiniteGradientError", "train"]


def train(
    model: TrainableModel,
    optimizer: AdamW,
    micro_batches: MicroBatches,
    *,
    seed: int,
    first_step: int = 0,
    num_steps: int | None = None,
    device: torch.device | str = "cpu",
    precision: Precision = "auto",
    compiled: bool | None = None,
) -> Iterator[StepReport]:
    """Take steps `first_step` to `num_steps` - 1 (the optimizer's own number by default).

    `micro_batches(step)` gives this rank's micro-batches of a step, each with its index among
    those of all ranks. A report is handed over after each step: log, evaluate and save between
    two of them, or stop asking. On a GPU the layers are `compiled` unless told otherwise. Equal
    arguments make equal weights, bit for bit on a CPU with the same number of threads, whether or
    not the run was interrupted.

    Raises NonFiniteGradientError instead of updating by a gradient that is not finite. A GPU's
    host does not wait and learns of it one report later; no update is made in between, and until
    then `save_checkpoint`, which has to wait anyway, raises it. Raises ValueError for a `precision`
    there is not, and whatever `optimizer_step` raises.
    """
    return_freed_memory()
    device = torch.device(device)
    dtype = compute_dtype(precision, device)
    is_compiled = device.type == "cuda" if compiled is None else compiled
    if is_compiled:
        compile_model(model)
    last_step = optimizer.config.num_steps if num_steps is None else num_steps
    batches = DeviceBatches(micro_batches, device)
    finite_check = _FiniteCheck()
    for step in range(first_step, last_step):
        if step == first_step + SETTLING_STEPS:
            keep_freed_memory()
        taken = batches.take(step)
        with computing_compiled() if is_compiled else nullcontext():
            report = optimizer_step(model, optimizer, taken, seed=seed, step=step, dtype=dtype)
        finite_check.add(report)
        yield report
    finite_check.finish()


class _FiniteCheck:
    """Raises for the first step that was not finite; on a GPU by looking one step back."""

    def __init__(self) -> None:
        self._pending: tuple[int, Tensor, torch.cuda.Event] | None = None

    def add(self, report: StepReport) -> None:
        if not report.is_finite.is_cuda:
            _refuse(report.step, bool(report.is_finite))
            return
        self.finish()
        on_host = torch.empty((), dtype=torch.bool, pin_memory=True)
        on_host.copy_(report.is_finite, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending = (report.step, on_host, event)

    def finish(self) -> None:
        if self._pending is None:
            return
        step, on_host, event = self._pending
        event.synchronize()
        self._pending = None
        _refuse(step, bool(on_host))


def _refuse(step: int, is_finite: bool) -> None:
    if not is_finite:
        raise NonFiniteGradientError(step)
