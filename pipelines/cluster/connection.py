"""Ray: where work runs, on a cluster or in this process."""

import logging
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.config.errors import UserError
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
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of the container, where this runs in one


def connect() -> None:
    """Connect this process to Ray if it is not connected yet.

    `RAY_ADDRESS` names a cluster, to which this process ships the code it runs
    (docs/decisions/0019); without it a local Ray starts inside this process and ends with it.
    Raises UserError if no cluster answers there, or the machine is too busy to start one.
    """
    if ray.is_initialized():
        return
    with keep_signal_handlers():
        if address := os.environ.get("RAY_ADDRESS"):
            _check_answers(address)
            _join(address)
        else:
            _start_here()


def _join(address: str) -> None:
    try:
        ray.init(
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={
                "py_modules": [str(folder) for folder in source_folders()],
                "excludes": ["**/__pycache__"],
            },
        )
    # A driver reaches the cluster through a node on its machine, which Ray seeks for a minute.
    except RuntimeError as error:
        if "resolve node to connect to" not in str(error):
            raise
        raise UserError(
            f"this machine has no node of the Ray cluster at {address}; start one: "
            f"ray start --address={address} --num-cpus=0"
        ) from error


def _start_here() -> None:
    _use_own_token()
    try:
        with _apart_from_signals():
            ray.init(
                address="local",  # not another one that runs on this machine
                num_cpus=local_cpus(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECT_STORE_BYTES,
                runtime_env=_quoted_interpreter(),
            )
    except OSError as error:  # a path too long for a socket, a full or read-only disk
        raise UserError(
            f"Ray cannot keep its files in the temporary folder: {error}; name a short path with "
            "room in RAY_TMPDIR, such as /tmp"
        ) from error
    # Ray raises a bare Exception when its node is late: only the text identifies it.
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        load = os.getloadavg()[0]
        raise UserError(
            f"Ray did not start within its time limit (load average {load:.0f} on {local_cpus()} "
            "cores: mostly a busy machine); run again when less runs beside it, nothing that was "
            f"done is lost; Ray said: {error}"
        ) from error


def _use_own_token() -> None:
    """Give this process and its children a token, unless one is configured or saved.

    Ray itself would write one into the home folder, and fail if that is read-only.
    """
    is_kept = (Path.home() / ".ray" / "auth_token").is_file()
    if not is_kept and not any(name in os.environ for name in _TOKEN_VARIABLES):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextmanager
def _apart_from_signals() -> Iterator[None]:
    """Ray's processes start in process groups of their own.

    Prefect's cancel, `timeout` and a closed terminal signal the whole group of this process, and
    a training run still needs its Ray to save. On Linux Ray ends with this process all the same;
    elsewhere Ray's reaper needs them in this group.
    """
    if sys.platform != "linux":
        yield
        return
    starting: Any = services  # Ray has no public name for how it starts a process
    usual = starting.ConsolePopen
    starting.ConsolePopen = partial(usual, process_group=0)
    try:
        yield
    finally:
        starting.ConsolePopen = usual


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like: Ray finds the address
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error.strerror or error}); start "
            "it, or unset RAY_ADDRESS to compute here"
        ) from error


def disconnect() -> None:
    """Leave Ray; a local Ray that this process started ends."""
    if ray.is_initialized():
        with keep_signal_handlers():
            ray.shutdown()


def nodes() -> list[dict[str, float]]:
    """The resources of every node that is up, as Ray counts them: {"CPU": 16.0, "GPU": 1.0}."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def _quoted_interpreter() -> dict[str, str]:
    """Ray starts some workers through `bash -c "exec <python> ..."` and does not quote the path."""
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


def local_cpus() -> int:
    """Cores that this process may use, at least 2 so that two workers fit.

    A container's CPU quota counts: more busy threads would only be throttled.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:  # macOS
        cores = os.cpu_count() or 2
    return max(2, min(cores, _quota_cpus(_CPU_QUOTA, cores)))


def _quota_cpus(file: Path, cores: int) -> int:
    """The whole cores that a control group's `cpu.max` allows; `cores` where it sets no bound."""
    try:
        quota, period = file.read_text().split()
    except FileNotFoundError:  # no control group of version 2
        return cores
    return cores if quota == "max" else int(quota) // int(period)


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
