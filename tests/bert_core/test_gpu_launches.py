"""A step is counted as a GPU would be asked for it, on a machine that has none."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from benchmarks.pretended_gpu import Launches, fused, pretended_gpu
from benchmarks.pretraining_batches import operations, random_batches
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import _DeviceBatches, computing_as_trained
from bert_core.training.optimization import OptimizationConfig, build_optimizer
from bert_core.training.step import optimizer_step

VOCAB_SIZE = 30_522
BATCH = random_batches(16, 128, 1)[0]
DTYPE = torch.bfloat16
CARD = torch.device("cuda")  # made here: inside of `pretended_gpu` it would be `meta`


def new_run(dropout=0.1, name="adamw", size="mini"):
    config = encoder_config(size, VOCAB_SIZE, hidden_dropout=dropout, attention_dropout=dropout)
    model = PretrainingModel(config).to("cuda")
    return model, build_optimizer(model, OptimizationConfig(num_steps=10, optimizer=name))


def launches(dropout, num_micro_batches=1):
    with pretended_gpu():
        model, optimizer = new_run(dropout)
        batches = [(index, BATCH.to("cuda")) for index in range(num_micro_batches)]
        with Launches() as step:
            optimizer_step(model, optimizer, batches, seed=0, step=0, dtype=DTYPE)
    return step.found, optimizer.arena, model.config


def test_the_operations_counted_are_those_a_step_needs():
    found, _, config = launches(dropout=0.0)
    needed = operations(config, BATCH)
    counted = sum(launch.operations for launch in found)
    assert needed < counted < 1.25 * needed  # the last layer's keys, sequences taken for longest


def test_a_pretended_gpu_takes_the_flash_kernel_and_leaves_no_trace():
    found, _, _ = launches(dropout=0.1)
    assert sum("flash" in launch.name for launch in found) == 2 * 4  # there and back, four layers
    assert not torch.zeros(1, device="meta").is_cuda
    assert torch.zeros(1, device="meta").device.type == "meta"


def test_fusing_keeps_every_operation_and_moves_less():
    found, _, _ = launches(dropout=0.1)
    left = fused(found)
    assert len(left) < len(found) / 2

    def moved(some):
        return sum(sum(launch.read.values()) + sum(launch.written.values()) for launch in some)

    assert moved(left) < moved(found)
    assert sum(launch.operations for launch in left) == sum(launch.operations for launch in found)


@pytest.mark.parametrize("num_micro_batches", [1, 3])
def test_matrices_are_cast_once_a_step_and_their_gradients_never(num_micro_batches):
    found, arena, _ = launches(0.0, num_micro_batches)
    values, gradients = (b.untyped_storage()._cdata for b in (arena.values, arena.gradients))
    largest_vector = 4 * VOCAB_SIZE
    casts = [
        launch.name
        for launch in found
        if launch.read.get(values, 0) > largest_vector
        and any(0 < size == launch.read[values] // 2 for size in launch.written.values())
    ]
    assert casts == ["copy_"]
    added = [launch for launch in found if launch.name == "add_" and gradients in launch.written]
    uncast = [
        launch
        for launch in added
        if launch.written[gradients] > largest_vector
        and launch.written[gradients] // 2 in launch.read.values()
    ]
    # Four a layer, the two of the heads, and the table; of the two classes' it is a vector's size.
    assert len(uncast) == num_micro_batches * (4 * 4 + 2 + 1)


def test_a_gpu_s_dropout_is_drawn_by_a_thread_and_copied_beside_the_step(monkeypatch):
    drawn_by, generator = [], np.random.SFC64

    def drawing(bits):
        drawn_by.append(threading.current_thread())
        return generator(bits)

    monkeypatch.setattr(np.random, "SFC64", drawing)
    with pretended_gpu():
        model, optimizer = new_run()
        batches = _DeviceBatches(lambda step: [(index, BATCH) for index in range(2)], CARD, 0)
        with Launches() as copies:
            taken, keys = batches.take(0)
        with Launches() as step:
            optimizer_step(model, optimizer, taken, seed=0, step=0, dtype=DTYPE, dropout_keys=keys)
        _, others = batches.take(1)
    assert threading.main_thread() not in drawn_by
    pools = [launch for launch in copies.found if 2 << 20 in launch.written.values()]
    assert len(pools) == 2
    assert all(launch.is_aside for launch in copies.found)
    assert not any(launch.is_aside for launch in step.found)
    assert keys.keys() == others.keys() == {0, 1}
    assert len({int(key.bits) for key in (*keys.values(), *others.values())}) == 4


def test_an_evaluation_on_a_gpu_takes_the_kernel_and_the_format_of_training():
    with pretended_gpu():
        model, optimizer = new_run()
        as_trained = computing_as_trained(model, optimizer, precision="auto", compiled=False)
        found = {}
        for name, block in {
            "by itself": nullcontext(),
            "asked in bf16": model.precision("bf16"),
            "as trained": as_trained,
        }.items():
            with Launches() as seen, block:
                for _ in range(2):
                    model.evaluation_sums(BATCH.to("cuda"))
            found[name] = seen.found
    num_layers = 4
    for name, num_calls in (("by itself", 0), ("asked in bf16", 2), ("as trained", 2)):
        assert sum("flash" in each.name for each in found[name]) == num_calls * num_layers
    as_trained, asked, by_itself = (
        sum(sum(each.read.values()) + sum(each.written.values()) for each in found[name])
        for name in ("as trained", "asked in bf16", "by itself")
    )
    assert as_trained < asked < by_itself  # bytes
    assert len(found["as trained"]) < len(found["asked in bf16"])


@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_a_step_reads_nothing_back_from_a_gpu(name):
    with pretended_gpu():
        model, optimizer = new_run(name=name, size="tiny")
        report = optimizer_step(
            model, optimizer, [(0, BATCH.to("cuda"))], seed=0, step=0, dtype=DTYPE
        )
        for value in (report.loss, report.grad_norm, report.is_taken):
            with pytest.raises(RuntimeError, match="meta"):  # such tensors have nothing to read
                value.item()
