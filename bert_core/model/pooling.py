"""Hidden states of sequences as one vector each. T = ragged tokens, B = sequences, D = hidden."""

import torch
from torch import Tensor

from bert_core.batch import RaggedBatch


def mean_of_sequences(hidden: Tensor, tokens: RaggedBatch) -> Tensor:
    """[T, D] -> [B, D]."""
    lengths = tokens.cu_seqlens.diff().long()
    return torch.segment_reduce(hidden, "mean", lengths=lengths, axis=0, unsafe=True)
