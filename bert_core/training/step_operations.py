"""How many operations the matrix products of a pretraining step need.

Of L tokens in a sequence, T in all, of which the last layer is read at P: a layer maps T tokens to
queries, keys, values and outputs and through the feed-forward network, and multiplies each pair of
tokens of a sequence twice; the last layer does so for P queries alone. The vocabulary head adds its
two matrices for each predicted token. A product is two operations, and a training step needs each
three times: forward, and backward to the inputs and to the weights. Padding is not counted.
"""

import numpy as np

from bert_core.batch import Batch, PretrainingBatch
from bert_core.config import EncoderConfig


def batch_operations(config: EncoderConfig, batch: Batch) -> float:
    """Operations that a training step on `batch`, which is on the host, needs."""
    sizes = np.asarray(batch.tokens.lengths, np.float64)
    read = np.repeat(sizes, batch.tokens.lengths)  # at P positions: the length of the sequence
    num_tokens, width, wide = float(read.size), config.hidden_size, config.intermediate_size
    if isinstance(batch, PretrainingBatch):
        read = np.concatenate([read[batch.masked_positions.numpy()], sizes])
        num_predicted = batch.masked_labels.numel()
    else:
        num_predicted = batch.counts["label"]
    # On average a causal token looks at half of its sequence, itself included.
    pairs = float((sizes * (sizes + 1) / 2 if config.causal else sizes**2).sum())
    pairs_read = float(((read + 1) / 2 if config.causal else read).sum())

    def layer(num_queries: float, num_pairs: float) -> float:
        projections = 2 * width**2 * (num_queries + num_tokens)
        return projections + 2 * width * wide * num_queries + 2 * width * num_pairs

    layers = (config.num_layers - 1) * layer(num_tokens, pairs) + layer(read.size, pairs_read)
    vocabulary = num_predicted * (width**2 + width * config.vocab_size)
    return float(6 * (layers + vocabulary))
