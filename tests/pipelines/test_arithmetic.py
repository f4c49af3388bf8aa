"""What a training run computes in is settled before it starts, and names its artifact."""

import threading
from collections.abc import Iterator

import pytest
import ray
import torch

from bert_core.backends.context import compute_dtype
from pipelines.cluster import local_cpus
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.store import ArtifactStore
from pipelines.train import arithmetic
from pipelines.train.arithmetic import Arithmetic, arithmetic_of, resolve
from pipelines.train.placement import BatchSplit, schedule


@pytest.fixture
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_auto_is_what_this_machine_computes_in_where_no_cluster_is_named(no_cluster):
    found = arithmetic_of("auto", RuntimeSettings(training_workers=1, device="cpu"))
    is_bf16 = compute_dtype("auto", "cpu") == torch.bfloat16
    precision = "bf16" if is_bf16 else "float32"
    assert found == Arithmetic(device="cpu", precision=precision, torch=torch.__version__)
    assert (
        arithmetic_of("float32", RuntimeSettings(training_workers=1, device="cpu")).precision
        == "float32"
    )


def test_a_cluster_is_asked_through_one_of_its_nodes(local_ray, monkeypatch):
    monkeypatch.setattr(arithmetic, "_ANSWER_SECONDS", 240.0)  # it imports torch, when it can
    monkeypatch.setenv("RAY_ADDRESS", "the one that this process is connected to")
    # What the driver itself would say must not matter; the task imports the module anew.
    monkeypatch.setattr(arithmetic.torch, "__version__", "0.0.driver")
    found = arithmetic_of("bf16", RuntimeSettings(training_workers=1))
    assert (found.device, found.precision) == ("cpu", "bf16")
    assert found.torch != "0.0.driver"


@pytest.fixture
def busy_cluster(local_ray, monkeypatch) -> Iterator[None]:
    """A cluster whose every CPU is somebody else's."""
    monkeypatch.setattr(arithmetic, "_ANSWER_SECONDS", 200.0)
    monkeypatch.setenv("RAY_ADDRESS", "the one that this process is connected to")

    class Neighbour:
        def is_here(self) -> bool:
            return True

    neighbours = [ray.remote(num_cpus=1)(Neighbour).remote() for _ in range(local_cpus())]
    assert all(ray.get([neighbour.is_here.remote() for neighbour in neighbours]))
    yield
    for neighbour in neighbours:
        ray.kill(neighbour)


def test_a_cluster_without_a_free_cpu_answers_all_the_same(busy_cluster):
    found: list[Arithmetic] = []
    asking = threading.Thread(
        target=lambda: found.append(arithmetic_of("float32", RuntimeSettings(training_workers=1))),
        daemon=True,
    )
    asking.start()
    asking.join(240)
    assert [each.precision for each in found] == ["float32"]


@pytest.mark.parametrize(("torch_sees", "ray_counts"), [(False, 1.0), (True, 0.0)])
def test_what_names_the_artifact_is_what_trains_where_ray_and_torch_disagree(
    no_cluster, monkeypatch, tmp_path, torch_sees: bool, ray_counts: float
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: torch_sees)
    context = StageContext(store=ArtifactStore(tmp_path))
    settled, bound = resolve("float32", context)
    assert settled.device == ("cuda" if torch_sees else "cpu")
    nodes = [{"CPU": 2.0, "GPU": ray_counts}]
    cut = BatchSplit(section="pretraining", global_batch_size=8, micro_batch_size=4)
    if torch_sees:
        with pytest.raises(UserError, match="with 1 CPU and a GPU"):
            schedule(bound.runtime, nodes, cut, one_thread_each=False)
    else:
        assert not schedule(bound.runtime, nodes, cut, one_thread_each=False).use_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_asked_for_and_not_there_is_refused(no_cluster):
    with pytest.raises(
        UserError, match=r"^runtime.device=gpu needs a GPU, and this machine has none"
    ):
        arithmetic_of("auto", RuntimeSettings(training_workers=1, device="gpu"))


def test_auto_and_its_resolution_name_the_same_artifact_and_another_format_another(no_cluster):
    auto = arithmetic_of("auto", RuntimeSettings(training_workers=1, device="cpu"))
    plain = auto.named_in({"precision": "auto", "seed": 1})
    assert plain == auto.named_in({"precision": auto.precision, "seed": 1})
    assert plain["precision"] == auto.precision
    other = Arithmetic(device="cuda", precision="bf16", torch=auto.torch)
    assert other.named_in({"precision": "auto", "seed": 1}) != plain
