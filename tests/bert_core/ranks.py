"""Several ranks on this machine: processes of their own, joined over gloo.

They are forked by a server that has imported what ranks need, once for all tests of a process, and
has the environment of its first use: what a test sets there they do not see.
"""

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Where there is no Ray, what needs it is left out.
multiprocessing.set_forkserver_preload(
    [__name__, "bert_core.training.loop", "pipelines.train.worker"]
)


def run_ranks(function: Callable[..., Any], num_ranks: int, *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns on each of `num_ranks` processes.

    It must be found by its name, and return plain values.
    """
    with mp.get_context("forkserver").Manager() as manager:
        results = manager.dict()
        joined = (_free_port(), num_ranks, results, function, arguments)
        mp.start_processes(_run, args=joined, nprocs=num_ranks, start_method="forkserver")
        return [results[rank] for rank in range(num_ranks)]


def _run(
    rank: int,
    port: int,
    num_ranks: int,
    results: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=num_ranks
    )
    try:
        results[rank] = function(rank, *arguments)
    finally:
        dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
