"""Fitting the ranks of a training run to a cluster: how many, with how many CPUs, with GPUs or not.

A training run that cannot be placed as requested is refused with UserError: Ray would wait for
ever, and training silently without GPUs or with an idle rank would be worse.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings

Node = Mapping[str, float]  # its resources, as Ray counts them: {"CPU": 64.0, "GPU": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSplit:
    """How an optimizer step is cut into micro-batches, the units that ranks share."""

    section: str  # of the recipe, where the two settings are
    global_batch_size: int
    micro_batch_size: int
    prefix: str = ""  # of the two settings' names, "short_" for short_global_batch_size

    @property
    def num_micro_batches(self) -> int:
        """More ranks than these would have nothing to do."""
        return -(-self.global_batch_size // self.micro_batch_size)

    def described(self) -> str:
        """The two settings, as the recipe has them."""
        step, micro_batch = f"{self.prefix}global_batch_size", f"{self.prefix}micro_batch_size"
        return f"{step}={self.global_batch_size}, {micro_batch}={self.micro_batch_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What Ray is asked for."""

    num_workers: int | tuple[int, int]
    cpus: int  # of each worker, which computes in as many threads
    use_gpu: bool  # one for each worker

    def __str__(self) -> str:
        count = self.num_workers
        workers = f"{count[0]} to {count[1]}" if isinstance(count, tuple) else f"{count}"
        device = " and a GPU" if self.use_gpu else ""
        return f"workers: {workers}, each with {_count(self.cpus, 'CPU')}{device}"


def check_ranks(runtime: RuntimeSettings, cut: BatchSplit) -> None:
    """Raise UserError if a step has fewer micro-batches than the least workers asked for.

    No cluster is needed to know it.
    """
    least = least_workers(runtime)
    if least > cut.num_micro_batches:
        raise UserError(_too_many_for_a_step(least, cut))


def least_workers(runtime: RuntimeSettings) -> int:
    """The least number of workers to begin with: of a range its lower end, of auto 1."""
    if runtime.training_workers == "auto":
        return 1
    return (
        runtime.training_workers[0]
        if isinstance(runtime.training_workers, tuple)
        else runtime.training_workers
    )


def schedule(
    runtime: RuntimeSettings,
    nodes: Sequence[Node],
    cut: BatchSplit,
    *,
    one_thread_each: bool,
    waited_seconds: float = 0.0,
) -> Placement:
    """Fit the workers that `runtime` asks for to the `nodes` of a cluster.

    Where the number of workers is "auto": one a GPU; without GPUs one a core of the largest node
    if `one_thread_each` is what the model trains fastest with, else as many as nodes. Neither that
    nor the end of a range is more than a step has micro-batches. CPUs are shared out, to every
    worker as many. Raises UserError where the workers do not fit, which says how long nodes were
    waited for, or where some would have nothing to do.
    """
    check_ranks(runtime, cut)
    use_gpu = uses_gpu(runtime, nodes)
    if runtime.training_workers == "auto" and one_thread_each and not use_gpu:
        # On one node: between nodes the exchange would take longer than the step.
        nodes = sorted(nodes, key=lambda node: node.get("CPU", 0))[-1:]
    least, most = _range(runtime, nodes, cut, use_gpu=use_gpu, one_thread_each=one_thread_each)
    room = room_on_nodes(nodes, runtime.cpus_per_worker or 1, use_gpu=use_gpu)
    if room < least:
        raise UserError(_no_room(least, room, runtime, nodes, waited_seconds, use_gpu=use_gpu))
    cpus = runtime.cpus_per_worker or _share(nodes, min(most, room), use_gpu=use_gpu)
    num_workers = (least, most) if isinstance(runtime.training_workers, tuple) else most
    return Placement(num_workers=num_workers, cpus=cpus, use_gpu=use_gpu)


def uses_gpu(runtime: RuntimeSettings, nodes: Sequence[Node]) -> bool:
    """Whether the workers get GPUs: as set or, with `auto`, if there is any."""
    if runtime.device == "auto":
        return any(node.get("GPU", 0) >= 1 for node in nodes)
    return runtime.device == "gpu"


