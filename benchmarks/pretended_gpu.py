"""A simulated GPU: tensors without memory that `bert_core` takes for CUDA tensors.

Operations run on torch's `meta` device, which has shapes and dtypes but computes nothing. To the
code of `bert_core`, and to no other code, these tensors report that they are on CUDA, so that it
takes the same path as on a GPU. What would be launched there is counted.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

# Operations that only describe memory, or a number on the host, and launch nothing.
FREE = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "is_pinned", "_pin_memory", "lift_fresh", "resolve_conj", "is_same_size", "sym_size",
}  # fmt: skip
# What no compiler fuses with its neighbours: matrix products, attention and scattered writes.
HEAVY = (
    "mm", "addmm", "bmm", "baddbmm", "flash", "varlen", "efficient_attention", "index_add",
    "index_put", "index_copy", "scatter", "embedding_dense_backward", "_fused_adam", "sort",
    "nonzero", "_to_copy_from_host",
)  # fmt: skip


@dataclass
class Launch:
    """One operation that would be launched on a GPU."""

    name: str
    operations: float
    read: dict[int, int]  # bytes by storage
    written: dict[int, int]
    is_aside: bool = False  # not on the stream that computes

    @property
    def is_heavy(self) -> bool:
        return self.name.startswith(HEAVY) or any(f"_{word}" in self.name for word in HEAVY[4:7])


@dataclass
class Launches(TorchDispatchMode):
    """Records every operation on tensors of the simulated GPU."""

    found: list[Launch] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._kept: list[Any] = []  # so that no storage's number is used twice
        self._operations = FlopCounterMode(display=False)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        with self._operations:  # which starts at zero each time
            result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        operations = float(self._operations.get_total_flops())
        if not operations and ("varlen" in name or "flash" in name):
            operations = _attention_operations(args, "backward" in name)
        read, written = _storages((args, kwargs)), _storages(result)
        arguments = zip(func._schema.arguments, args, strict=False)
        mutated = [value for argument, value in arguments if argument.is_write]
        written |= _storages((mutated, (kwargs or {}).get("out")))
        if name in FREE or func.is_view or not written:
            return result
        self._kept.append((result, args))
        is_aside = torch.cuda.current_stream() is not _COMPUTING
        self.found.append(Launch(name, operations, read, written, is_aside))
        return result


def _attention_operations(args: tuple, is_backward: bool) -> float:
    """Operations of attention over ragged [T, H, K] with an operator that the counter lacks.

    Two products forward and five backward, with every sequence counted as the longest.
    """
    tokens, heads, width = next(v for v in args if isinstance(v, Tensor) and v.ndim == 3).shape
    longest = next(v for v in args if type(v) is int)
    return float((10 if is_backward else 4) * tokens * longest * heads * width)


def _storages(values: Any) -> dict[int, int]:
    """Bytes of the simulated GPU's tensors among `values`, by storage."""
    found: dict[int, int] = {}
    for value in tree_flatten(values)[0]:
        if isinstance(value, Tensor) and _true_device(value).type == "meta":
            number = value.untyped_storage()._cdata
            size = value.numel() * value.element_size()
            found[number] = max(size, found.get(number, 0))
    return found


def fused(launches: list[Launch]) -> list[Launch]:
    """What a compiler may make: a run of light operations between two heavy ones is one launch.

    It reads what others wrote and writes what others read; the rest stays in registers.
    """
    runs: list[list[Launch]] = []
    for launch in launches:
        if runs and not launch.is_heavy and not runs[-1][-1].is_heavy:
            runs[-1].append(launch)
        else:
            runs.append([launch])
    last_read = {number: index for index, run in enumerate(runs)
                 for launch in run for number in launch.read}  # fmt: skip
    result = []
    for index, run in enumerate(runs):
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for launch in run:
            read |= {number: size for number, size in launch.read.items() if number not in written}
            written |= launch.written
        kept = {n: size for n, size in written.items() if last_read.get(n, index) != index}
        name = run[0].name if len(run) == 1 else f"fused {len(run)}"
        operations = sum(launch.operations for launch in run)
        result.append(Launch(name, operations, read, kept or run[-1].written))
    return result


_true_device: Callable[[Tensor], torch.device] = torch._C.TensorBase.device.__get__
_true_is_cuda: Callable[[Tensor], bool] = torch._C.TensorBase.is_cuda.__get__
_CUDA, _META = torch.device("cuda", 0), torch.device("meta")


def _called_by_bert_core() -> bool:
    name: str = sys._getframe(2).f_globals.get("__name__", "")
    return name.startswith("bert_core")


class _CallsOnMeta(TorchFunctionMode):
    """Calls that ask for CUDA get `meta`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        keywords = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return func(*(_moved(value) for value in args), **keywords)


class _OperationsOnMeta(TorchDispatchMode):
    """The same in backward passes, to which the mode above does not apply."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        keywords = {name: _moved(value) for name, value in (kwargs or {}).items()}
        if keywords.get("device") == _META:
            keywords.pop("pin_memory", None)
        return func(*args, **keywords)


def _moved(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _META if value.type == "cuda" else value
    return _META if isinstance(value, str) and value.startswith("cuda") else value


class PretendedStream:
    """A CUDA stream that does nothing; only its identity matters."""

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, stream: "PretendedStream") -> None:
        """There is nothing to wait for."""


_COMPUTING = PretendedStream()


@contextmanager
def _streams() -> Iterator[None]:
    active = [_COMPUTING]

    @contextmanager
    def stream(other: PretendedStream) -> Iterator[None]:
        active.append(other)
        try:
            yield
        finally:
            active.pop()

    true = {name: getattr(torch.cuda, name) for name in ("Stream", "stream", "current_stream")}
    pretended = (PretendedStream, stream, lambda device=None: active[-1])
    record = torch.Tensor.record_stream
    try:
        for name, value in zip(true, pretended, strict=True):
            setattr(torch.cuda, name, value)
        torch.Tensor.record_stream = lambda tensor, stream: None
        yield
    finally:
        for name, value in true.items():
            setattr(torch.cuda, name, value)
        torch.Tensor.record_stream = record


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """Inside the block, `meta` tensors report to `bert_core` that they are on a GPU."""

    def device(tensor: Tensor) -> torch.device:
        true = _true_device(tensor)
        return _CUDA if true.type == "meta" and _called_by_bert_core() else true

    def is_cuda(tensor: Tensor) -> bool:
        pretends = _true_device(tensor).type == "meta" and _called_by_bert_core()
        return pretends or _true_is_cuda(tensor)

    start_driver, capability = torch.cuda._lazy_init, torch.cuda.get_device_capability
    torch.Tensor.device, torch.Tensor.is_cuda = property(device), property(is_cuda)
    torch.cuda._lazy_init = lambda: None  # there is none to start
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # Hopper's
    torch.Tensor.pin_memory = lambda tensor: tensor
    try:
        with _streams(), _CallsOnMeta(), _OperationsOnMeta():
            yield
    finally:
        torch.cuda._lazy_init, torch.cuda.get_device_capability = start_driver, capability
        del torch.Tensor.device, torch.Tensor.is_cuda, torch.Tensor.pin_memory
