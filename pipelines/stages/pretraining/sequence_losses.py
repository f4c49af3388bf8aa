"""What each held-out sequence costs a pretrained encoder: what two encoders are compared by."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from bert_core.batch import IGNORED_LABEL, Batch, LabelledBatch, PretrainingBatch
from bert_core.model.language_models import LanguageModel, PretrainingModel
from pipelines.stages.examples.batches import ExampleReader, evaluation_batches

_BATCH_TOKENS = 8_192


@torch.inference_mode()
def sequence_losses(
    model: PretrainingModel | LanguageModel, reader: ExampleReader, max_examples: int
) -> NDArray[np.float64]:
    """[N, 2] of each held-out example the summed loss of its predicted tokens, and their number.

    These are the examples, masks and order of `pretraining_figures`, whose loss is the quotient of
    the two sums.
    """
    found = []
    batches = evaluation_batches(reader, _BATCH_TOKENS, max_examples=max_examples)
    for _, batch in batches:
        ends = np.cumsum(batch.tokens.lengths)
        rows = np.zeros((len(ends), 2))
        positions, losses = _losses(model, batch)
        sequence = np.searchsorted(ends, positions.numpy(), side="right")
        np.add.at(rows, sequence, np.stack([losses.double().numpy(), np.ones(len(losses))], 1))
        found.append(rows)
    return np.concatenate(found) if found else np.zeros((0, 2))


def _losses(model: PretrainingModel | LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """Positions among the batch's tokens, and the loss of each."""
    if isinstance(model, PretrainingModel):
        assert isinstance(batch, PretrainingBatch)
        logits, _ = model(batch.tokens, batch.masked_positions)
        losses = cross_entropy(logits.float(), batch.masked_labels, reduction="none")
        return batch.masked_positions, losses
    assert isinstance(batch, LabelledBatch)
    positions = torch.nonzero(batch.labels != IGNORED_LABEL).flatten()
    logits = model(batch.tokens, positions)
    return positions, cross_entropy(logits.float(), batch.labels[positions], reduction="none")
