"""Which of the processes that share a training this one is; to be asked on a worker."""

import ray
import ray.train
from ray.util import get_node_ip_address


def this_rank() -> tuple[int, int]:
    """Rank of this worker and how many there are."""
    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def this_node() -> str:
    """The node of this worker: its address, and its own name, since one machine may hold several.

    Workers with the same name see the same temporary folder.
    """
    return f"{get_node_ip_address()} ({ray.get_runtime_context().get_node_id()[:12]})"


def share_of_node() -> tuple[int, int]:
    """Rank of this worker among those of its node and how many these are."""
    context = ray.train.get_context()
    return context.get_local_rank(), context.get_local_world_size()
