"""A fine-tuning step on SST-2 compared with the usual stack, as used and tuned.

    python benchmarks/finetune_step.py
    python benchmarks/finetune_step.py mini --turns 1 --steps 2

Batches of 32 sentences of their real lengths, two classes, including the optimizer, in bf16. As
used: BertForSequenceClassification, padded to the longest sentence of each batch, torch's AdamW.
Tuned: packed, without padding outside of attention (`benchmarks/usual_stack.py`). Ours:
`bert_core.training.loop.train`. Needs ../shared/data.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import (
    ROOT,
    Side,
    Timing,
    alternate,
    matrix_side,
    one_of,
    report,
    serve,
)
from benchmarks.reference_batches import padded_tokens, register_packed_attention
from benchmarks.usual_stack import Classification, Steps, load_ours, their_config, tuned_steps
from bert_core.backends.context import return_freed_memory
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import SequenceClassifier
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer

DATA = ROOT.parent / "shared" / "data"
SIZES = ("mini", "base")
NUM_SEQUENCES = 32
NUM_BATCHES = 16
SIDES = ("ours", "tuned", "as-used")


def batches(tokenizer: WordPieceTokenizer) -> list[LabelledBatch]:
    """The first sentences of the training set, in file order."""
    lines = next((DATA / "glue" / "SST-2").glob("train*")).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines[1 : 1 + NUM_SEQUENCES * NUM_BATCHES]]
    ids = tokenizer.encode_batch([row[0] for row in rows])
    sequences = [[tokenizer.cls_id, *row, tokenizer.sep_id] for row in ids]
    labels = [int(row[1]) for row in rows]
    return [
        LabelledBatch.from_arrays(
            RaggedBatch.from_sequences(sequences[first : first + NUM_SEQUENCES]),
            labels[first : first + NUM_SEQUENCES],
        )
        for first in range(0, len(rows), NUM_SEQUENCES)
    ]


def vocabulary() -> WordPieceTokenizer:
    text = (DATA / "vocab" / "google_uncased_en_vocab.txt").read_text(encoding="utf-8")
    return WordPieceTokenizer(text.removesuffix("\n").split("\n"))


def our_step(size: str) -> Callable[[], None]:
    return_freed_memory()
    torch.manual_seed(0)
    tokenizer = vocabulary()
    rows = batches(tokenizer)
    model = SequenceClassifier(encoder_config(size, tokenizer.vocab_size), 2)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1_000_000, learning_rate=2e-5))
    steps = train(model, optimizer, lambda step: [(0, rows[step % NUM_BATCHES])], seed=0)
    return lambda: float(next(steps).loss) and None


def their_step(size: str, side: str) -> Callable[[], None]:
    """The usual stack, as used or tuned."""
    from transformers import BertForSequenceClassification

    torch.manual_seed(0)
    tokenizer = vocabulary()
    rows = batches(tokenizer)
    config = encoder_config(size, tokenizer.vocab_size)
    if side == "tuned":
        tuned = Classification(
            their_config(config, attn_implementation=register_packed_attention())
        )
        return tuned_steps(tuned, rows, learning_rate=2e-5, bf16=True, compiled=False)
    model = BertForSequenceClassification(their_config(config)).train()
    # Padded within the step, as a collator does.
    losses = [partial(as_used_loss, model, batch) for batch in rows]
    return Steps(model, losses, learning_rate=2e-5, bf16=True, tuned=False)


def as_used_loss(model: torch.nn.Module, batch: LabelledBatch) -> torch.Tensor:
    loss: torch.Tensor = model(**padded_tokens(batch.tokens), labels=batch.labels).loss
    return loss


def check_equal_losses() -> float:
    """Largest difference of their losses from ours with equal weights; raises above 1e-4."""
    from transformers import BertForSequenceClassification

    tokenizer = vocabulary()
    batch = batches(tokenizer)[0]
    torch.manual_seed(0)
    ours = SequenceClassifier(encoder_config("tiny", tokenizer.vocab_size), 2)
    config = their_config(ours.config, attn_implementation=register_packed_attention())
    tuned = Classification(config).eval()
    as_used = BertForSequenceClassification(their_config(ours.config)).eval()
    load_ours(tuned.reference, ours)
    load_ours(as_used, ours)
    with torch.no_grad():
        ((total, count),) = ours.loss_sums(batch).values()
        theirs = tuned(*tuned.arguments(batch)), as_used_loss(as_used, batch)
    difference = max(float((loss - total / count).abs()) for loss in theirs)
    if difference > 1e-4:
        raise AssertionError(f"losses with equal weights must agree, differ by {difference:.1e}")
    return difference


def table(timings: dict[str, dict[str, Timing]]) -> list[str]:
    lines = [
        "| model | ours | theirs, tuned | theirs, as used | over tuned | over as used "
        "| peak memory, ours / tuned / as used |",
        "|---|---|---|---|---|---|---|",
    ]
    for size, sides in timings.items():
        ours, tuned, as_used = (sides[name] for name in SIDES)
        memory = " / ".join(f"{s.peak_bytes / 2**20:.0f}" for s in (ours, tuned, as_used))
        lines.append(
            f"| {size} | {ours.median_seconds * 1e3:.0f} ms | {tuned.median_seconds * 1e3:.0f} ms "
            f"| {as_used.median_seconds * 1e3:.0f} ms "
            f"| {tuned.median_seconds / ours.median_seconds:.2f}x "
            f"| {as_used.median_seconds / ours.median_seconds:.1f}x | {memory} MiB |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(SIZES), type=one_of(SIZES))
    parser.add_argument("--turns", type=int, default=3, help="measured turns of each side")
    parser.add_argument("--steps", type=int, default=8, help="steps per turn")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        size = arguments.sizes[0]
        serve(our_step(size) if arguments.side == "ours" else their_step(size, arguments.side), {})
        return
    difference = check_equal_losses()
    timings = {
        size: alternate(
            {
                "bf16": matrix_side("bf16"),
                **{
                    side: Side([__file__, size, "--side", side], arguments.steps, NUM_BATCHES)
                    for side in SIDES
                },
            },
            arguments.turns,
        )
        for size in arguments.sizes
    }
    note = (
        f"SST-2, batches of 32 sentences, bf16; medians of {arguments.turns} alternating turns of "
        f"{arguments.steps} steps. With equal weights, losses differ by at most {difference:.0e}."
    )
    rates = {"bf16": max(sides["bf16"].best_rate for sides in timings.values())}
    report("finetune_step", "A fine-tuning step", [*table(timings), "", note], rates)


if __name__ == "__main__":
    main()
