"""One fine-tuning step on SST-2's sentences against `transformers` with dynamic padding.

    python benchmarks/finetune_step.py
    python benchmarks/finetune_step.py mini --rounds 3

Batches of 32 sentences of their real lengths, two classes, the optimizer included. Theirs:
BertForSequenceClassification, padded to the longest sentence of each batch, torch's AdamW, under
bf16 autocast. Ours: `bert_core.training.loop.train` in the precision it chooses. Needs
../shared/data.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT, Timing, alternate, one_of, report, serve
from bert_core.backends.memory import return_freed_memory
from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import SequenceClassifier
from bert_core.model.losses import pad_tokens
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.vocabulary import WordPieceTokenizer

DATA = ROOT.parent / "shared" / "data"
ROUNDS = {"mini": 6, "base": 2}
NUM_SEQUENCES = 32
NUM_BATCHES = 16
STEPS_A_TURN = 4
SIDES = ("ours", "theirs")


def batches(tokenizer: WordPieceTokenizer) -> list[LabelledBatch]:
    """The first sentences of the training part, in the order of the file."""
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


def their_step(size: str) -> Callable[[], None]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    tokenizer = vocabulary()
    rows = batches(tokenizer)
    ours = encoder_config(size, tokenizer.vocab_size)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=ours.vocab_size,
            hidden_size=ours.hidden_size,
            num_hidden_layers=ours.num_layers,
            num_attention_heads=ours.num_attention_heads,
            intermediate_size=ours.intermediate_size,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        batch = rows[num_steps % NUM_BATCHES]
        tokens = batch.tokens
        mask = torch.ones_like(tokens.input_ids)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(
                input_ids=pad_tokens(tokens.input_ids, tokens, 0),
                attention_mask=pad_tokens(mask, tokens, 0),
                labels=batch.labels,
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        num_steps += 1

    return step


def table(timings: dict[str, dict[str, Timing]]) -> list[str]:
    lines = [
        "| model | ours | theirs, bf16 | ratio | peak memory, ours / theirs |",
        "|---|---|---|---|---|",
    ]
    for size, sides in timings.items():
        ours, theirs = (sides[name] for name in SIDES)
        lines.append(
            f"| {size} | {ours.median_seconds * 1e3:.0f} ms | {theirs.median_seconds * 1e3:.0f} ms "
            f"| {theirs.median_seconds / ours.median_seconds:.1f}x "
            f"| {ours.peak_bytes / 2**20:.0f} / {theirs.peak_bytes / 2**20:.0f} MiB |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(ROUNDS), type=one_of(ROUNDS))
    parser.add_argument("--rounds", type=int, help="measured turns of each side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        build = our_step if arguments.side == "ours" else their_step
        serve(build(arguments.sizes[0]), {})
        return
    timings = {
        size: alternate(
            {side: [__file__, size, "--side", side] for side in SIDES},
            arguments.rounds or ROUNDS[size],
            num_warmups=NUM_BATCHES // STEPS_A_TURN,
            steps_a_turn=STEPS_A_TURN,
        )
        for size in arguments.sizes
    }
    notes = ["", "SST-2, batches of 32 sentences; medians of alternating steps."]
    report("finetune_step", "A fine-tuning step", table(timings) + notes)


if __name__ == "__main__":
    main()
