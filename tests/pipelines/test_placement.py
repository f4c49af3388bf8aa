"""Where a training run computes; refusals are one sentence."""

from typing import Any

import pytest
import torch

from bert_core.backends.context import compute_dtype
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.store import ArtifactStore
from pipelines.train import placement
from pipelines.train.placement import (
    Arithmetic,
    Placement,
    is_single_threaded,
    place_workers,
    resolve_device,
)
from pipelines.train.settings import BatchSplit, check_ranks

LAPTOP = [{"CPU": 2.0}]
WORKSTATION = [{"CPU": 16.0}]
MIXED = [{"CPU": 16.0}, {"CPU": 64.0, "GPU": 8.0}]
THREE_NODES = [{"CPU": 32.0}, {"CPU": 32.0}, {"CPU": 16.0}]
TWO = BatchSplit(section="pretraining", global_batch_size=32, micro_batch_size=16)
EIGHT = BatchSplit(section="pretraining", global_batch_size=64, micro_batch_size=8)


def runtime(training_workers: Any, **values: Any) -> RuntimeSettings:
    return RuntimeSettings(training_workers=training_workers, **values)


@pytest.mark.parametrize(
    ("ranks", "nodes", "split", "small", "expected"),
    [
        # auto, on CPUs: a core each where that is fastest, else as many as nodes
        (runtime("auto"), LAPTOP, TWO, True, (2, 1, False)),
        (runtime("auto"), WORKSTATION, EIGHT, True, (8, 2, False)),
        (runtime("auto"), THREE_NODES, EIGHT, False, (3, 16, False)),
        (runtime("auto"), THREE_NODES, EIGHT, True, (8, 4, False)),
        # auto, with GPUs: one each, and the CPUs of the node that has them
        (runtime("auto"), MIXED, EIGHT, False, (8, 8, True)),
        (runtime("auto"), MIXED, TWO, True, (2, 32, True)),
        (runtime("auto", device="cpu"), MIXED, EIGHT, False, (2, 32, False)),
        # as asked
        (runtime(1), MIXED, EIGHT, False, (1, 64, True)),
        (runtime(4, device="cpu"), MIXED, EIGHT, False, (4, 16, False)),
        (runtime(2, cpus_per_worker=3), WORKSTATION, EIGHT, False, (2, 3, False)),
        (runtime((1, 4)), THREE_NODES, EIGHT, False, ((1, 4), 16, False)),
        (runtime((1, 8)), LAPTOP, EIGHT, False, ((1, 8), 1, False)),
        # nodes that an autoscaler brings: the least number of workers
        (runtime((3, 8), wait_for_nodes_seconds=9), LAPTOP, EIGHT, False, (3, 1, False)),
        (runtime("auto", device="gpu", wait_for_nodes_seconds=9), LAPTOP, TWO, False, (1, 1, True)),
        # a range ends where a step has no more micro-batches, and its workers get the CPUs
        (runtime((1, 16)), WORKSTATION, TWO, False, ((1, 2), 8, False)),
        (runtime((2, 4)), WORKSTATION, TWO, False, ((2, 2), 8, False)),
    ],
)
def test_ranks_are_placed(ranks, nodes, split, small, expected, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "a cluster, which may have an autoscaler")
    num_workers, cpus, use_gpu = expected
    assert place_workers(ranks, nodes, split, one_thread_each=small) == Placement(
        num_workers=num_workers, cpus=cpus, use_gpu=use_gpu
    )


@pytest.mark.parametrize(
    ("num_layers", "hidden_size", "expected"),
    [(2, 128, True), (4, 512, True), (6, 384, True), (8, 512, False), (6, 768, False)],
)
def test_encoders_up_to_bert_small_get_a_rank_a_core(num_layers, hidden_size, expected):
    assert is_single_threaded(num_layers, hidden_size) == expected


@pytest.mark.parametrize(
    ("ranks", "nodes", "sentence"),
    [
        (
            runtime(3),
            LAPTOP,
            "3 training workers with 1 CPU each do not fit the cluster, which has room for 2 on "
            "2 CPU and 0 GPU; lower runtime.training_workers or",
        ),
        # fewer GPUs than asked for: never quietly on CPUs
        (runtime(4), [{"CPU": 16.0, "GPU": 2.0}], "with 1 CPU and 1 GPU each do not fit"),
        (runtime("auto", device="gpu"), WORKSTATION, "or set runtime.device=cpu to train on CPUs"),
        # no cluster, so no autoscaler to wait for
        (runtime(3, wait_for_nodes_seconds=9), LAPTOP, "3 training workers with 1 CPU each do not"),
    ],
)
def test_what_cannot_be_placed_is_refused(ranks, nodes, sentence):
    with pytest.raises(UserError) as raised:
        place_workers(ranks, nodes, EIGHT, one_thread_each=False)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_more_workers_than_a_step_has_micro_batches_are_refused():
    for ranks in (runtime(2), runtime("auto"), runtime((1, 8))):
        check_ranks(ranks, TWO)
    with pytest.raises(UserError) as raised:
        check_ranks(runtime(4), TWO)
    assert str(raised.value) == (
        "4 training workers cannot share the 2 micro-batches of a step of pretraining "
        "(global_batch_size=32, micro_batch_size=16); set runtime.training_workers to at most 2, "
        "lower pretraining.micro_batch_size or raise pretraining.global_batch_size"
    )


