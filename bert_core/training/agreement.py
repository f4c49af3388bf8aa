"""Before the first step of several ranks: one model, one set of weights, one optimizer state.

Ranks that start with different weights stay different: they would sum gradients of different
models, and nothing would look wrong.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_core.training.optimization import Optimizer
from bert_core.training.ranks import checksum, num_ranks


@torch.no_grad()
def agree_on_start(model: nn.Module, optimizer: Optimizer) -> None:
    """Give all ranks the weights of rank 0, and check that everything else is equal.

    All ranks call it; with one rank it does nothing. Raises ValueError on all ranks if one has
    another model, other frozen parameters, other settings or another optimizer state.
    """
    if num_ranks() == 1:
        return
    device = optimizer.arena.values.device
    _check_same(
        _layout_digest(model, optimizer, device),
        "the same model (names, shapes, what is frozen) and optimizer settings",
        "build and freeze the model alike on each of them",
    )
    for tensor in _weights(model, optimizer):
        dist.broadcast(tensor, 0)
    _check_same(
        checksum([*_weights(model, optimizer), *optimizer.replicated_state()], device),
        "the same weights and optimizer state",
        "load the same checkpoint on each of them, or none",
    )


def _weights(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """The trained parameters as one tensor, then frozen parameters and stored buffers."""
    trained = set(optimizer.arena.parameters)
    others = [tensor for name, tensor in model.state_dict().items() if name not in trained]
    return [optimizer.arena.values, *others]


def _layout_digest(model: nn.Module, optimizer: Optimizer, device: torch.device) -> Tensor:
    """[4] int64: a hash of names, shapes, what is frozen, and the optimizer's settings."""
    trained = set(optimizer.arena.parameters)
    layout = [
        (name, tuple(tensor.shape), str(tensor.dtype), name in trained)
        for name, tensor in model.state_dict().items()
    ]
    text = repr((layout, list(optimizer.arena.parameters), optimizer.name, optimizer.config))
    digest = hashlib.sha256(text.encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.int64).to(device)


def _check_same(digest: Tensor, what: str, remedy: str) -> None:
    digests = [torch.empty_like(digest) for _ in range(num_ranks())]
    dist.all_gather(digests, digest)
    different = [str(rank) for rank, other in enumerate(digests) if not other.equal(digests[0])]
    if different:
        ranks = f"rank{'' if len(different) == 1 else 's'} {', '.join(different)}"
        raise ValueError(
            f"all ranks must start with {what}, found {ranks} to differ from rank 0; {remedy}"
        )
