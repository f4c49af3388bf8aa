"""What an autoscaler is asked for, how long, and that nothing of it is left."""

import time
from types import SimpleNamespace

import pytest
from ray.util import placement_group_table

from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress
from pipelines.train import arithmetic
from pipelines.train.arithmetic import bundles, wait_for_room

NO_ROOM = [{"CPU": 0.0}]
ONE_GPU = [{"CPU": 8.0, "GPU": 1.0}]
TOO_MANY = RuntimeSettings(training_workers=1000, cpus_per_worker=3, wait_for_nodes_seconds=60)


@pytest.mark.parametrize(
    ("ranks", "up", "asked"),
    [
        (RuntimeSettings(training_workers=3), NO_ROOM, [{"CPU": 1}] * 3),
        (RuntimeSettings(training_workers=2, cpus_per_worker=4), NO_ROOM, [{"CPU": 4}] * 2),
        (RuntimeSettings(training_workers=(2, 8)), NO_ROOM, [{"CPU": 1}] * 2),
        (RuntimeSettings(training_workers="auto"), NO_ROOM, [{"CPU": 1}]),
        (RuntimeSettings(training_workers="auto", device="gpu"), NO_ROOM, [{"CPU": 1, "GPU": 1}]),
        (
            RuntimeSettings(training_workers=2, cpus_per_worker=8, device="gpu"),
            ONE_GPU,
            [{"CPU": 8, "GPU": 1}] * 2,
        ),
        (RuntimeSettings(training_workers=2), ONE_GPU, [{"CPU": 1, "GPU": 1}] * 2),
        (RuntimeSettings(training_workers=2, device="cpu"), ONE_GPU, [{"CPU": 1}] * 2),
    ],
)
def test_the_least_workers_are_asked_for(ranks, up, asked):
    assert bundles(ranks, up) == asked


@pytest.fixture
def cluster(local_ray, monkeypatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "the one that this process is connected to")


def test_a_wait_ends_with_its_time_and_is_told_once(cluster):
    told: list[Progress] = []
    ranks = RuntimeSettings(training_workers=1000, wait_for_nodes_seconds=2)
    started = time.monotonic()
    waited = wait_for_room(ranks, told.append, "pretraining")
    assert 2 <= waited <= time.monotonic() - started
    (progress,) = told
    assert progress.note.startswith(
        "pretraining: waiting up to 2 s for nodes with room for 1000 x 1 CPU, found 1 node ("
    )
    assert states() <= {"REMOVED"}


def test_a_stop_ends_the_wait_and_takes_the_request_back(cluster, monkeypatch):
    asked: list[dict[str, float]] = []

    def stop(seconds: float) -> None:
        (group,) = (each for each in placement_group_table().values() if is_pending(each))
        asked.extend(group["bundles"].values())
        raise KeyboardInterrupt

    # In its own module alone: other threads of the process sleep, too.
    own = SimpleNamespace(sleep=stop, monotonic=time.monotonic)
    monkeypatch.setattr(arithmetic, "time", own)
    with pytest.raises(KeyboardInterrupt):
        wait_for_room(TOO_MANY, lambda progress: None, "pretraining")
    assert asked == [{"CPU": 3.0}] * 1000
    assert states() <= {"REMOVED"}


def is_pending(group: dict[str, str]) -> bool:
    return group["state"] != "REMOVED"


def states() -> set[str]:
    return {group["state"] for group in placement_group_table().values()}
