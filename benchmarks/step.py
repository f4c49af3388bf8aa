"""A pretraining step with its optimizer, compared with the usual stack, as used and tuned.

    python benchmarks/step.py                      # all sizes, about 25 minutes on two cores
    python benchmarks/step.py tiny mini --turns 1 --steps 2 --other-steps 1

As used: `transformers`' BertForPreTraining on padded batches, torch's AdamW, gradient clipping.
Tuned: as `benchmarks/usual_stack.py` describes; packed and padded are both measured, and the row of
a size shows the faster one (`benchmarks/tunings.py` measures their compiled forms). Ours:
`bert_core.training.loop.train`. Each in bf16 and in float32, on the same batches: 90% of the
sequences have full length, 10% a random shorter one; 15% of the tokens are predicted, with dropout.
Before the measurement, the sides' losses with equal weights are compared. Each side takes every
batch once (the slow one, as used, whose shapes are all alike, only two) and then takes turns of a
few steps.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import (
    PRECISIONS,
    Side,
    Timing,
    alternate,
    matrix_side,
    one_of,
    report,
    serve,
)
from benchmarks.pretraining_batches import (
    LENGTH,
    NUM_BATCHES,
    VOCAB_SIZE,
    random_batches,
)
from benchmarks.reference_batches import padded, register_packed_attention
from benchmarks.usual_stack import (
    Pretraining,
    Steps,
    load_ours,
    their_config,
    tuned_pretraining,
)
from bert_core.backends.context import Precision, return_freed_memory
from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.step_operations import batch_operations

SEQUENCES = {"tiny": 64, "mini": 64, "small": 32, "base": 16}
TUNED = ("packed", "padded")
BF16 = ("ours", *TUNED, "as-used")
FLOAT32 = tuple(f"{name}-float32" for name in BF16)
HEADLINE = BF16[:3]  # these take `--steps` per turn, the others fewer


def our_model(size: str) -> PretrainingModel:
    torch.manual_seed(0)
    return PretrainingModel(encoder_config(size, VOCAB_SIZE))


def our_step(size: str, precision: Precision = "bf16") -> tuple[Callable[[], None], dict]:
    return_freed_memory()  # as pretraining workers do before they build the model
    batches = random_batches(SEQUENCES[size])
    model = our_model(size)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1_000_000, learning_rate=1e-4))

    def micro_batches(step: int) -> list[tuple[int, PretrainingBatch]]:
        return [(0, batches[step % NUM_BATCHES])]

    steps = train(model, optimizer, micro_batches, seed=0, precision=precision)
    work = float(np.mean([batch_operations(model.config, batch) for batch in batches]))
    return lambda: float(next(steps).loss) and None, {"operations": work}


def their_step(size: str, side: str) -> tuple[Callable[[], None], dict]:
    """The usual stack, tuned or as used."""
    from transformers import BertForPreTraining

    torch.manual_seed(0)
    batches = random_batches(SEQUENCES[size])
    bf16 = not side.endswith("float32")
    config = encoder_config(size, VOCAB_SIZE)
    tuning = side.removesuffix("-float32")
    if tuning in TUNED:
        return tuned_pretraining(config, batches, tuning, bf16=bf16), {}
    model = BertForPreTraining(their_config(config)).train()
    losses = [partial(_loss, model, padded(batch, LENGTH)) for batch in batches]
    return Steps(model, losses, learning_rate=1e-4, bf16=bf16, tuned=False), {}


def _loss(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = model(**inputs).loss
    return loss


def check_equal_losses(size: str) -> float:
    """Largest difference of their losses from ours with equal weights; raises above 1e-4.

    Float32, without dropout, on two sequences of full length and two shorter ones: the faster side
    computes the same.
    """
    from transformers import BertForPreTraining

    ours = our_model(size)
    batch = random_batches(4)[0]
    with torch.no_grad():
        loss = torch.stack([s / n for s, n in ours.loss_sums(batch).values()]).sum()
        config = their_config(ours.config, attn_implementation=register_packed_attention())
        tuned = Pretraining(config).eval()
        load_ours(tuned.reference, ours)
        as_used = BertForPreTraining(their_config(ours.config)).eval()
        load_ours(as_used, ours)
        theirs = tuned(*tuned.arguments(batch)), as_used(**padded(batch)).loss
    difference = max(float((other - loss).abs()) for other in theirs)
    if difference > 1e-4:
        raise AssertionError(f"losses with equal weights must agree, differ by {difference:.1e}")
    return difference


def table(timings: dict[str, dict[str, Timing]]) -> list[str]:
    lines = [
        "| batch | precision | ours | theirs, tuned | theirs, as used | over tuned | over as used "
        "| of the matrix rate | peak memory, ours / tuned / as used |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size, sides in timings.items():
        for precision, names in (("bf16", BF16), ("float32", FLOAT32)):
            ours, as_used = sides[names[0]], sides[names[-1]]
            tuned = min((sides[name] for name in names[1:-1]), key=lambda side: side.median_seconds)
            tuning = next(name for name in names if sides[name] is tuned).removesuffix("-float32")
            share = ours.facts["operations"] / ours.median_seconds / sides[precision].best_rate
            memory = " / ".join(f"{s.peak_bytes / 2**20:.0f}" for s in (ours, tuned, as_used))
            lines.append(
                f"| {size}, {SEQUENCES[size]} x {LENGTH} | {precision} "
                f"| {ours.median_seconds * 1e3:.0f} ms "
                f"| {tuned.median_seconds * 1e3:.0f} ms, {tuning} "
                f"| {as_used.median_seconds * 1e3:.0f} ms "
                f"| {tuned.median_seconds / ours.median_seconds:.2f}x "
                f"| {as_used.median_seconds / ours.median_seconds:.1f}x | {share:.0%} "
                f"| {memory} MiB |"
            )
    return lines


def measured(size: str, arguments: argparse.Namespace) -> dict[str, Timing]:
    """All sides of a size: those in bf16 take turns, then those in float32, to save memory."""
    timings: dict[str, Timing] = {}
    for precision, names in (("bf16", BF16), ("float32", FLOAT32)):
        sides = {
            name: Side(
                [__file__, size, "--side", name],
                steps_per_turn=arguments.steps if name in HEADLINE else arguments.other_steps,
                num_warmups=2 if name.startswith("as-used") else NUM_BATCHES,
            )
            for name in names
        }
        timings |= alternate({precision: matrix_side(precision), **sides}, arguments.turns)
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(SEQUENCES), type=one_of(SEQUENCES))
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    parser.add_argument("--steps", type=int, default=8, help="steps per turn, in bf16")
    parser.add_argument("--other-steps", type=int, default=3, help="the same for the other sides")
    parser.add_argument("--side", choices=BF16 + FLOAT32, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side in ("ours", "ours-float32"):
        precision: Precision = "bf16" if arguments.side == "ours" else "float32"
        serve(*our_step(arguments.sizes[0], precision))
        return
    if arguments.side:
        serve(*their_step(arguments.sizes[0], arguments.side))
        return
    difference = max(check_equal_losses(size) for size in arguments.sizes)
    timings = {size: measured(size, arguments) for size in arguments.sizes}
    rates = {name: max(sides[name].best_rate for sides in timings.values()) for name in PRECISIONS}
    note = (
        f"Medians of {arguments.turns} alternating turns per side, of {arguments.steps} steps "
        f"(ours and tuned, in bf16) or {arguments.other_steps} (the others). The share is the rate "
        "of the matrix products that a step needs over the best rate of a 2,048-wide product in "
        "the same precision, measured between the turns. The faster of the tuned sides is shown. "
        f"With equal weights the losses differ by at most {difference:.0e}."
    )
    report("step", "A pretraining step", [*table(timings), "", note], rates)


if __name__ == "__main__":
    main()
