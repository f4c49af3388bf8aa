"""Launching a training run: what its workers say, what stops it, and what ends it in a sentence."""

import subprocess
import sys

import pytest
import ray

from pipelines.errors import UserError
from pipelines.stage import Progress, ignore
from pipelines.tracking.tracker import is_transient
from pipelines.train import launch
from pipelines.train.launch import messages_of_workers, raise_user_error
from pipelines.train.metrics import Telemetry
from pipelines.train.placement import Placement
from pipelines.train.worker import within_memory

from ray.exceptions import OutOfMemoryError, RayActorError  # isort: skip  (after Ray's environment)
from ray.train import ControllerError, WorkerGroupError  # isort: skip


class NoPlacesError(Exception):
    """As Ray's own, which is private."""

    __module__ = "ray.train"


def sentence_of(error: Exception) -> UserError:
    with pytest.raises(UserError) as raised:
        raise_user_error(error, "pretraining", 3, Placement(num_workers=2, cpus=4, use_gpu=False))
    assert len(str(raised.value).splitlines()) == 1
    return raised.value


def of_workers(*failures: Exception) -> WorkerGroupError:
    return WorkerGroupError("as Ray says it", dict(enumerate(failures)))


def test_workers_that_find_no_places_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "nodes", lambda: [{"CPU": 4.0}])
    error = sentence_of(ControllerError(NoPlacesError("the places never came")))
    assert str(error) == (
        "pretraining found no room for 2 workers of 4 CPU each on 4 CPU and 0 GPU (the places "
        "never came): a node was lost, other jobs use what it needs, or an autoscaler adds none; "
        "add a node, wait for them, raise runtime.wait_for_nodes_seconds where an autoscaler is "
        "slow, or set runtime.training_workers to a range such as [1, 2], and run again: it "
        "resumes from its last checkpoint"
    )


def test_a_worker_that_dies_too_often_is_a_sentence_and_others_that_lost_it_are_none() -> None:
    error = sentence_of(of_workers(RuntimeError("Connection closed by peer"), RayActorError()))
    told = str(error)
    assert told.startswith("a worker of pretraining (rank 1) ended without finishing, and runtime.")
    assert "max_failures=3 allows no more restarts: The actor experienced an error" in told
    assert not is_transient(error)


@pytest.mark.parametrize("is_of_the_controller", [True, False])
def test_a_node_without_memory_is_one_line_and_not_sixty(is_of_the_controller: bool) -> None:
    lost = OutOfMemoryError(
        "4 worker(s) were killed due to the node running low on memory.\n"
        + "Object store memory usage: [- objects spillable: 1\n" * 60
    )
    error = sentence_of(ControllerError(lost) if is_of_the_controller else lost)
    assert str(error) == (
        "Ray lost pretraining: 4 worker(s) were killed due to the node running low on memory; look "
        "at the memory and the logs of its node, and run again: it resumes from its last checkpoint"
    )
    assert not is_transient(error)


def test_a_store_that_stays_away_is_a_sentence_and_worth_another_try() -> None:
    error = sentence_of(
        of_workers(OSError("the checkpoint of step 8 could not be stored in s3://b/p: 503"))
    )
    assert "but the checkpoint of step 8 could not" in str(error)
    assert is_transient(error)


@pytest.mark.parametrize("text", ["bad_alloc", "DefaultCPUAllocator: can't allocate memory: you"])
def test_a_lack_of_memory_is_a_sentence_and_another_error_stays_what_it_is(text: str) -> None:
    with (
        pytest.raises(UserError, match=r"^pretraining does not fit the memory .*; lower micro"),
        within_memory("pretraining"),
    ):
        raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="shape"), within_memory("pretraining"):
        raise RuntimeError("shape")


def test_notes_all_arrive_and_the_last_value_too_and_a_wish_to_stop(local_ray, monkeypatch):
    # A training run does not wait long for its last words; here a busy machine has the time.
    monkeypatch.setattr(launch, "_LAST_WORDS_SECONDS", 240.0)
    seen: list[Progress] = []
    with messages_of_workers(seen.append) as messages:
        wish = messages.stop_wish.remote()
        telemetry = Telemetry("training", 100, messages)
        telemetry.show(1, "resumed")
        for done in range(2, 100):
            telemetry.show(done)
        assert not ray.wait([wish], timeout=0)[0]
        messages.stop.remote()
        assert ray.wait([wish], timeout=240)[0]
        telemetry.show(100, "done")
        telemetry.close()
    assert [each.note for each in seen if each.note] == ["resumed", "done"]
    assert seen[-1].done == 100
    assert [each.done for each in seen] == sorted(each.done for each in seen)


def test_a_lost_display_ends_no_training(local_ray, caplog, monkeypatch):
    monkeypatch.setattr(launch, "_LAST_WORDS_SECONDS", 240.0)
    with messages_of_workers(ignore) as messages:
        telemetry = Telemetry("training", 100, messages)
        ray.kill(messages)
        for done in range(1000):
            telemetry.show(done, "a note")
        telemetry.close()
    assert caplog.text.count("progress is not shown any more") == 1


def test_an_interrupted_wait_exits_though_the_fit_never_returns():
    program = """
import os, signal, threading, time
from pipelines.train import launch

class Wish:
    class stop:
        remote = staticmethod(lambda: print("asked to stop", flush=True))

class Trainer:
    def fit(self):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            time.sleep(0.1)

launch.STOP_GRACE_SECONDS = 1.0
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    launch._fit(Trainer(), Wish())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200
    )
    assert (result.returncode, result.stdout) == (0, "asked to stop\ninterrupted\n"), result.stderr
