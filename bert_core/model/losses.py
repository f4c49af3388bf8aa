"""Losses as sums: dividing by the count of a whole step is the step's business.

M = predicted tokens, V = vocabulary, B = sequences, T = ragged tokens.
"""

import torch.nn.functional as F
from torch import Tensor

from bert_core.batch import IGNORED_LABEL, RaggedBatch


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)[label], summed in float32 over the labels that are not ignored."""
    return F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED_LABEL)


def num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows of `logits` are largest at their label; ignored labels never count."""
    return (logits.argmax(dim=-1) == labels).sum()


def squared_error_sum(predictions: Tensor, labels: Tensor) -> Tensor:
    """(prediction - label)^2 summed in float32."""
    return (predictions.float() - labels).square().sum()


def pad_tokens(values: Tensor, tokens: RaggedBatch, padding: float) -> Tensor:
    """[T, ...] -> [B, S, ...] with `padding` after the end of each sequence; asks no device."""
    size = tokens.num_sequences * tokens.max_seqlen
    padded = values.new_full((size, *values.shape[1:]), padding)
    padded = padded.index_copy(0, tokens.padded_positions, values)
    return padded.unflatten(0, (-1, tokens.max_seqlen))
