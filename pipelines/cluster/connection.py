"""Ray: where work runs, on a cluster or in this process."""

import logging
import os
import re
import secrets
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import joblib

from pipelines.config.errors import UserError, first_line
from pipelines.config.versions import source_folders

# Read by Ray when it is imported or started; a person's own setting wins.
for _name, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a local Ray listens on the loopback only
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 leaves training 3% of a core that others use
    # A task that is killed for memory is tried again without end, and nothing says so.
    "RAY_task_oom_retries": "8",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # For places only, not for what starts there. Places on a lost node never come, and until the
    # cluster knows of the loss they are asked for.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "12",
    "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S": "5",  # ranks that wait for a lost one never answer
    # Threads that wait for each other soon sleep: docs/decisions/0002.
    "GOMP_SPINCOUNT": "20000",
    # Room for the few shapes of ragged batches, not the default's 1,024: docs/decisions/0006.
    "LRU_CACHE_CAPACITY": "256",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256",
    "TOKENIZERS_PARALLELISM": "false",  # its threads deadlock after a fork
}.items():
    os.environ.setdefault(_name, _value)

import ray  # noqa: E402  (after its environment)
from ray._private import services  # noqa: E402

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 * 2**20  # shards travel as paths, so hardly anything lies in it
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_ANSWER_SECONDS = 5


def connect() -> None:
    """Connect this process to Ray if it is not connected yet.

    `RAY_ADDRESS` names a cluster, to which this process ships the code it runs
    (docs/decisions/0019); without it a local Ray starts inside this process and ends with it.
    Raises UserError for an address that is none, and where Ray does not answer or start.
    """
    if ray.is_initialized():
        return
    if address := os.environ.get("RAY_ADDRESS", ""):
        check_address(address)
    else:
        _use_own_token()
    settings = _of_cluster() if address else _of_this_machine()
    # Ray puts the folder of this process before the library on its workers' path. There a file
    # `tokenizers.py` would take the place of the library.
    with keep_signal_handlers(), _apart_from_signals(bool(address)), chdir("/"):
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        # Ray raises a bare Exception where its node is late, a RuntimeError for another token or
        # without a node on this machine, an OSError for a long path or a full disk.
        except Exception as error:
            raise UserError(f"{_not_started(address)}; Ray said: {first_line(error)}") from error


def check_address(address: str) -> None:
    """Return where something answers at RAY_ADDRESS; Ray itself would try for minutes.

    Raises UserError for what is no host:port, and where nobody answers.
    """
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[\w.\-\[\]:]+", host) or not port.isdecimal():
        raise UserError(
            f"RAY_ADDRESS={address} must be the host:port of a cluster's head, such as "
            "ray-head:6379; correct it, or unset it to compute here"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, or unset "
            "RAY_ADDRESS to compute here"
        ) from error


def _of_cluster() -> dict[str, Any]:
    sources = [str(folder) for folder in source_folders()]
    return {"runtime_env": {"py_modules": sources, "excludes": ["**/__pycache__"]}}


def _of_this_machine() -> dict[str, Any]:
    quoted = shlex.quote(sys.executable)  # Ray's `bash -c "exec <python> ..."` does not quote it
    return {
        "address": "local",  # not another one that runs on this machine
        "num_cpus": local_cpus(),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
        "runtime_env": {} if quoted == sys.executable else {"py_executable": quoted},
    }


def _not_started(address: str) -> str:
    if address:
        return (
            f"the Ray cluster at {address} cannot be joined; its token must be this process's "
            "(RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH), and this machine must be one of its nodes: "
            f"ray start --address={address} --num-cpus=0"
        )
    return (
        f"Ray did not start (load average {os.getloadavg()[0]:.0f} on {local_cpus()} cores: on a "
        "busy machine run again; its files need room and a short path in RAY_TMPDIR)"
    )


def _use_own_token() -> None:
    """Give this process and its children a token, unless one is configured or saved.

    Ray itself would write one into the home folder, and fail if that is read-only.
    """
    is_kept = (Path.home() / ".ray" / "auth_token").is_file()
    if not is_kept and not any(name in os.environ for name in _TOKEN_VARIABLES):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _apart_from_signals(joins_cluster: bool) -> Iterator[None]:
    """A local Ray's processes start in process groups of their own.

    Prefect's cancel, `timeout` and a closed terminal signal the whole group of this process, and
    a training run still needs its Ray to save. On Linux Ray ends with this process all the same;
    elsewhere Ray's reaper needs them in this group.
    """
    if joins_cluster or sys.platform != "linux":
        yield
        return
    starting: Any = services  # Ray has no public name for how it starts a process
    usual = starting.ConsolePopen
    starting.ConsolePopen = partial(usual, process_group=0)
    try:
        yield
    finally:
        starting.ConsolePopen = usual


def disconnect() -> None:
    """Leave Ray; a local Ray that this process started ends."""
    if ray.is_initialized():
        with keep_signal_handlers():
            ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """The resources of every node that is up, as Ray counts them: {"CPU": 16.0, "GPU": 1.0}."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def local_cpus() -> int:
    """Cores that this process may use, a container's quota included; at least 2, for two workers.

    More busy threads than the quota would only be throttled.
    """
    return max(2, joblib.cpu_count())


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Give SIGTERM and SIGINT their handlers back: Ray replaces them on the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def is_driver() -> bool:
    """Whether this process leads a Ray of its own, and is no task of one."""
    return ray.get_runtime_context().get_task_id() is None
