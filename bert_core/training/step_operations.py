"""How many operations the matrix products of a training step need.

Of L tokens in a sequence, T in all, of which the last layer is read at P: a layer maps T tokens to
queries, keys, values and outputs and through the feed-forward network, and multiplies each pair of
tokens of a sequence twice; the last layer does so for P queries alone. The vocabulary head adds its
two matrices for each predicted token. A product is two operations, and a training step needs each
three times. Recomputation by checkpointing and padding are not counted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bert_core.batch import Batch, PretrainingBatch
from bert_core.config import EncoderConfig
from bert_core.model.catalogue import LanguageModel, TrainableModel

_PASSES = 3  # forward, and backward to the inputs and to the weights


def batch_operations(model: TrainableModel, batch: Batch) -> float:
    """Operations that a training step of `model` on `batch`, which is on the host, needs."""
    tokens = batch.tokens
    lengths = np.asarray(tokens.lengths)
    length_of_token = np.repeat(lengths, lengths)
    if isinstance(batch, PretrainingBatch):
        masked = length_of_token[batch.masked_positions.numpy()]
        read, num_predicted = np.concatenate([masked, lengths]), batch.masked_labels.numel()
    elif isinstance(model, LanguageModel):
        read, num_predicted = length_of_token, batch.num_labels
    else:
        read, num_predicted = length_of_token if model.reads_every_token else lengths, 0
    return training_operations(
        model.config, tokens.lengths, lengths_read=read, num_predicted=num_predicted
    )


def training_operations(
    config: EncoderConfig,
    lengths: Sequence[int],
    *,
    lengths_read: ArrayLike,
    num_predicted: int,
) -> float:
    """The same; `lengths_read` holds for each of P positions the length of its sequence."""
    sizes, read = np.asarray(lengths, np.float64), np.asarray(lengths_read, np.float64)
    num_tokens = float(sizes.sum())
    width, wide = config.hidden_size, config.intermediate_size
    # On average a causal token looks at half of its sequence, itself included.
    pairs = float((sizes * (sizes + 1) / 2 if config.causal else sizes**2).sum())
    pairs_read = float(((read + 1) / 2 if config.causal else read).sum())

    def layer(num_queries: float, num_pairs: float) -> float:
        projections = 2 * width**2 * (num_queries + num_tokens)
        return projections + 2 * width * wide * num_queries + 2 * width * num_pairs

    layers = (config.num_layers - 1) * layer(num_tokens, pairs) + layer(read.size, pairs_read)
    vocabulary = num_predicted * (width**2 + width * config.vocab_size)
    return float(_PASSES * 2 * (layers + vocabulary))
