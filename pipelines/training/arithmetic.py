"""In which arithmetic a training computes, settled before it starts: it decides its bits."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from bert_core.backends.precision import Precision, compute_dtype
from pipelines.core.cluster.connection import connect, nodes
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.errors import UserError
from pipelines.training.placement import uses_gpu

import ray  # isort: skip  (after pipelines.core.cluster.connection, which sets its environment)

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What the workers compute on and in."""

    device: Device
    precision: Literal["bf16", "float32"]
    torch: str  # its version

    def named_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as they name an artifact: with what they were resolved to."""
        resolved = {"device": self.device, "precision": self.precision, "torch": self.torch}
        return {**settings, **resolved}


def resolve(precision: Precision, ranks: Ranks) -> Arithmetic:
    """What `precision` comes to where the workers of `ranks` will run.

    Without RAY_ADDRESS they run on this machine, and nobody else is asked. A cluster is asked
    through a task on one of its nodes, with a GPU if the workers get one: its other nodes
    compute in the same format, even where theirs would be another. Raises UserError where GPUs
    are wanted and there is none.
    """
    if "RAY_ADDRESS" not in os.environ:
        device: Device = "cuda" if ranks.device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cpu" and ranks.device == "gpu":
            raise UserError(_no_gpu("this machine"))
        return _here(precision, device)
    connect()
    found = nodes()
    wants_gpu = uses_gpu(ranks, found)
    if wants_gpu and not any(node.get("GPU", 0) >= 1 for node in found):
        raise UserError(_no_gpu(f"the cluster at {os.environ['RAY_ADDRESS']}"))
    ask = ray.remote(num_cpus=1, num_gpus=int(wants_gpu))(_here)
    arithmetic: Arithmetic = ray.get(ask.remote(precision, "cuda" if wants_gpu else "cpu"))
    return arithmetic


def trains_best_on_single_threads(size: str | None) -> bool:
    """Whether CPUs train an encoder of this size fastest with one rank of one thread on each core.

    Measured in docs/decisions/0012; sizes that were not are taken for large.
    """
    return size in _SINGLE_THREADED_SIZES


_SINGLE_THREADED_SIZES = frozenset({"tiny", "mini", "small"})


def _here(precision: Precision, device: Device) -> Arithmetic:
    is_bf16 = compute_dtype(precision, device) == torch.bfloat16
    return Arithmetic(
        device=device,
        precision="bf16" if is_bf16 else "float32",
        torch=torch.__version__,
    )


def _no_gpu(where: str) -> str:
    return (
        f"{where} must have a GPU for place.device=gpu, found none; set place.device=auto or add "
        "a node with GPUs"
    )
