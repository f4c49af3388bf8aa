"""Which of the processes that share a training this one is; to be asked on a worker."""

import ray.train


def this_rank() -> tuple[int, int]:
    """Rank of this worker and how many there are."""
    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def share_of_node() -> tuple[int, int]:
    """Rank of this worker among those of its node and how many these are."""
    context = ray.train.get_context()
    return context.get_local_rank(), context.get_local_world_size()
