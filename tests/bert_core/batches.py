"""Random batches and small models for the tests of the encoder."""

import numpy as np
import torch

from bert_core.batch import PretrainingBatch, RaggedBatch
from bert_core.config import EncoderConfig

LENGTHS = (3, 17, 64, 5, 64, 29)


def small_config(**overrides) -> EncoderConfig:
    values = {
        "vocab_size": 120,
        "hidden_size": 32,
        "num_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    return EncoderConfig(**{**values, **overrides})


def ragged_batch(lengths=LENGTHS, vocab_size=120, seed=0) -> RaggedBatch:
    random = np.random.default_rng(seed)
    sizes = np.asarray(lengths)
    ids = random.integers(5, vocab_size, size=sizes.sum())  # nothing special: [PAD] is 0
    return RaggedBatch.from_arrays(ids, (sizes + 1) // 2, sizes)


def pretraining_batch(lengths=LENGTHS, vocab_size=120, seed=0) -> PretrainingBatch:
    random = np.random.default_rng(seed + 1)
    tokens = ragged_batch(lengths, vocab_size, seed)
    positions = np.sort(random.choice(tokens.num_tokens, tokens.num_tokens // 6, replace=False))
    return PretrainingBatch(
        tokens=tokens,
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(random.integers(0, vocab_size, positions.size)),
        next_sentence_labels=torch.from_numpy(random.integers(0, 2, len(lengths))),
    )
