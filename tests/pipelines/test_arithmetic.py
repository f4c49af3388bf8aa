"""What a training computes in is settled before it starts, and names its artifact."""

import pytest
import torch

from bert_core.backends.precision import compute_dtype
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.errors import UserError
from pipelines.training import arithmetic
from pipelines.training.arithmetic import Arithmetic, resolve


@pytest.fixture
def no_cluster(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_auto_is_what_this_machine_computes_in_where_no_cluster_is_named(no_cluster):
    found = resolve("auto", Ranks(device="cpu"))
    is_bf16 = compute_dtype("auto", "cpu") == torch.bfloat16
    assert found == Arithmetic(
        device="cpu", precision="bf16" if is_bf16 else "float32", torch=torch.__version__
    )
    assert resolve("float32", Ranks(device="cpu")).precision == "float32"


def test_a_cluster_is_asked_through_one_of_its_nodes(local_ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "the one that this process is connected to")
    # What the driver itself would say must not matter; the task imports the module anew.
    monkeypatch.setattr(arithmetic.torch, "__version__", "0.0.driver")
    found = resolve("bf16", Ranks())
    assert (found.device, found.precision) == ("cpu", "bf16")
    assert found.torch != "0.0.driver"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_asked_for_and_not_there_is_refused(no_cluster):
    with pytest.raises(UserError, match=r"must have a GPU for place.device=gpu, found none"):
        resolve("auto", Ranks(device="gpu"))


def test_auto_and_its_resolution_name_the_same_artifact_and_another_format_another(no_cluster):
    auto = resolve("auto", Ranks(device="cpu"))
    plain = auto.named_in({"precision": "auto", "seed": 1})
    assert plain == auto.named_in({"precision": auto.precision, "seed": 1})
    assert plain["precision"] == auto.precision
    other = Arithmetic(device="cuda", precision="bf16", torch=auto.torch)
    assert other.named_in({"precision": "auto", "seed": 1}) != plain
