"""How much do the curves of one worker and of two differ, by precision and optimizer?

    python benchmarks/ranks_drift.py               # five minutes on two idle cores
    python benchmarks/ranks_drift.py --steps 50

A BERT-tiny learns masked tokens of reviews, 32 sequences of 64 words per step in two micro-batches:
one process takes both, or two processes of one thread take one each and sum their gradients in
another order. Everything else is the same: weights, data, masks, dropout. Needs ../shared/data.
"""

import argparse
import itertools
import socket
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, report
from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.ragged import RaggedBatch
from bert_core.training.loop import train
from bert_core.training.optimization import OptimizationConfig, build_optimizer

REVIEWS = ROOT.parent / "shared" / "data" / "imdb" / "unlabelled.txt"
RATES = {"adamw": 2e-3, "lamb": 1e-2, "muon": 5e-3}
PRECISIONS = ("float32", "bf16")
WORDS, LENGTH, SEQUENCES = 4096, 64, 16  # in the vocabulary, in a sequence, in a micro-batch
SPECIAL, MASK = 5, 4
Curve = NDArray[np.float64]  # [steps, 2] loss and gradient norm


def words() -> NDArray[np.int64]:
    """The words of the reviews as ids, numbered by frequency; all rare words have one id."""
    with REVIEWS.open(encoding="utf-8") as file:
        text = " ".join(itertools.islice(file, 3000)).lower().split()
    kept = [word for word, _ in Counter(text).most_common(WORDS - SPECIAL)]
    numbers = {word: SPECIAL + rank for rank, word in enumerate(kept)}
    return np.array([numbers.get(word, 1) for word in text])


def micro_batch(text: NDArray[np.int64], step: int, index: int) -> PretrainingBatch:
    """The words of one micro-batch, 15% of them masked."""
    random = np.random.default_rng([step, index])
    size = SEQUENCES * LENGTH
    start = (2 * step + index) * size % (len(text) - size)
    ids = text[start : start + size].copy()
    masked = np.sort(random.choice(size, round(0.15 * size), replace=False))
    labels = ids[masked].copy()
    ids[masked] = MASK
    lengths = np.full(SEQUENCES, LENGTH)
    return PretrainingBatch(
        tokens=RaggedBatch.from_arrays(ids, lengths, lengths),
        masked_positions=torch.from_numpy(masked),
        masked_labels=torch.from_numpy(labels),
    )


def curve(optimizer: str, precision: str, num_steps: int, indices: Iterable[int]) -> Curve:
    """Loss and gradient norm of each step of a training run; its rank takes these micro-batches."""
    torch.manual_seed(0)
    model = PretrainingModel(encoder_config("tiny", WORDS), next_sentence=False)
    config = OptimizationConfig(
        optimizer=optimizer, learning_rate=RATES[optimizer], num_steps=num_steps,
        warmup_steps=num_steps // 10,
    )  # fmt: skip
    text, mine = words(), list(indices)

    def micro_batches(step: int) -> list[tuple[int, PretrainingBatch]]:
        return [(index, micro_batch(text, step, index)) for index in mine]

    steps = train(model, build_optimizer(model, config), micro_batches, seed=0, precision=precision)
    return np.array([(float(step.loss), float(step.grad_norm)) for step in steps])


def rank_main(rank: int, world_size: int, port: int, num_steps: int, results: dict) -> None:
    """All training runs of one rank of `world_size`."""
    torch.set_num_threads(1)
    if world_size > 1:
        store = dist.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    for precision, optimizer in itertools.product(PRECISIONS, RATES):
        found = curve(optimizer, precision, num_steps, range(rank, 2, world_size))
        if rank == 0:
            results[precision, optimizer] = found
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def curves(world_size: int, num_steps: int) -> dict[tuple[str, str], Curve]:
    """The curves of all training runs with `world_size` ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.get_context("spawn").Manager() as manager:
        results = manager.dict()
        mp.spawn(rank_main, args=(world_size, port, num_steps, results), nprocs=world_size)
        return dict(results)


def row(precision: str, optimizer: str, one: Curve, two: Curve) -> str:
    """A table row."""
    difference = np.abs(one - two) / np.abs(one)  # [steps, 2]
    first, most = difference[0], difference.max(axis=0)
    early = difference[:20].max(axis=0)
    cells = [
        precision, optimizer, *(f"{value:.1e}" for value in (first[0], first[1])),
        *(f"{value:.1e}" for value in (early[0], most[0], most[1])),
        f"{difference[-1, 0]:.1e}", f"{one[0, 0]:.2f} to {one[-1, 0]:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    one, two, again = curves(1, steps), curves(2, steps), curves(2, steps)
    most = max(float(np.abs(two[key] - again[key]).max()) for key in two)
    lines = [
        "| precision | optimizer | loss, step 1 | gradient norm, step 1 | loss, max of 20 steps "
        f"| loss, max of {steps} | gradient norm, max | last loss | one worker's loss |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row(*key, one[key], two[key]) for key in one),
        "",
        "Relative differences between a training run on one worker and the same on two, BERT-tiny "
        f"with dropout, {2 * SEQUENCES} sequences of {LENGTH} words per step. Two training runs on "
        f"two workers differ by at most {most:g}.",
    ]
    report("ranks_drift", "How much one worker and two differ", lines)


if __name__ == "__main__":
    main()
