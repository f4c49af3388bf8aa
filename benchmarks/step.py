"""One pretraining step, optimizer included, against `transformers` as people use it.

    python benchmarks/step.py                      # all sizes
    python benchmarks/step.py tiny mini --rounds 3

Theirs: BertForPreTraining on padded batches, torch's AdamW, gradient clipping; under bf16 autocast
and in float32. Ours: `bert_core.training.loop.train` in the precision it chooses. The same batches:
90% of the sequences have full length, 10% a random shorter one; 15% of the tokens are predicted.
Each side sees every batch once before it is measured, and then takes turns of a few steps.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import Timing, alternate, matrix_rate, one_of, report, serve
from bert_core.backends.memory import return_freed_memory
from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig, encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW, OptimizationConfig

VOCAB_SIZE = 30_522
LENGTH = 128
SEQUENCES = {"tiny": 64, "mini": 64, "small": 32, "base": 16}
ROUNDS = {"tiny": 6, "mini": 4, "small": 4, "base": 2}
NUM_BATCHES = 8
STEPS_A_TURN = 4
SIDES = ("ours", "theirs-bf16", "theirs-float32")


def random_batches(num_sequences: int) -> list[PretrainingBatch]:
    """The batches of both sides."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(NUM_BATCHES):
        short = random.integers(5, LENGTH, size=num_sequences)
        lengths = np.where(random.random(num_sequences) < 0.9, LENGTH, short)
        ids = random.integers(1000, VOCAB_SIZE, size=lengths.sum())
        positions = np.sort(random.choice(ids.size, round(0.15 * ids.size), replace=False))
        batches.append(
            PretrainingBatch(
                tokens=RaggedBatch.from_arrays(ids, lengths // 2, lengths),
                masked_positions=torch.from_numpy(positions),
                masked_labels=torch.from_numpy(ids[positions]),
                next_sentence_labels=torch.from_numpy(random.integers(0, 2, num_sequences)),
            )
        )
    return batches


def our_step(size: str) -> tuple[Callable[[], None], dict[str, float]]:
    return_freed_memory()  # as the workers of a pretraining do before they build the model
    torch.manual_seed(0)
    batches = random_batches(SEQUENCES[size])
    model = PretrainingModel(encoder_config(size, VOCAB_SIZE))
    optimizer = AdamW(model, OptimizationConfig(num_steps=1_000_000, learning_rate=1e-4))
    steps = train(model, optimizer, lambda step: [(0, batches[step % NUM_BATCHES])], seed=0)
    work = float(np.mean([operations(model.config, batch) for batch in batches]))
    return lambda: float(next(steps).loss) and None, {"operations": work}


def their_step(size: str, *, bf16: bool) -> tuple[Callable[[], None], dict[str, float]]:
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    ours = encoder_config(size, VOCAB_SIZE)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=ours.hidden_size,
            num_hidden_layers=ours.num_layers,
            num_attention_heads=ours.num_attention_heads,
            intermediate_size=ours.intermediate_size,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    batches = [padded(batch) for batch in random_batches(SEQUENCES[size])]
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batches[num_steps % NUM_BATCHES]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        num_steps += 1

    return step, {}


def padded(batch: PretrainingBatch) -> dict[str, torch.Tensor]:
    """The batch as the reference takes it."""
    tokens = batch.tokens
    labels = torch.full((tokens.num_tokens,), -100)
    labels[batch.masked_positions] = batch.masked_labels

    def pad(values: torch.Tensor, padding: int) -> torch.Tensor:
        rows = torch.full((tokens.num_sequences, LENGTH), padding)
        for row, part in zip(rows, values.split(tokens.lengths), strict=True):
            row[: len(part)] = part
        return rows

    assert batch.next_sentence_labels is not None
    return {
        "input_ids": pad(tokens.input_ids, 0),
        "token_type_ids": pad(tokens.token_type_ids, 0),
        "attention_mask": pad(torch.ones_like(tokens.input_ids), 0),
        "labels": pad(labels, -100),
        "next_sentence_label": batch.next_sentence_labels,
    }


def operations(config: EncoderConfig, batch: PretrainingBatch) -> float:
    """Operations of the matrix products a step needs: three per product, padding not counted.

    Of the last layer it needs the keys and values of all tokens, and everything else only where
    a token or the next sentence is predicted.
    """
    tokens, num_masked = batch.tokens, batch.masked_labels.numel()
    lengths = np.asarray(tokens.lengths)
    num_read = num_masked + tokens.num_sequences
    length_of_token = np.repeat(lengths, lengths)
    pairs = (lengths**2).sum()
    pairs_read = length_of_token[batch.masked_positions.numpy()].sum() + lengths.sum()
    width, wide = config.hidden_size, config.intermediate_size

    def layer(num_queries: int, num_pairs: int) -> float:
        projections = 2 * width**2 * (num_queries + tokens.num_tokens)
        return projections + 2 * width * wide * num_queries + 2 * width * num_pairs

    layers = (config.num_layers - 1) * layer(tokens.num_tokens, pairs)
    layers += layer(num_read, pairs_read)
    vocabulary = num_masked * (width**2 + width * config.vocab_size)
    return 3 * 2 * (layers + vocabulary)


def table(timings: dict[str, dict[str, Timing]]) -> list[str]:
    rate = matrix_rate(torch.bfloat16)
    lines = [
        "| batch | ours | theirs, bf16 | theirs, float32 | over bf16 | over float32 "
        "| of the matrix rate | peak memory, ours / theirs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size, sides in timings.items():
        ours, bf16, float32 = (sides[name] for name in SIDES)
        share = ours.facts["operations"] / ours.median_seconds / rate
        lines.append(
            f"| {size}, {SEQUENCES[size]} x {LENGTH} | {ours.median_seconds * 1e3:.0f} ms "
            f"| {bf16.median_seconds * 1e3:.0f} ms | {float32.median_seconds * 1e3:.0f} ms "
            f"| {bf16.median_seconds / ours.median_seconds:.1f}x "
            f"| {float32.median_seconds / ours.median_seconds:.1f}x | {share:.0%} "
            f"| {ours.peak_bytes / 2**20:.0f} / {bf16.peak_bytes / 2**20:.0f} MiB "
            f"({ours.peak_bytes / bf16.peak_bytes:.2f}) |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", default=list(SEQUENCES), type=one_of(SEQUENCES))
    parser.add_argument("--rounds", type=int, help="measured turns of each side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "ours":
        serve(*our_step(arguments.sizes[0]))
    elif arguments.side:
        serve(*their_step(arguments.sizes[0], bf16=arguments.side == "theirs-bf16"))
    else:
        timings = {
            size: alternate(
                {side: [__file__, size, "--side", side] for side in SIDES},
                arguments.rounds or ROUNDS[size],
                num_warmups=NUM_BATCHES // STEPS_A_TURN,
                steps_a_turn=STEPS_A_TURN,
            )
            for size in arguments.sizes
        }
        notes = ["", "Medians of alternating steps. The share is that of the products a step needs "
                 "in the rate of a 2,048-wide bf16 product, measured in the same run."]  # fmt: skip
        report("step", "A pretraining step", table(timings) + notes)


if __name__ == "__main__":
    main()
