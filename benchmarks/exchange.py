"""What exchanging gradients over gloo costs in a pretraining step of two ranks.

    python benchmarks/exchange.py                  # mini and base: five minutes or more
    python benchmarks/exchange.py base --rounds 5 --sequences 8

Two processes of one thread each take the same steps in four variants that take turns: no exchange,
one exchange of all gradients after the backward pass (as before), buckets that are sent while it
runs (as now), and these buckets in bfloat16. Waiting is measured after the backward pass; the cost
of the exchange while the backward pass runs shows only in the total time of the step.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import one_of, report
from benchmarks.pretraining_batches import LENGTH, VOCAB_SIZE, random_batches
from bert_core.backends.memory import return_freed_memory
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.exchange import GradientExchange
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.step import optimizer_step

SEQUENCES = {"mini": 16, "base": 8}  # per rank
ROUNDS = {"mini": 12, "base": 7}
NUM_RANKS = 2
NUM_BATCHES = 2  # every variant takes each once before measuring


class Timed(GradientExchange):
    """Buckets sent during the backward pass; records how long a step waits for them."""

    waited = 0.0

    def finish(self) -> None:
        start = time.perf_counter()
        self._finish()
        Timed.waited = time.perf_counter() - start

    def _finish(self) -> None:
        super().finish()


class InBfloat16(Timed):
    """The same with half the bytes."""

    def __init__(self, arena: Any) -> None:
        super().__init__(arena, "bf16")


class AfterBackward(Timed):
    """One exchange of everything after the backward pass."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._buckets = []

    def _finish(self) -> None:
        dist.all_reduce(self._arena.gradients)


class NoExchange(AfterBackward):
    """No exchange: each rank uses its own gradients."""

    def _finish(self) -> None:
        pass


VARIANTS = {
    "no exchange": NoExchange,
    "one, after backward": AfterBackward,
    "buckets, during backward": Timed,
    "the same in bf16": InBfloat16,
}


def rank_main(
    rank: int, port: int, size: str, num_sequences: int, num_rounds: int, results: Any
) -> None:
    """Take all steps; rank 0 records the seconds of each step and of its waiting."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=NUM_RANKS
    )
    return_freed_memory()
    torch.manual_seed(0)
    model = PretrainingModel(encoder_config(size, VOCAB_SIZE))
    optimizer = AdamW(model, OptimizationConfig(num_steps=1_000_000))
    batches = random_batches(num_sequences, num_batches=NUM_BATCHES)
    seconds: dict[str, list[tuple[float, float]]] = {variant: [] for variant in VARIANTS}
    for turn in range(num_rounds + NUM_BATCHES):
        for variant, exchange in VARIANTS.items():
            optimizer.exchange = exchange(optimizer.arena)
            dist.barrier()
            start = time.perf_counter()
            optimizer_step(
                model, optimizer, [(rank, batches[turn % NUM_BATCHES])], seed=0, step=turn,
                dtype=torch.bfloat16,
            )  # fmt: skip
            dist.barrier()  # a step is done when the slower rank is
            if turn >= NUM_BATCHES:
                seconds[variant].append((time.perf_counter() - start, Timed.waited))
    if rank == 0:
        results["seconds"] = seconds
        results["megabytes"] = optimizer.arena.gradients.numel() * 4 / 1e6
    dist.destroy_process_group()


def measure(
    size: str, num_sequences: int, num_rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], float]:
    """The seconds of steps and waits by variant, and the megabytes of gradients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        arguments = (port, size, num_sequences, num_rounds, results)
        mp.spawn(rank_main, args=arguments, nprocs=NUM_RANKS)
        return results["seconds"], results["megabytes"]


def rows(size: str, num_sequences: int, num_rounds: int) -> list[str]:
    """The table rows for one size."""
    seconds, megabytes = measure(size, num_sequences, num_rounds)
    alone = statistics.median(step for step, _ in seconds["no exchange"])
    lines = []
    for variant, pairs in seconds.items():
        step = statistics.median(step for step, _ in pairs)
        waited = statistics.median(waited for _, waited in pairs)
        share = statistics.median(waited / step for step, waited in pairs)
        lines.append(
            f"| {size}, {num_sequences} x {LENGTH} per rank, {megabytes:.0f} MB | {variant} "
            f"| {step * 1e3:.0f} ms | {step / alone - 1:+.1%} | {waited * 1e3:.0f} ms "
            f"| {share:.1%} | {min(step for step, _ in pairs) * 1e3:.0f} ms |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(SEQUENCES), type=one_of(SEQUENCES))
    parser.add_argument("--rounds", type=int, help="measured steps of each variant, 1 or more")
    parser.add_argument("--sequences", type=int, help="sequences of 128 tokens per rank")
    arguments = parser.parse_args()
    before = os.getloadavg()
    lines = [
        "| batch and gradients | exchange | step | over no exchange | waiting after backward "
        "| of the step | fastest step |",
        "|---|---|---|---|---|---|---|",
    ]
    num_rounds = {size: arguments.rounds or ROUNDS[size] for size in arguments.sizes}
    for size in arguments.sizes:
        lines += rows(size, arguments.sequences or SEQUENCES[size], num_rounds[size])
    counts = ", ".join(f"{count} at {size}" for size, count in num_rounds.items())
    load = ", ".join(f"{value:.1f}" for value in before)
    lines += ["", f"Two ranks of one thread each on this machine, gloo on the loopback; bf16. "
              f"Medians of steps that take turns ({counts} of each variant, after {NUM_BATCHES} "
              f"that are not measured). Load averages before the start: {load}."]  # fmt: skip
    report("exchange", "The gradient exchange of a step", lines)


if __name__ == "__main__":
    main()
