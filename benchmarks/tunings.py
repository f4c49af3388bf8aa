"""Which tuning of the usual stack is the fastest on this machine?

    python benchmarks/tunings.py
    python benchmarks/tunings.py tiny --turns 1 --steps 1

A pretraining step in bf16: packed or padded, as it is or through torch.compile. Packed batches are
compiled for any length, padded ones, whose shapes are all alike, for theirs. `benchmarks/step.py`
measures those that are not compiled.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import Side, alternate, matrix_side, one_of, report, serve
from benchmarks.pretraining_batches import LENGTH, NUM_BATCHES, VOCAB_SIZE, random_batches
from benchmarks.step import SEQUENCES
from benchmarks.usual_stack import TUNINGS, tuned_pretraining
from bert_core.config import encoder_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=["tiny", "base"], type=one_of(SEQUENCES))
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    parser.add_argument("--steps", type=int, default=4, help="steps per turn")
    parser.add_argument("--side", choices=TUNINGS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        size = arguments.sizes[0]
        torch.manual_seed(0)
        config, batches = encoder_config(size, VOCAB_SIZE), random_batches(SEQUENCES[size])
        serve(tuned_pretraining(config, batches, arguments.side, bf16=True), {})
        return
    lines = ["| batch | " + " | ".join(TUNINGS) + " |", "|---|" + "---|" * len(TUNINGS)]
    rates = []
    for size in arguments.sizes:
        sides = {
            side: Side([__file__, size, "--side", side], arguments.steps, NUM_BATCHES)
            for side in TUNINGS
        }
        timings = alternate({"bf16": matrix_side("bf16"), **sides}, arguments.turns)
        rates.append(timings["bf16"].best_rate)
        cells = " | ".join(f"{timings[side].median_seconds * 1e3:.0f} ms" for side in TUNINGS)
        lines.append(f"| {size}, {SEQUENCES[size]} x {LENGTH} | {cells} |")
    note = (
        f"bf16; medians of {arguments.turns} alternating turns of {arguments.steps} steps, after "
        f"{NUM_BATCHES} warm-up steps that compile."
    )
    report("tunings", "The usual stack, tuned", [*lines, "", note], {"bf16": max(rates)})


if __name__ == "__main__":
    main()
