"""What ends a training run after all its restarts, in a sentence."""

import pytest

from pipelines.errors import UserError
from pipelines.tracking.tracker import is_transient
from pipelines.train import launch
from pipelines.train.launch import raise_sentence
from pipelines.train.placement import Placement

from ray.exceptions import OutOfMemoryError, RayActorError  # isort: skip  (after Ray's environment)
from ray.train import ControllerError, WorkerGroupError  # isort: skip


class NoPlacesError(Exception):
    """As Ray's own, which is private."""

    __module__ = "ray.train"


TWO_WORKERS = Placement(num_workers=2, cpus=4, use_gpu=False)


@pytest.mark.parametrize(
    ("num_nodes", "sentence"),
    [
        (
            1,
            "the training run (workers: 2, each with 4 CPUs) no longer fits the cluster, which has "
            "room for 1 on 1 node (4 CPUs with 0 GPUs): a node was lost and not replaced; add one, "
            "or set runtime.training_workers to a range such as [1, 2], and run again: it resumes "
            "from its last checkpoint",
        ),
        (
            2,
            "the training run (workers: 2, each with 4 CPUs) did not start (the places never "
            "came): other jobs use the resources that it needs; wait for them, or lower "
            "runtime.training_workers or runtime.cpus_per_worker",
        ),
    ],
)
def test_workers_that_find_no_places_are_a_sentence(
    monkeypatch: pytest.MonkeyPatch, num_nodes: int, sentence: str
) -> None:
    monkeypatch.setattr(launch, "nodes", lambda: [{"CPU": 4.0}] * num_nodes)
    with pytest.raises(UserError) as caught:
        explain(ControllerError(NoPlacesError("the places never came")))
    assert str(caught.value) == sentence


def explain(error: Exception) -> None:
    raise_sentence(error, "pretraining", 3, TWO_WORKERS)


def of_workers(*failures: Exception) -> WorkerGroupError:
    return WorkerGroupError("as Ray says it", dict(enumerate(failures)))


def test_a_worker_that_dies_too_often_is_a_sentence_and_others_that_lost_it_are_none() -> None:
    died = of_workers(RuntimeError("Connection closed by peer"), RayActorError())
    with pytest.raises(UserError) as raised:
        explain(died)
    said = str(raised.value)
    assert said.startswith("a worker of pretraining (rank 1) ended without finishing, and runtime.")
    assert "max_failures=3 allows no more restarts: The actor experienced an error" in said
    assert len(said.splitlines()) == 1
    assert not is_transient(raised.value)


@pytest.mark.parametrize("is_of_the_controller", [True, False])
def test_a_node_without_memory_is_one_line_and_not_sixty(is_of_the_controller: bool) -> None:
    lost = OutOfMemoryError(
        "4 worker(s) were killed due to the node running low on memory.\n"
        + "Object store memory usage: [- objects spillable: 1\n" * 60
    )
    error = ControllerError(lost) if is_of_the_controller else lost
    with pytest.raises(UserError) as raised:
        explain(error)
    assert str(raised.value) == (
        "Ray lost pretraining: 4 worker(s) were killed due to the node running low on memory; look "
        "at the memory and the logs of its node, and run again: it resumes from its last checkpoint"
    )
    assert not is_transient(raised.value)


def test_a_store_that_stays_away_is_a_sentence_and_worth_another_try() -> None:
    away = of_workers(OSError("the checkpoint of step 8 could not be stored in s3://b/p: 503"))
    with pytest.raises(UserError, match="but the checkpoint of step 8 could not") as raised:
        explain(away)
    assert is_transient(raised.value)
