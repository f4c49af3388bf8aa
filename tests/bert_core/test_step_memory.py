"""What a step is said to need, against every byte that real steps take from torch's allocator."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from bert_core.backends.operations import use_backend
from bert_core.batch import LabelledBatch, next_token_labels
from bert_core.config import EncoderConfig, encoder_config
from bert_core.model.catalogue import build_model, count_parameters
from bert_core.model.forward_memory import worst_lengths
from bert_core.model.preparation import freeze
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.step import optimizer_step
from bert_core.training.step_memory import (
    batch_memory,
    encoder_parameters,
    step_memory,
)
from tests.bert_core.batches import pretraining_batch, ragged_batch

VOCABULARY = 8_000
TASKS = ("pretraining", "sequence_classification", "language_model")


def name(lengths) -> str:
    return f"{len(lengths)} of up to {max(lengths)}"


def peak_of(function) -> int:
    """The most bytes that tensors of `function` occupied at once, its results included."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        function()
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return int(np.cumsum([event.nbytes() for event in events]).max())


def new_batch(task, lengths):
    if task == "pretraining":
        return pretraining_batch(lengths, VOCABULARY)
    tokens = ragged_batch(lengths, VOCABULARY)
    labels = {
        "language_model": lambda: next_token_labels(tokens),
        "token_classification": lambda: np.arange(tokens.num_tokens) % 2,
        "sequence_classification": lambda: np.arange(len(lengths)) % 2,
    }[task]()
    return LabelledBatch.from_arrays(tokens, labels)


def new_model(task, size, **overrides):
    config = encoder_config(size, VOCABULARY, causal=task == "language_model", **overrides)
    settings = {"num_labels": 2} if task.endswith("classification") else {}
    return build_model(task, config, **settings)


def measured_and_estimated(
    task, size, lengths, dtype, prepare=lambda model: None, backend="cpu", **overrides
):
    batch = new_batch(task, lengths)
    kept = []

    def train():
        model = new_model(task, size, **overrides)
        prepare(model)
        optimizer = AdamW(model, OptimizationConfig(num_steps=9))
        kept.append(model)
        for step in range(2):
            optimizer_step(model, optimizer, [(0, batch)], seed=0, step=step, dtype=dtype)

    measured = peak_of(train)
    return measured, batch_memory(kept[0], batch, dtype=dtype, backend=backend)