def _range(
    runtime: RuntimeSettings,
    nodes: Sequence[Node],
    cut: BatchSplit,
    *,
    use_gpu: bool,
    one_thread_each: bool,
) -> tuple[int, int]:
    """The least and the most workers that are asked for."""
    if isinstance(runtime.training_workers, tuple):
        return runtime.training_workers[0], min(runtime.training_workers[1], cut.num_micro_batches)
    if runtime.training_workers != "auto":
        return runtime.training_workers, runtime.training_workers
    cpus = runtime.cpus_per_worker or 1
    if use_gpu or one_thread_each:
        wanted = room_on_nodes(nodes, cpus, use_gpu=use_gpu)
    else:
        wanted = sum(node.get("CPU", 0) >= cpus for node in nodes)
    wanted = max(1, min(wanted, cut.num_micro_batches))
    return wanted, wanted


def room_on_nodes(nodes: Sequence[Node], cpus: int, *, use_gpu: bool) -> int:
    """How many workers with `cpus` CPUs each, and a GPU if `use_gpu`, fit the nodes."""
    return sum(
        min(int(node.get("CPU", 0) // cpus), int(node.get("GPU", 0)) if use_gpu else 1 << 30)
        for node in nodes
    )


def _share(nodes: Sequence[Node], num_workers: int, *, use_gpu: bool) -> int:
    """The most CPUs that each of `num_workers` can have."""
    largest = max(int(node.get("CPU", 0)) for node in nodes)
    return next(
        cpus
        for cpus in range(largest, 0, -1)
        if room_on_nodes(nodes, cpus, use_gpu=use_gpu) >= num_workers
    )


def _too_many_for_a_step(num_workers: int, cut: BatchSplit) -> str:
    step, micro_batch = f"{cut.prefix}global_batch_size", f"{cut.prefix}micro_batch_size"
    found = (
        f"{num_workers} training workers cannot share the {cut.num_micro_batches} micro-batches of "
        f"a step of {cut.section} ({cut.described()})"
    )
    at_most = f"set runtime.training_workers to at most {cut.num_micro_batches}"
    if num_workers > cut.global_batch_size:
        return f"{found}; {at_most} or raise {cut.section}.{step}"
    share = cut.global_batch_size // num_workers
    return f"{found}; set {cut.section}.{micro_batch}={share} or {at_most}"


def _no_room(
    num_workers: int,
    room: int,
    runtime: RuntimeSettings,
    nodes: Sequence[Node],
    waited_seconds: float,
    *,
    use_gpu: bool,
) -> str:
    cpus = runtime.cpus_per_worker or 1
    each = f"{_count(cpus, 'CPU')}{' and a GPU' if use_gpu else ''}"
    remedies = ["lower runtime.training_workers" if room else "", "add nodes"]
    if runtime.cpus_per_worker:
        remedies.insert(1, "lower runtime.cpus_per_worker")
    if waited_seconds:
        remedies.append("raise runtime.wait_for_nodes_seconds")
    if use_gpu:
        remedies.append("set runtime.device=cpu to train on CPUs")
    return (
        f"{_count(num_workers, 'training worker')} with {each} each do not fit the cluster, which "
        f"has room for {room} on {listed(nodes)}{after_waiting(waited_seconds)}; "
        f"{' or '.join(filter(None, remedies))}"
    )


def after_waiting(seconds: float) -> str:
    """How long nodes were waited for, as the end of a message; empty if they were not."""
    return f" after waiting {seconds:.0f} s for nodes" if seconds else ""


def listed(nodes: Sequence[Node]) -> str:
    """The nodes and their resources, for messages."""
    each = [
        f"{_count(int(node.get('CPU', 0)), 'CPU')} with {_count(int(node.get('GPU', 0)), 'GPU')}"
        for node in nodes
    ]
    return f"{_count(len(nodes), 'node')} ({', '.join(each)})"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
