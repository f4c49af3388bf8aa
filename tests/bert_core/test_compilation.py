"""Ragged batches must not make oneDNN compile again and again (docs/decisions/0006)."""

import os
import subprocess
import sys

import pytest
import torch

from bert_core.backends.context import compute_dtype
from bert_core.backends.cpu.attention import bucket_size

STEPS = 16
PROGRAM = f"""
import numpy as np
import torch
from bert_core.batch import PretrainingBatch
from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.training.loop import train
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig

def batch(step):
    random = np.random.default_rng(step)
    lengths = np.where(random.random(16) < 0.9, 64, random.integers(5, 64, 16))
    ids = random.integers(0, 500, lengths.sum())
    positions = np.sort(random.choice(ids.size, round(0.15 * ids.size), replace=False))
    return PretrainingBatch(
        tokens=RaggedBatch.from_arrays(ids, lengths // 2, lengths),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(ids[positions]),
        next_sentence_labels=torch.from_numpy(random.integers(0, 2, 16)),
    )

config = EncoderConfig(
    vocab_size=500, hidden_size=128, num_layers=1, num_attention_heads=2, intermediate_size=512
)
model = PretrainingModel(config)
optimizer = AdamW(model, OptimizationConfig(num_steps={2 * STEPS}))
shapes = set()
for report in train(model, optimizer, lambda step: [(0, batch(step))], seed=0, precision="bf16"):
    shapes.add(int(report.num_tokens))
    print("step", report.step, flush=True)
print("shapes", len(shapes))
"""


def test_batches_of_any_size_share_few_sizes_at_a_small_price():
    sizes = {rows: bucket_size(rows) for rows in range(128, 4097)}
    assert all(rows <= size <= rows * 17 / 16 for rows, size in sizes.items())
    assert len(set(sizes.values())) < 100
    assert bucket_size(0) == 0


# In float32 torch multiplies without oneDNN: only a handful of primitives is left to count.
@pytest.mark.skipif(
    compute_dtype("auto", "cpu") != torch.bfloat16, reason="needs a CPU that multiplies bfloat16"
)
def test_after_a_few_ragged_batches_hardly_anything_is_compiled():
    environment = os.environ | {
        "ONEDNN_VERBOSE": "profile_create",
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
        "LRU_CACHE_CAPACITY": "256",
    }
    lines = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    half = lines.index(f"step {STEPS - 1}")
    first, second = (
        sum("create:cache_miss" in line for line in part) for part in (lines[:half], lines[half:])
    )
    assert lines[-1].startswith("shapes")
    assert int(lines[-1].split()[1]) > STEPS  # of batches: nearly every one has its own
    assert first > 20  # the counting works
    assert second <= first / 4
