"""A step is counted as a GPU would be asked for it, on a machine that has none."""

import torch

from benchmarks.pretended_gpu import Launches, fused, pretended_gpu
from benchmarks.pretraining_batches import operations, random_batches
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.step import optimizer_step


def launches(dropout):
    config = encoder_config("mini", 30_522, hidden_dropout=dropout, attention_dropout=dropout)
    batch = random_batches(16, 128, 1)[0]
    with pretended_gpu():
        model = PretrainingModel(config).to("cuda")
        optimizer = AdamW(model, OptimizationConfig(num_steps=10))
        on_card = batch.to("cuda")
        with Launches() as step:
            optimizer_step(model, optimizer, [(0, on_card)], seed=0, step=0, dtype=torch.bfloat16)
    return step.found, operations(config, batch)


def test_the_operations_counted_are_those_a_step_needs():
    found, needed = launches(dropout=0.0)
    counted = sum(launch.operations for launch in found)
    assert needed < counted < 1.25 * needed  # the last layer's keys, sequences taken for longest


def test_a_pretended_gpu_takes_the_flash_kernel_and_leaves_no_trace():
    found, _ = launches(dropout=0.1)
    assert sum("flash" in launch.name for launch in found) == 2 * 4  # there and back, four layers
    assert not torch.zeros(1, device="meta").is_cuda
    assert torch.zeros(1, device="meta").device.type == "meta"


def test_fusing_keeps_every_operation_and_moves_less():
    found, _ = launches(dropout=0.1)
    left = fused(found)
    assert len(left) < len(found) / 2

    def moved(some):
        return sum(sum(launch.read.values()) + sum(launch.written.values()) for launch in some)

    assert moved(left) < moved(found)
    assert sum(launch.operations for launch in left) == sum(launch.operations for launch in found)
