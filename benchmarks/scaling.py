"""How well two ranks of one thread on two cores scale, compared with one rank.

    python benchmarks/scaling.py                   # tiny, mini and base: ten minutes, idle machine
    python benchmarks/scaling.py tiny --turns 5 --pin

Two processes of one thread each alternate between variants: one of them steps alone, with one
micro-batch or both; both step together as two ranks; both step at the same time without an
exchange, which is the most that this machine's cores and memory allow. Every rank computes the same
micro-batch in all of them.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))


from benchmarks.alternating import one_of, report
from benchmarks.pretraining_batches import LENGTH, VOCAB_SIZE, random_batches
from bert_core.backends.context import keep_freed_memory, return_freed_memory
from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.arena import GradientExchange
from bert_core.training.loop import optimizer_step
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig

SEQUENCES = {"tiny": 32, "mini": 16, "base": 8}  # per micro-batch
TURNS = {"tiny": 15, "mini": 9, "base": 7}
STEPS_PER_TURN = {"tiny": 20, "mini": 4, "base": 1}
NUM_BATCHES = 2
Seconds = dict[str, list[tuple[float, float, float]]]
# Number of processes that step, whether they are ranks of one training run, micro-batches of each.
VARIANTS = {
    "one": (1, False, 1),
    "one, both micro-batches": (1, False, 2),
    "two, no exchange": (2, False, 1),
    "two ranks": (2, True, 1),
}


class Waiting:
    """How long the last step waited for its gradients after the backward pass."""

    seconds = 0.0

    @classmethod
    def recorded(cls, finish: Callable[[Any], None]) -> Callable[[Any], None]:
        """`finish`, with its time recorded."""

        def timed(exchange: Any) -> None:
            start = time.perf_counter()
            finish(exchange)
            cls.seconds = time.perf_counter() - start

        return timed


class Process:
    """One of the two processes, with its own model and thread."""

    def __init__(self, rank: int, size: str, num_sequences: int, barrier: Any, store: Any) -> None:
        self._rank = rank
        self._barrier = barrier
        self._store = store
        self._taken = 0
        self._size = size
        # By whether it is a rank.
        self._trained: dict[bool, tuple[PretrainingModel, AdamW]] = {}
        self._batches: list[PretrainingBatch] = random_batches(
            num_sequences, num_batches=NUM_BATCHES
        )

    def turn(self, variant: str, number: int, num_steps: int) -> list[tuple[float, float, float]]:
        """Take some steps; returns the seconds, the waiting and the CPU time of each."""
        num_processes, are_ranks, num_micro_batches = VARIANTS[variant]
        steps = self._rank < num_processes
        if are_ranks:
            dist.init_process_group(
                "gloo", store=dist.PrefixStore(f"{variant} {number}", self._store),
                rank=self._rank, world_size=2, timeout=timedelta(hours=1),
            )  # fmt: skip
        seconds = []
        for step in range(-1, num_steps):  # the first one sets up pages and connections
            self._barrier.wait()
            start, computed = time.perf_counter(), time.process_time()
            Waiting.seconds = 0.0
            if steps:
                self._step(num_micro_batches, are_ranks=are_ranks)
            computed = time.process_time() - computed  # of all threads, gloo's included
            self._barrier.wait()  # a step is done when the slower process is
            if step >= 0:
                seconds.append((time.perf_counter() - start, Waiting.seconds, computed))
        if are_ranks:
            dist.destroy_process_group()
        return seconds

    def _step(self, num_micro_batches: int, *, are_ranks: bool) -> None:
        if are_ranks not in self._trained:
            torch.manual_seed(0)
            new = PretrainingModel(encoder_config(self._size, VOCAB_SIZE))
            self._trained[are_ranks] = new, AdamW(new, OptimizationConfig(num_steps=1_000_000))
        model, optimizer = self._trained[are_ranks]
        batch = self._batches[self._taken % NUM_BATCHES]
        self._taken += 1
        shared = [(self._rank + number, batch) for number in range(num_micro_batches)]
        optimizer_step(model, optimizer, shared, seed=0, step=self._taken, dtype=torch.bfloat16)


def process_main(
    rank: int, port: int, barrier: Any, arguments: argparse.Namespace, size: str, results: Any
) -> None:
    """Take all turns; rank 0 records their times."""
    torch.set_num_threads(1)
    if arguments.pin:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    GradientExchange.finish = Waiting.recorded(GradientExchange.finish)
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    return_freed_memory()
    process = Process(rank, size, arguments.sequences or SEQUENCES[size], barrier, store)
    seconds: Seconds = {variant: [] for variant in VARIANTS}
    for turn in range(-1, arguments.turns or TURNS[size]):
        # In alternating order: none must always inherit heat and caches of the same one.
        for variant in list(VARIANTS)[:: -1 if turn % 2 else 1]:
            found = process.turn(variant, turn, arguments.steps or STEPS_PER_TURN[size])
            if turn >= 0:
                seconds[variant] += found
        keep_freed_memory()  # as the loop does after its first steps
    if rank == 0:
        results[size] = seconds
    barrier.wait()  # rank 0 owns the store


def measure(size: str, arguments: argparse.Namespace) -> Seconds:
    """The times of all steps by variant, as `Process.turn` returns them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    with context.Manager() as manager:
        results = manager.dict()
        mp.spawn(process_main, args=(port, context.Barrier(2), arguments, size, results), nprocs=2)
        found: Seconds = results[size]
        return found


