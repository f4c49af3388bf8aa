"""Count what a pretraining step would launch on a GPU, with the `bert_core` on PYTHONPATH.

    PYTHONPATH=TREE python benchmarks/gpu_launches.py base --length 128 --tokens 32768

Prints a line of JSON. `benchmarks/gpu_estimate.py` runs it for two checkouts.
"""

import argparse
import json
from collections import Counter

import torch
from pretended_gpu import Launch, Launches, fused, pretended_gpu
from pretraining_batches import VOCAB_SIZE, operations, random_batches

import bert_core as bc
from bert_core.training.step import optimizer_step

MATRIX_RATE = 790e12  # of an H200, measured on random bf16 matrices
MEMORY_RATE = 4.3e12  # bytes per second, measured by a copy
MIN_LAUNCH = 2e-6  # seconds that the smallest kernel takes on the card
HOST_LAUNCH = 5e-6  # seconds that torch needs to launch one, including autograd


def figures(launches: list[Launch]) -> dict[str, float]:
    """Launches, bytes and seconds: on the card by each launch's roofline, on the host by count."""
    total_bytes, card = 0, 0.0
    for launch in launches:
        moved = sum(launch.read.values()) + sum(launch.written.values())
        total_bytes += moved
        card += max(launch.operations / MATRIX_RATE, moved / MEMORY_RATE, MIN_LAUNCH)
    return {
        "launches": len(launches),
        "bytes": total_bytes,
        "card": card,
        "host": len(launches) * HOST_LAUNCH,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("size")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens per batch, roughly")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--micro-batches", type=int, default=1, help="micro-batches per step")
    arguments = parser.parse_args()
    rates = {"hidden_dropout": arguments.dropout, "attention_dropout": arguments.dropout}
    config = bc.encoder_config(arguments.size, VOCAB_SIZE, **rates)
    batch = random_batches(arguments.tokens // arguments.length, arguments.length, 1)[0]
    with pretended_gpu():
        model = bc.PretrainingModel(config).to("cuda")
        optimizer = bc.AdamW(model, bc.OptimizationConfig(num_steps=10))
        on_card = batch.to("cuda")
        with Launches() as step:
            micro_batches = [(index, on_card) for index in range(arguments.micro_batches)]
            optimizer_step(model, optimizer, micro_batches, seed=0, step=0, dtype=torch.bfloat16)
    found = {
        "tokens": arguments.micro_batches * batch.tokens.num_tokens,
        "needed": arguments.micro_batches * operations(config, batch),
        "counted": sum(launch.operations for launch in step.found),
        "unfused": figures(step.found),
        "fused": figures(fused(step.found)),
        "most": Counter(launch.name for launch in step.found).most_common(8),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
