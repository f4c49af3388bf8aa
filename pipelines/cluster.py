"""Ray: connecting to it, mapping tasks over shards, checking the nodes of a cluster."""

import logging
import os
import platform
import re
import secrets
import shlex
import signal
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import chdir, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import joblib

from pipelines.errors import UserError, first_line
from pipelines.store import ArtifactStore
from pipelines.store.access import store_errors, store_errors_explained
from pipelines.versions import computing_versions, other_versions, source_folders

# Read by Ray when it is imported or started; a person's own setting wins.
for _name, _value in {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a local Ray listens on the loopback only
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 leaves training 3% of a core that others use
    "RAY_prestart_worker_first_driver": "0",  # a driver here soon has its own: 1.7 s of each start
    # By default Ray retries tasks that were killed for memory for ever, and says nothing.
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
from ray.exceptions import (  # noqa: E402
    GetTimeoutError,
    RayError,
    RayTaskError,
    TaskCancelledError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: E402

logger = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 * 2**20  # shards travel as paths, so hardly anything lies in it
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_CONNECT_SECONDS = 5
_START_ATTEMPTS = 3
_LATE = "timed out during startup"  # of Ray's own message


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
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # it watches other nodes
    settings: dict[str, Any]
    if address:
        sources = [str(folder) for folder in source_folders()]
        settings = {"runtime_env": {"py_modules": sources, "excludes": ["**/__pycache__"]}}
        trouble = (
            f"the Ray cluster at {address} cannot be joined; its token must be this process's "
            "(RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH), and this machine must be one of its nodes: "
            f"ray start --address={address} --num-cpus=0"
        )
    else:
        quoted = shlex.quote(sys.executable)  # Ray's `bash -c "exec <python> ..."` does not
        settings = {
            "address": "local",  # not another one that runs on this machine
            "num_cpus": local_cpus(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE_BYTES,
            "runtime_env": {} if quoted == sys.executable else {"py_executable": quoted},
        }
        trouble = (
            "Ray did not start; on a busy machine run again; its files need room and a short path "
            "in RAY_TMPDIR"
        )
    # Ray puts the folder of this process before the library on its workers' path. There a file
    # `tokenizers.py` would take the place of the library.
    with keep_signal_handlers(), _apart_from_signals(bool(address)), chdir("/"):
        try:
            _init(settings)
        # Ray raises a bare Exception where its node is late, a RuntimeError for another token or
        # without a node on this machine, an OSError for a long path or a full disk.
        except Exception as error:
            raise UserError(f"{trouble}; Ray said: {first_line(error)}") from error


def _init(settings: Mapping[str, Any]) -> None:
    """Ray gives its node 30 seconds to start, and a busy machine may take longer: it tries again.

    What a late start leaves behind ends with this process.
    """
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
            return
        except Exception as error:  # a bare one: its message alone says that the node is late
            if _LATE not in str(error) or attempt == _START_ATTEMPTS:
                raise
            logger.warning("Ray's node did not start in time on this busy machine: starting again")


def check_address(address: str) -> None:
    """Raise UserError where nobody answers at RAY_ADDRESS; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"[\w.\-\[\]:]+", host) or not port.isdecimal():
        raise UserError(
            f"RAY_ADDRESS={address} must be the host:port of a cluster's head, such as "
            "ray-head:6379; correct it, or unset it to compute here"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start it, or unset "
            "RAY_ADDRESS to compute here"
        ) from error


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
    """Cores that this process may use, a quota included; at least 2, for two workers."""
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


_END_SECONDS = 90.0  # of tasks that are interrupted
_MOMENT_SECONDS = 0.5

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_tasks(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    num_workers: int,
    cpus_each: float = 1,
    on_result: Callable[[int, Result], None] | None = None,
) -> list[Result]:
    """`[function(item) for item in items]`, as Ray tasks, at most `num_workers` at once.

    `function` and the items are pickled; a worker process reads `function` once for all of its
    tasks, so that it may hold a model. Items of an iterator are taken as workers become free. A
    task whose worker dies is run again; an error that `function` raises is raised here as it was.
    A task that only waits for others holds no CPU (`cpus_each` = 0), and gets time to end them if
    an error or a stop ends this call. `on_result(index, result)` is called in the order of
    completion.
    """
    connect()
    if os.environ.get("RAY_ADDRESS") and cpus_each > ray.available_resources().get("CPU", 0):
        logger.warning("no CPU of the cluster is free: waiting for one; `ray status` tells of them")
    remote = ray.remote(num_cpus=cpus_each, max_retries=3)(_call)
    handle = [ray.put(function)]  # in a list: Ray would read it for each task
    results: dict[int, Result] = {}
    # Futures, because a signal that arrives in `ray.wait` is lost if it raises anything other than
    # KeyboardInterrupt, and Prefect's handler does.
    running: dict[Future[Any], tuple[int, ray.ObjectRef]] = {}

    def take_one() -> None:
        ready = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
        index, _ = running.pop(ready)
        results[index] = _result_of(ready)
        if on_result is not None:
            on_result(index, results[index])

    try:
        for index, item in enumerate(items):
            if len(running) >= num_workers:
                take_one()
            task = remote.remote(handle, item)
            running[task.future()] = index, task
        while running:
            take_one()
        return [results[index] for index in sorted(results)]
    finally:
        _end([task for _, task in running.values()], politely=cpus_each == 0)


@lru_cache(maxsize=1)
def _read(handle: "ray.ObjectRef") -> Any:
    """What many tasks of this process need, read once."""
    return ray.get(handle)


def _end(tasks: "list[ray.ObjectRef]", *, politely: bool) -> None:
    """End tasks whose results are not needed any more.

    If a task is killed, what it started survives: the workers of a training run would keep their
    places in the cluster. So such a task is interrupted, and ends its training run itself.
    """
    if not tasks:
        return
    if politely:
        for task in tasks:
            ray.cancel(task, force=False)
    # A task that ends by itself while Ray kills it can abort this process ("Tried to complete task
    # that was not pending"), and what ended one, a full disk for example, soon ends the others.
    seconds = _END_SECONDS if politely else _MOMENT_SECONDS
    _, running = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
    for task in running:
        ray.cancel(task, force=True)  # an interrupted import would spoil the worker


def _call(handle: "list[ray.ObjectRef]", item: Any) -> Any:
    return _read(handle[0])(item)


def _result_of(task: Future[Any]) -> Any:
    try:
        return task.result()
    except RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except RayError as error:
        if is_loss(error):
            raise UserError(
                f"Ray lost a task: {what_to_do(error)}: what is finished is kept"
            ) from error
        raise


def answer_of(reference: "ray.ObjectRef", where: str, seconds: float) -> Any:
    """What a task on the node `where` returned; raises UserError if no answer comes."""
    try:
        return ray.get(reference, timeout=seconds)
    except GetTimeoutError as error:
        ray.cancel(reference, force=True)  # it would run once the node answers
        raise UserError(
            f"{where} did not answer within {seconds:.0f} s; look at it with `ray status`, "
            "or run again when it is less busy"
        ) from error
    except RayError as error:  # what counts is the last line of the node's traceback
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise UserError(
            f"{where} cannot run Bertsmith: {reason}; install there what is installed here, or "
            "look at that node's logs"
        ) from error


def is_loss(error: BaseException) -> bool:
    """Whether a worker process or a node was lost, most often for lack of memory."""
    return isinstance(error, RayError) and not isinstance(error, (RayTaskError, TaskCancelledError))


def what_to_do(loss: BaseException) -> str:
    """The first of Ray's many lines on a loss, and where to look."""
    reason = first_line(loss).rstrip(".:")
    return f"{reason}; look at the memory and the logs of its node, and run again"


_ANSWER_SECONDS = 120.0  # of all nodes; what is shipped to them has to arrive first


def check_nodes(store: ArtifactStore, database: Path | None = None) -> None:
    """Check that every node of the cluster that RAY_ADDRESS names can work with this process.

    `database` is the tracker's, if it is a file that the first worker of a training run would
    open. Raises UserError, naming the node, for one that cannot.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return
    connect()
    alive = {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}
    probe = f"{store.root}/.probe-{uuid.uuid4().hex}"  # no kind of artifact has such a name
    with store_errors_explained(store.url):
        store.filesystem.makedirs(store.root, exist_ok=True)
        store.filesystem.pipe_file(probe, b"")
    question = (store, probe, computing_versions(), platform.node(), database)
    try:
        asked = {}
        for node_id in alive:
            there: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)  # Ray's types lack it
            task = ray.remote(num_cpus=0, max_calls=1, scheduling_strategy=there)(_problem)
            asked[node_id] = task.remote(*question)
        for node_id, reference in asked.items():
            where = f"the node {alive[node_id]} of the cluster at {os.environ['RAY_ADDRESS']}"
            if problem := answer_of(reference, where, _ANSWER_SECONDS):
                raise UserError(f"{where} {problem}")
    finally:
        with store_errors_explained(store.url):
            store.filesystem.rm_file(probe)


def _problem(
    store: ArtifactStore,
    probe: str,
    driver_versions: Mapping[str, str],
    driver_machine: str,
    database: Path | None,
) -> str:
    """On a node: why it cannot take part, and the remedy; empty if it can."""
    if others := other_versions(driver_versions):
        return others
    own = f"{probe}-{uuid.uuid4().hex}"
    trouble = ""
    try:
        store.filesystem.cat_file(probe)
        store.filesystem.pipe_file(own, b"")
        store.filesystem.rm_file(own)
    except FileNotFoundError:
        trouble = "does not see it"
    except store_errors() as error:
        trouble = f"cannot read and write it ({first_line(error)})"
    if trouble:
        return (
            f"cannot use the store {store.url}: it {trouble}; choose a runtime.store that all "
            "nodes share and may write, such as s3://bucket/prefix or a mounted folder, or unset "
            "RAY_ADDRESS to compute here"
        )
    if database is not None and platform.node() != driver_machine:
        return (
            f"cannot reach the tracker, to which a training run's first worker reports: {database} "
            "is a file of this machine; name an MLflow server that all nodes reach in "
            "runtime.tracking_uri (http://host:5000), or unset RAY_ADDRESS to compute here"
        )
    return ""