@pytest.mark.parametrize("num_workers", range(1, 10))
@pytest.mark.parametrize("nodes", [LAPTOP, WORKSTATION, MIXED, THREE_NODES])
@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_what_is_placed_fits(num_workers, nodes, device):
    """Bin packing, checked by brute force: every worker finds a node that still has room."""
    try:
        placed = place_workers(
            runtime(num_workers, device=device), nodes, EIGHT, one_thread_each=False
        )
    except UserError:
        return
    free = [dict(node) for node in nodes]
    for _ in range(num_workers):
        node = next(
            node
            for node in free
            if node["CPU"] >= placed.cpus and node.get("GPU", 0) >= placed.use_gpu
        )
        node["CPU"] -= placed.cpus
        node["GPU"] = node.get("GPU", 0) - placed.use_gpu


@pytest.fixture
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def resolved(precision: Any, folder: Any, **values: Any) -> Arithmetic:
    context = StageContext(store=ArtifactStore(folder), runtime=runtime(1, **values))
    return resolve_device(precision, context)[0]


def test_auto_names_the_same_artifact_as_what_this_machine_computes_in(no_cluster, tmp_path):
    auto = resolved("auto", tmp_path, device="cpu")
    precision = "bf16" if compute_dtype("auto", "cpu") == torch.bfloat16 else "float32"
    assert auto == Arithmetic(device="cpu", precision=precision, torch=torch.__version__)
    assert resolved("float32", tmp_path, device="cpu").precision == "float32"
    named = auto.named_in({"precision": "auto", "seed": 1})
    assert named == auto.named_in({"precision": precision, "seed": 1})
    other = Arithmetic(device="cuda", precision=precision, torch=auto.torch)
    assert other.named_in({"precision": "auto", "seed": 1}) != named


@pytest.mark.parametrize("has_bf16", [False, True])
def test_bf16_where_it_is_slow_is_told(no_cluster, monkeypatch, caplog, tmp_path, has_bf16):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert resolved("bf16", tmp_path, device="cpu").precision == "bf16"
    assert ("has no instructions for bf16" in caplog.text) == (not has_bf16)
    caplog.clear()
    resolved("auto", tmp_path, device="cpu")
    assert not caplog.text


@pytest.mark.parametrize(
    ("device", "gpus", "wait", "expected"),
    [
        ("auto", 0, 0, ("cpu", None)), ("auto", 8, 0, ("cuda", "bf16")),
        ("cpu", 8, 0, ("cpu", None)), ("gpu", 0, 900, ("cuda", "bf16")),
    ],
)  # fmt: skip
def test_the_nodes_of_a_cluster_have_the_gpus(monkeypatch, tmp_path, device, gpus, wait, expected):
    monkeypatch.setenv("RAY_ADDRESS", "far away")
    monkeypatch.setattr(placement, "connect", lambda: None)
    monkeypatch.setattr(placement, "nodes", lambda: [{"CPU": 8.0, "GPU": float(gpus)}])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    own = "bf16" if compute_dtype("auto", "cpu") == torch.bfloat16 else "float32"
    answer = resolved("auto", tmp_path, device=device, wait_for_nodes_seconds=wait)
    assert (answer.device, answer.precision) == (expected[0], expected[1] or own)
    plain = resolved("float32", tmp_path, device=device, wait_for_nodes_seconds=wait)
    assert (plain.device, plain.precision) == (expected[0], "float32")


@pytest.mark.parametrize(("torch_sees", "ray_counts"), [(False, 1.0), (True, 0.0)])
def test_what_names_the_artifact_is_what_trains_where_ray_and_torch_disagree(
    no_cluster, monkeypatch, tmp_path, torch_sees: bool, ray_counts: float
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: torch_sees)
    settled, bound = resolve_device("float32", StageContext(store=ArtifactStore(tmp_path)))
    assert settled.device == ("cuda" if torch_sees else "cpu")
    nodes = [{"CPU": 2.0, "GPU": ray_counts}]
    if torch_sees:
        with pytest.raises(UserError, match="with 1 CPU and 1 GPU"):
            place_workers(bound.runtime, nodes, TWO, one_thread_each=False)
    else:
        assert not place_workers(bound.runtime, nodes, TWO, one_thread_each=False).use_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_asked_for_and_not_there_is_refused(no_cluster, tmp_path):
    with pytest.raises(UserError, match=r"^runtime.device=gpu needs a GPU, and there is none; set"):
        resolved("auto", tmp_path, device="gpu")