def rows(size: str, num_sequences: int, seconds: Seconds) -> list[str]:
    """The table row for one size."""
    one, both, separate, two = (_median(seconds[variant], 0) for variant in VARIANTS)
    computed = {variant: _median(seconds[variant], 2) for variant in VARIANTS}
    waited = _median(seconds["two ranks"], 1)
    num_steps = len(seconds["two ranks"])
    return [
        f"| {size}, {num_sequences} x {LENGTH} | {_ms(one)} | {_ms(separate)} | {_ms(two)} "
        f"| {one / two:.0%} | {both / (2 * two):.0%} | {one / separate:.0%} | {separate / two:.0%} "
        f"| {computed['one'] / computed['two ranks']:.0%} | {_ms(waited)} | {num_steps} |"
    ]


def _median(rows: list[tuple[float, float, float]], column: int) -> float:
    return statistics.median(row[column] for row in rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(SEQUENCES), type=one_of(SEQUENCES))
    parser.add_argument("--turns", type=int, help="measured turns of each variant")
    parser.add_argument("--steps", type=int, help="steps per turn")
    parser.add_argument("--sequences", type=int, help="sequences of 128 tokens per micro-batch")
    parser.add_argument("--pin", action="store_true", help="pin each process to a core")
    arguments = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [
        "| micro-batch | one rank | two, no exchange | two ranks | weak scaling "
        "| strong scaling | the machine's ceiling | of the ceiling | by CPU time "
        "| waiting after backward | steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for size in arguments.sizes:
        num_sequences = arguments.sequences or SEQUENCES[size]
        lines += rows(size, num_sequences, measure(size, arguments))
    lines += [
        "",
        "Ranks of one thread each, gradients summed by gloo, bf16, AdamW, dropout; "
        "medians of steps, whose variants take turns in the same two processes"
        f"{', each pinned to a core' if arguments.pin else ''}. Weak scaling: one rank's step "
        "over that of two ranks, with a micro-batch each. Strong scaling: a step of both "
        "micro-batches on one rank over twice that of two ranks. The ceiling: one process's step "
        "over that of two at the same time without an exchange, which share memory, caches and "
        "heat. By CPU time: the CPU time of one rank's step over that of each of two, gloo's "
        "threads included; other programs affect it least. Load averages before the start: "
        f"{load}.",
    ]
    report("scaling", "Two ranks on two cores", lines)


if __name__ == "__main__":
    main()
