"""The batches that pretraining steps are measured on, and the operations that these need.

90% of the sequences have full length, 10% a random shorter one; 15% of the tokens are predicted.
"""

import numpy as np
import torch

from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig

VOCAB_SIZE = 30_522
LENGTH = 128
NUM_BATCHES = 8


def random_batches(
    num_sequences: int, length: int = LENGTH, num_batches: int = NUM_BATCHES
) -> list[PretrainingBatch]:
    """The batches of all sides: equal arguments, equal batches."""
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
    return float(3 * 2 * (layers + vocabulary))
