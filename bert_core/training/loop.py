"""The training loop: one optimizer step after the other; and the rehearsal of a step."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.backends.memory import keep_freed_memory, return_freed_memory
from bert_core.backends.precision import Precision, compute_dtype
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.agreement import agree_on_start
from bert_core.training.compilation import CompiledLayers
from bert_core.training.optimization import Optimizer
from bert_core.training.step import StepReport, optimizer_step

# After this many micro-batches hardly a matrix product is left to compile (see `memory`).
SETTLING_BATCHES = 8
# A GPU's host reads the result of a step this many steps later, when it need not wait for it.
STEPS_BEHIND = 8

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
    compiled: bool | None = None,
    rate_scale: float = 1.0,
    wants_stop: Callable[[], bool] = lambda: False,
) -> Iterator[StepReport]:
    """Take steps `first_step` to `num_steps` - 1 (the optimizer's own number by default).

    `micro_batches(step)` gives this rank's micro-batches of a step, each with its index among
    those of all ranks. A report is handed over after each step: log, evaluate and save between
    two of them, or stop iterating. The batches go where the model was when its optimizer was built.
    On a GPU the layers are `compiled` by default. Equal arguments make equal weights, bit for bit
    on a CPU with the same number of threads, whether or not the run was interrupted. The schedule's
    learning rates are multiplied by `rate_scale`.

    A step is skipped if its loss or gradient is not finite or far too large (see `GuardConfig`).
    After too many in a row SkippedStepsError is raised, on all ranks after the same step: on a GPU
    `STEPS_BEHIND` later, with no update in between. `wants_stop()` is called before each step; if
    it is true on any rank, all of them end after the same step, on a GPU as many later. Raises
    ValueError for an unknown `precision`, if ranks start differently (see `agree_on_start`), and
    whatever `optimizer_step` raises.
    """
    return_freed_memory()
    device = optimizer.arena.values.device
    agree_on_start(model, optimizer)
    dtype = compute_dtype(precision, device)
    layers = _layers(model, device, compiled)
    last_step = optimizer.config.num_steps if num_steps is None else num_steps
    batches = _DeviceBatches(micro_batches, device, seed)
    flags = _Flags(STEPS_BEHIND if device.type == "cuda" else 0)
    num_computed = 0  # micro-batches
    for step in range(first_step, last_step):
        taken, keys = batches.take(step)
        with layers():
            report = optimizer_step(
                model, optimizer, taken,
                seed=seed, step=step, dtype=dtype, rate_scale=rate_scale, wants_stop=wants_stop(),
                dropout_keys=keys,
            )  # fmt: skip
        if num_computed < SETTLING_BATCHES <= num_computed + len(taken):
            keep_freed_memory()
        num_computed += len(taken)
        is_halted, is_stopped = flags.after(optimizer.guard.is_halted, report.is_stop_wanted)
        if is_halted:
            optimizer.guard.raise_if_halted()
        yield report
        if is_stopped:
            break
    # A halt that is not read yet comes before a stop: there would be nothing to save.
    optimizer.guard.raise_if_halted()


@contextmanager
def computing_as_trained(
    model: TrainableModel,
    optimizer: Optimizer,
    *,
    precision: Precision = "auto",
    compiled: bool | None = None,
) -> Iterator[None]:
    """A block in which a GPU evaluates as it trains: in that number format, by compiled layers.

    Figures of a curve need no more. A CPU evaluates in float32, as ever.
    """
    device = optimizer.arena.values.device
    if device.type != "cuda":
        yield
        return
    with (
        _layers(model, device, compiled)(),
        optimizer.arena.computing(compute_dtype(precision, device)),
    ):
        yield


def _layers(
    model: TrainableModel, device: torch.device, compiled: bool | None
) -> Callable[[], AbstractContextManager[None]]:
    """Blocks in which the model computes by compiled layers; by default on a GPU."""
    is_compiled = device.type == "cuda" if compiled is None else compiled
    return CompiledLayers(model).computing if is_compiled else nullcontext


class _Flags:
    """Flags of a device on their way to its host, which reads those of `steps_behind` steps ago.

    Read at a step that all ranks know, they are acted on by all ranks at once.
    """

    def __init__(self, steps_behind: int) -> None:
        self._steps_behind = steps_behind
        self._copied: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def after(self, *flags: Tensor) -> list[bool]:
        """The flags as they were so many steps ago; false before there were any."""
        self._copied.append(_on_its_way(torch.stack(flags)))
        if len(self._copied) <= self._steps_behind:
            return [False] * len(flags)
        on_host, event = self._copied.popleft()
        if event is not None:
            event.synchronize()
        return [bool(flag) for flag in on_host.tolist()]


def _on_its_way(flags: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """The flags on the host, and what says that they have arrived there."""
    if not flags.is_cuda:
        return flags, None
    on_host = torch.empty(flags.shape, dtype=torch.bool, pin_memory=True)
    on_host.copy_(flags, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(flags.device))  # that of the copy
    return on_host, event


class _DeviceBatches:
    """Micro-batches on the model's device before they are needed, with what they drop.

    A GPU's host is one step ahead: the batches of the next step, and dropout's words, are pinned
    and copied on a separate stream while this one is computed. A thread draws the words one step
    earlier. A CPU has nothing to copy.
    """

    def __init__(self, micro_batches: MicroBatches, device: torch.device, seed: int) -> None:
        self._micro_batches = micro_batches
        self._device = device
        self._seed = seed
        self._drawn: dict[tuple[int, int], Future[DropoutKey]] = {}  # by step and micro-batch
        if device.type == "cuda":
            self._copying = torch.cuda.Stream(device)
            self._drawing = ThreadPoolExecutor(1, thread_name_prefix="dropout")

    def take(self, step: int) -> tuple[list[tuple[int, Batch]], dict[int, DropoutKey]]:
        """The micro-batches of `step`, each with its index; on a GPU the keys of their dropout."""
        if self._device.type != "cuda":
            batches = [
                (index, batch.to(self._device)) for index, batch in self._micro_batches(step)
            ]
            return batches, {}
        given = list(self._micro_batches(step))  # what it does itself, on the caller's stream
        drawn = self._drawn
        if drawn.keys() != {(step, index) for index, _ in given}:
            drawn = self._draw(step, given)
        self._drawn = self._draw(step + 1, given)  # most steps have as many as the one before
        with torch.cuda.stream(self._copying):
            batches = [(index, batch.to(self._device)) for index, batch in given]
            keys = {index: key.result().to(self._device) for (_, index), key in drawn.items()}
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._copying)
        copied = [tensor for _, batch in batches for tensor in batch.tensors()]
        for tensor in (*copied, *(key.pool for key in keys.values())):
            # Its memory may be used again only once the other stream is done with it.
            tensor.record_stream(computing)
        return batches, keys

    def _draw(
        self, step: int, given: Iterable[tuple[int, Batch]]
    ) -> dict[tuple[int, int], "Future[DropoutKey]"]:
        return {
            (step, index): self._drawing.submit(DropoutKey.at, self._seed, step, index)
            for index, _ in given
        }


def rehearse(
    model: TrainableModel, optimizer: Optimizer, batch: Batch, *, precision: Precision = "auto"
) -> None:
    """Compute `batch` forward and backward as `train` would, and change nothing that lasts.

    Weights, the optimizer's state and every generator stay as they are; gradients are zero. Ranks
    exchange nothing. Raises what a step raises, such as torch's error for a lack of memory.
    """
    arena = optimizer.arena
    device = arena.values.device
    dtype = compute_dtype(precision, device)
    layers = _layers(model, device, compiled=None)
    arena.gradients.zero_()
    with layers(), arena.computing(dtype):
        losses = model.loss_sums(batch.to(device), DropoutKey.at(0, 0, 0, device))
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
    arena.gradients.zero_()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
