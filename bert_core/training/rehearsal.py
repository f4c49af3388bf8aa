"""A step that is not taken: losses and gradients of a batch, computed and forgotten."""

from contextlib import nullcontext

import torch

from bert_core.backends.dropout import DropoutKey
from bert_core.backends.precision import Precision, compute_dtype
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.compilation import CompiledLayers
from bert_core.training.optimization import Optimizer


def rehearse(
    model: TrainableModel,
    optimizer: Optimizer,
    batch: Batch,
    *,
    precision: Precision = "auto",
    compiled: bool | None = None,
) -> None:
    """Compute `batch` forward and backward as `train` would, and change nothing that lasts.

    Weights, the optimizer's state and every generator stay as they are; gradients are zero. Ranks
    exchange nothing. Raises what a step raises, such as torch's error for a lack of memory.
    """
    arena = optimizer.arena
    device = arena.values.device
    dtype = compute_dtype(precision, device)
    is_compiled = device.type == "cuda" if compiled is None else compiled
    layers = CompiledLayers(model) if is_compiled else None
    arena.gradients.zero_()
    with (
        nullcontext() if layers is None else layers.computing(),
        arena.computing(dtype),
    ):
        losses = model.loss_sums(batch.to(device), DropoutKey.at(0, 0, 0, device))
        torch.stack([loss.total for loss in losses.values()]).sum().backward()
    arena.gradients.zero_()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
