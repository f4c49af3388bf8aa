"""How many processes share a training run, and what each of them is given."""

import math
from dataclasses import dataclass
from typing import Literal

NumWorkers = int | tuple[int, int] | Literal["auto"]
DeviceKind = Literal["auto", "cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints of a training run stay while it lasts; each that one of these names."""

    latest: int = 2
    best: int = 0  # by held-out loss, of those that were evaluated at their step
    every_steps: int | None = None

    def most_of(self, num_steps: int, checkpoint_every_steps: int) -> int:
        """How many stay at most of a run of so many steps that stores one every so many."""
        spaced = num_steps // math.lcm(checkpoint_every_steps, self.every_steps or num_steps + 1)
        stored = math.ceil(num_steps / checkpoint_every_steps)
        return min(self.latest + self.best + spaced, stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The wish; `pipelines.training.placement` fits it to a cluster."""

    workers: NumWorkers = 1  # a range: as many as there is room for, now and when it changes
    cpus_per_worker: int | None = None  # None: the cluster's CPUs are shared out
    device: DeviceKind = "auto"  # auto: GPUs where the cluster has any
    wait_for_nodes_seconds: int = 0  # for an autoscaler's where there is no room; 0: refused
    max_failures: int = 3  # workers or nodes that may die before the training run fails
    shard_optimizer_state: bool = False  # each worker holds the moments of a share of the weights
    checkpointed_layers: int = 0  # of the encoder, the lowest, at most all
    checkpoint_seconds: float = 0.0  # between two at most, beside those due by step; 0: only those
    keeping: Retention = Retention()
