"""Compiling a model for training: each layer by itself, traced through the plain backend.

One graph serves all layers of an encoder and ragged batches of every size; between the layers the
step stays ordinary Python, so that gradients can be sent during the backward pass.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from bert_core.backends.operations import use_backend
from bert_core.model.encoder import Pooler, TaskHead, VocabularyHead
from bert_core.model.trainable import TrainableModel
from bert_core.training.replacement import replaced

_TRACING: dict[str, Any] = {
    # Rates and epsilons are settings: as numbers that may change, torch 2.13 fails to trace them
    # through layers that are computed a second time.
    "specialize_float": True,
    # Graphs are counted over all models of a process. Each build, what is frozen, and a batch of
    # one sequence or one token, has its own; where they are too many, `fullgraph` is an error.
    "recompile_limit": 256,
}


class CompiledLayers:
    """The embeddings, layers and heads of `model`, compiled when they are first called.

    Outside of `computing` the model is unchanged. `compiler` is the name of a torch backend, or a
    function that makes a graph callable.
    """

    def __init__(
        self, model: TrainableModel, compiler: str | Callable[..., Any] = "inductor"
    ) -> None:
        self._traced = [
            (module, name, torch.compile(
                getattr(module, name), fullgraph=True, dynamic=True, backend=compiler
            ))
            for module, name in _parts(model)
        ]  # fmt: skip

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A block in which the model computes by its compiled parts.

        Raises what torch raises where it lacks a compiler for the model's device.
        """
        tracing = torch._dynamo.config.patch(**_TRACING)
        with replaced(self._traced), use_backend("plain"), tracing:
            yield


def _parts(model: TrainableModel) -> Iterator[tuple[nn.Module, str]]:
    """Methods that are compiled; hooks of their modules stay outside."""
    yield model.encoder.embeddings, "forward"
    for layer in model.encoder.layers:
        yield layer, "forward"
    for module in model.modules():
        if isinstance(module, Pooler | TaskHead):
            yield module, "forward"
        elif isinstance(module, VocabularyHead):
            yield module, "loss_sum"