def assert_near(measured, estimated):
    """Within 15% beside the weights and the optimizer, which anyone can count."""
    standing = estimated.weights + estimated.gradients + estimated.optimizer
    standing += estimated.compute_copies
    assert measured - standing == pytest.approx(estimated.peak - standing, rel=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", [(128,) * 4, (128,) * 20, (512,) * 4], ids=name)
@pytest.mark.parametrize(
    ("size", "task"), [("tiny", "token_classification"), *product(("tiny", "mini"), TASKS)]
)
def test_a_step_needs_what_was_estimated(task, size, lengths, dtype):
    assert_near(*measured_and_estimated(task, size, lengths, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", [(128,) * 4, (128,) * 40, (512,) * 4], ids=name)
@pytest.mark.parametrize("task", TASKS)
def test_a_large_step_needs_what_was_estimated(task, lengths, dtype):
    assert_near(*measured_and_estimated(task, "small", lengths, dtype))


def test_without_dropout_less_is_kept():
    settings = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    found = measured_and_estimated("pretraining", "mini", (128,) * 20, torch.bfloat16, **settings)
    assert_near(*found)
    with_dropout = measured_and_estimated("pretraining", "mini", (128,) * 20, torch.bfloat16)
    assert found[1].activations < with_dropout[1].activations


UNEVEN = [tuple(range(8, 257, 8)), (256, *(8,) * 50), (512, *(100,) * 6)]


@pytest.mark.parametrize("lengths", UNEVEN, ids=name)
@pytest.mark.parametrize("backend", ["cpu", "plain"])
def test_sequences_of_many_lengths_need_what_was_estimated(backend, lengths):
    with use_backend(backend):
        measured, estimated = measured_and_estimated(
            "pretraining", "mini", lengths, torch.float32, backend=backend
        )
    assert_near(measured, estimated)


def test_lengths_that_are_not_known_are_taken_for_the_worst():
    assert worst_lengths(100, 40) == (40, 40, 20)
    assert worst_lengths(100, 40, 10) == (40, 40, 13, *(1,) * 7)
    assert worst_lengths(3, 1) == (1, 1, 1)
    with pytest.raises(ValueError, match=r"num_sequences must lie in \[3, 61\], got 62"):
        worst_lengths(100, 40, 62)


def test_what_is_frozen_has_no_gradients_and_no_optimizer():
    measured, estimated = measured_and_estimated(
        "sequence_classification", "mini", (128,) * 4, torch.float32,
        lambda model: freeze(model, embeddings=True),
    )  # fmt: skip
    assert estimated.gradients < 0.6 * estimated.weights
    assert estimated.optimizer == 2 * estimated.gradients
    assert measured == pytest.approx(estimated.peak, rel=0.15)


@pytest.mark.parametrize("num_layers", [2, 4])
@pytest.mark.parametrize("backend", ["cpu", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_checkpointed_layers_and_the_plain_backend_need_what_was_estimated(
    backend, num_layers, dtype
):
    for task, lengths in (("pretraining", (128,) * 20), ("language_model", (512,) * 4)):
        batch = new_batch(task, lengths)
        kept = []

        def train(task=task, batch=batch, kept=kept):
            model = new_model(task, "mini")
            model.encoder.num_checkpointed_layers = num_layers
            optimizer = AdamW(model, OptimizationConfig(num_steps=9))
            kept.append(model)
            optimizer_step(model, optimizer, [(0, batch)], seed=0, step=0, dtype=dtype)

        with use_backend(backend):
            measured = peak_of(train)
        estimated = batch_memory(kept[0], batch, dtype=dtype, backend=backend)
        assert measured == pytest.approx(estimated.peak, rel=0.15)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_parameters_are_counted_from_the_config(positions):
    config = EncoderConfig(
        vocab_size=100, hidden_size=32, num_layers=3, num_attention_heads=4, intermediate_size=72,
        max_position_embeddings=50, positions=positions,
    )  # fmt: skip
    counted = encoder_parameters(config, with_vocabulary=True)
    whole = build_model("pretraining", config)
    assert counted == count_parameters(whole) - count_parameters(whole.next_sentence_head)
    without = encoder_parameters(config, with_vocabulary=False)
    assert without == count_parameters(build_model("encoder", config))
    memory = step_memory(config, num_tokens=100, longest=50, num_predicted=15, num_read=17)
    assert memory.weights == 4 * counted
    assert step_memory(config, num_tokens=100, longest=50).weights == 4 * without


def test_more_of_anything_needs_more_and_recomputing_less():
    config = encoder_config("base", 30_522)
    asked = {"num_tokens": 8_192, "longest": 128, "num_predicted": 1_229, "num_read": 1_293}
    usual = step_memory(config, **asked)
    assert usual.peak == sum(
        (usual.weights, usual.gradients, usual.optimizer, usual.compute_copies, usual.activations,
         usual.logits, usual.working)
    )  # fmt: skip
    for more in (
        {"num_tokens": 16_384}, {"dtype": torch.float32}, {"backend": "plain"},
        {"optimizer_buffers": 3}, {"num_predicted": 4_000, "num_read": 4_064},
    ):  # fmt: skip
        assert step_memory(config, **{**asked, **more}).peak > usual.peak
    recomputed = [step_memory(config, **asked, checkpointed_layers=n).peak for n in range(12)]
    assert recomputed == sorted(recomputed, reverse=True)
    assert step_memory(config, **asked, backend="flash").peak < (
        step_memory(config, **asked, backend="plain").peak
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_tokens": 0}, "num_tokens must be at least 1, got 0"),
        ({"longest": 101}, r"longest must lie in \[1, 100\], got 101"),
        ({"num_predicted": 101}, r"num_predicted must lie in \[0, 100\], got 101"),
        ({"num_read": 0}, r"num_read must lie in \[1, 100\], got 0"),
        ({"checkpointed_layers": 3}, r"checkpointed_layers must lie in \[0, 2\], got 3"),
        ({"backend": "gpu"}, "backend must be one of cpu, plain, flash, got 'gpu'"),
    ],
)
def test_impossible_numbers_are_refused(settings, message):
    asked = {"num_tokens": 100, "longest": 50, **settings}
    with pytest.raises(ValueError, match=message):
        step_memory(encoder_config("tiny", 100), **asked)
