"""Connecting to Ray, where it is not where it should be."""

import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from joblib.externals.loky.backend import context as loky

from pipelines import cluster
from pipelines.cluster import answer_of, map_tasks
from pipelines.errors import UserError
from tests.waiting import wait_for

import ray  # isort: skip  (after pipelines.cluster, which sets its environment)
from ray.exceptions import TaskCancelledError, WorkerCrashedError


def test_an_address_where_nobody_answers_is_named_at_once():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: nobody else takes the port
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = subprocess.run(
            [sys.executable, "-c", "from pipelines.cluster import connect; connect()"],
            env=os.environ | {"RAY_ADDRESS": address}, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
    assert result.returncode == 1
    assert f"no Ray cluster answers at RAY_ADDRESS={address}" in result.stderr


@pytest.mark.parametrize(
    "address", ["auto", "http://head:8265", "ray://head:10001", "head", "head:port", ":6379"]
)
def test_what_is_no_address_of_a_head_is_refused_at_once(monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match="must be the host:port of a cluster's head"):
        cluster.connect()


@pytest.mark.parametrize(("joins", "words"), [(False, "RAY_TMPDIR"), (True, "RAY_AUTH_TOKEN_PATH")])
def test_a_ray_that_does_not_start_is_one_sentence_with_what_ray_said(monkeypatch, joins, words):
    def fail(**settings):
        raise Exception("The node timed out.\nSecond line")  # the only kind that Ray raises here

    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        if joins:
            monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
        monkeypatch.setattr(cluster.ray, "init", fail)
        with pytest.raises(UserError, match=f"{words}.*; Ray said: The node timed out.$"):
            cluster.connect()


@pytest.mark.parametrize(("times_late", "starts"), [(0, True), (2, True), (3, False)])
def test_a_ray_that_is_late_is_started_again(monkeypatch, times_late, starts):
    attempts = []

    def late(**settings):
        attempts.append(settings)
        if len(attempts) <= times_late:
            raise Exception("The current node timed out during startup. This could happen")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", late)
    if starts:
        cluster.connect()
    else:
        with pytest.raises(UserError, match="on a busy machine run again"):
            cluster.connect()
    assert len(attempts) == min(times_late + 1, 3)


def test_a_quota_of_cores_is_kept_to(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(loky, "_cpu_count_affinity", lambda cores: 64)
    monkeypatch.setattr(loky, "_cpu_count_cgroup", lambda cores: 3)  # of either version
    assert cluster.local_cpus() == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ray's reaper needs its group")
def test_a_signal_to_this_process_s_group_does_not_reach_ray(local_ray):
    started = psutil.Process().children(recursive=True)
    groups = {each.name(): os.getpgid(each.pid) for each in started if each.is_running()}
    assert {"raylet", "gcs_server"} <= set(groups)
    assert os.getpgid(0) not in {groups["raylet"], groups["gcs_server"]}


def test_a_task_that_loses_its_worker_each_time_ends_in_one_line(local_ray):
    with pytest.raises(UserError, match=r"^Ray lost a task: .*; look at the memory") as raised:
        map_tasks(lambda item: os.kill(os.getpid(), signal.SIGKILL), [0], num_workers=1)
    assert len(str(raised.value).splitlines()) == 1


def test_a_cluster_without_a_free_cpu_is_waited_for_with_a_word(local_ray, monkeypatch, caplog):
    monkeypatch.setenv("RAY_ADDRESS", "joined already")
    every = ray.cluster_resources()["CPU"]
    other = ray.remote(num_cpus=every)(lambda: time.sleep(3)).remote()
    wait_for(lambda: not ray.available_resources().get("CPU"), "a cluster that is full")
    assert map_tasks(abs, [-1], num_workers=1) == [1]
    ray.get(other)
    wait_for(lambda: ray.available_resources().get("CPU") == every, "a cluster that is free")
    assert map_tasks(abs, [-2], num_workers=1) == [2]
    assert [each.message[:34] for each in caplog.records] == ["no CPU of the cluster is free: wai"]


class _Stop(BaseException):
    """What a handler raises; Prefect's is no KeyboardInterrupt, which alone Ray's waits pass on."""


def test_whatever_a_signal_raises_ends_the_wait_for_tasks(local_ray):
    def stop(number, frame):
        raise _Stop

    kept = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        with pytest.raises(_Stop):
            map_tasks(lambda item: time.sleep(30), [0], num_workers=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, kept)


@pytest.mark.slow
def test_a_node_that_answers_too_late_is_asked_nothing_more(local_ray):
    asked = ray.remote(num_cpus=0, max_retries=0)(lambda: time.sleep(600)).remote()
    with pytest.raises(UserError, match="the node did not answer within 0 s"):
        answer_of(asked, "the node", 0.1)
    with pytest.raises((TaskCancelledError, WorkerCrashedError)):
        ray.get(asked, timeout=60)


_TOO_LARGE = """
import os, time
os.environ |= {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
os.environ["RAY_task_oom_retries"] = "1"
from pipelines.cluster import map_tasks
from pipelines.errors import UserError

def large(seconds):
    time.sleep(seconds)

try:
    map_tasks(large, [60], num_workers=1)
except UserError as error:
    print("said:", error)
"""


@pytest.mark.slow
def test_a_task_that_is_killed_for_memory_each_time_ends_with_a_sentence() -> None:
    assert dict(os.environ)["RAY_task_oom_retries"] == "8"  # Ray's own default is without end
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", _TOO_LARGE], env=environment,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "said: Ray lost a task: " in done.stdout, done.stderr
    assert "running low on memory" in done.stdout
