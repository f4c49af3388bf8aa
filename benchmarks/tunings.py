"""Which tuning of the usual stack is its best on this machine: what `benchmarks/step.py` takes.

    python benchmarks/tunings.py
    python benchmarks/tunings.py tiny --turns 1 --steps 1

A pretraining step in bf16: packed or padded, as it is or through torch.compile. Packed batches are
compiled for any length, padded ones, whose shapes are all alike, for theirs.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import Side, alternate, matrix_side, one_of, report, serve
from benchmarks.pretraining_batches import LENGTH, NUM_BATCHES, VOCAB_SIZE, random_batches
from benchmarks.reference_batches import register_packed_attention, static_arguments
from benchmarks.step import SEQUENCES
from benchmarks.usual_stack import Pretraining, Steps, their_config, tuned_steps
from bert_core.config import encoder_config

SIDES = ("packed", "padded", "packed, compiled", "padded, compiled")


def steps(size: str, side: str) -> Steps:
    """One way to tune it."""
    torch.manual_seed(0)
    batches = random_batches(SEQUENCES[size])
    config = encoder_config(size, VOCAB_SIZE)
    compiled = side.endswith("compiled")
    if side.startswith("packed"):
        packed = Pretraining(their_config(config, attn_implementation=register_packed_attention()))
        return tuned_steps(packed, batches, learning_rate=1e-4, bf16=True, compiled=compiled)
    model = Pretraining(their_config(config, attn_implementation="sdpa")).train()
    forward = torch.compile(model, dynamic=False) if compiled else model
    most = max(batch.masked_positions.numel() for batch in batches)
    losses = [partial(forward, *static_arguments(batch, LENGTH, most, "cpu")) for batch in batches]
    return Steps(model, losses, learning_rate=1e-4, bf16=True, tuned=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=["tiny", "base"], type=one_of(SEQUENCES))
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    parser.add_argument("--steps", type=int, default=4, help="a turn")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(steps(arguments.sizes[0], arguments.side), {})
        return
    lines = ["| batch | " + " | ".join(SIDES) + " |", "|---|" + "---|" * len(SIDES)]
    rates = []
    for size in arguments.sizes:
        sides = {
            side: Side([__file__, size, "--side", side], arguments.steps, NUM_BATCHES)
            for side in SIDES
        }
        timings = alternate({"bf16": matrix_side("bf16"), **sides}, arguments.turns)
        rates.append(timings["bf16"].best_rate)
        cells = " | ".join(f"{timings[side].median_seconds * 1e3:.0f} ms" for side in SIDES)
        lines.append(f"| {size}, {SEQUENCES[size]} x {LENGTH} | {cells} |")
    note = (
        f"bf16; medians of {arguments.turns} alternating turns of {arguments.steps} steps, after "
        f"{NUM_BATCHES} that compile."
    )
    report("tunings", "The usual stack, tuned", [*lines, "", note], {"bf16": max(rates)})


if __name__ == "__main__":
    main()
