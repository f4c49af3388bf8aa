"""Batches for measuring pretraining steps.

90% of the sequences have full length, 10% a random shorter one; 15% of the tokens are predicted.
"""

import numpy as np
import torch

from bert_core.batch import PretrainingBatch, RaggedBatch

VOCAB_SIZE = 30_522
LENGTH = 128
NUM_BATCHES = 8


def random_batches(
    num_sequences: int, length: int = LENGTH, num_batches: int = NUM_BATCHES
) -> list[PretrainingBatch]:
    """The batches of all sides: equal arguments give equal batches."""
    random = np.random.default_rng(0)
    batches = []
    for _ in range(num_batches):
        short = random.integers(5, length, size=num_sequences)
        lengths = np.where(random.random(num_sequences) < 0.9, length, short)
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
