"""Compiling a model for training: each layer by itself, traced through the plain backend.

One graph serves all layers of an encoder and ragged batches of every size; between the layers the
step stays ordinary Python, so that gradients may travel while the way back goes on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from bert_core.backends.operations import use_backend
from bert_core.model.heads import Pooler, TaskHead, VocabularyHead
from bert_core.model.trainable import TrainableModel

_COMPILED = (Pooler, TaskHead, VocabularyHead)


def compile_model(model: TrainableModel, compiler: str | Callable[..., Any] = "inductor") -> None:
    """Compile the embeddings, every layer and the heads of `model` when they are next called.

    Weights, names and what is saved stay what they are. Computing then belongs into a block of
    `computing_compiled()`. Raises, at that first call, what torch raises where it lacks a compiler
    for the model's device.
    """
    compiled: list[nn.Module] = [model.encoder.embeddings, *model.encoder.layers]
    compiled += [module for module in model.modules() if isinstance(module, _COMPILED)]
    for module in compiled:
        module.compile(fullgraph=True, dynamic=True, backend=compiler)
    for module in model.modules():
        if isinstance(module, VocabularyHead):
            loss_sum = partial(VocabularyHead.loss_sum, module)
            traced = torch.compile(loss_sum, fullgraph=True, dynamic=True, backend=compiler)
            object.__setattr__(module, "loss_sum", traced)


@contextmanager
def computing_compiled() -> Iterator[None]:
    """A block in which compiled models compute, whatever their device."""
    # Rates and epsilons are settings: as numbers that may change, torch 2.13 fails to trace them
    # through layers that are computed a second time.
    with use_backend("plain"), torch._dynamo.config.patch(specialize_float=True):
        yield
