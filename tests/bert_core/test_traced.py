"""A compiler sees the plain backend's step, loss and gradients, as one graph for ragged batches.

`fullgraph` fails at a graph break or a number read back to Python; few graphs serve all batches.
"""

import shutil
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.testing import CompileCounterWithBackend

from bert_core.backends.context import computing
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import use_backend
from bert_core.model.catalogue import build_model
from bert_core.training.compilation import CompiledLayers
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.step import step_gradients
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.test_precision import batch_for

BATCHES = ((3, 17, 64, 5, 64, 29), (9, 9), (40, 2, 2, 31), (64,) * 7, (1, 50, 8, 33, 12))
HEAD_SETTINGS = {
    "pretraining": {}, "language_model": {}, "next_sentence": {}, "regression": {},
    "multiple_choice": {}, "span_prediction": {},
    "sequence_classification": {"num_labels": 3}, "multi_label_classification": {"num_labels": 3},
    "token_classification": {"num_labels": 5},
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def new_model(head="pretraining", **overrides):
    torch.manual_seed(0)
    config = small_config(causal=head == "language_model", **overrides)
    return build_model(head, config, **HEAD_SETTINGS[head])


def gradients(model, loss_sums, batch, key):
    model.zero_grad()
    sums = loss_sums(batch, key)
    sum(total / count for total, count in sums.values()).backward()
    losses = {name: total.detach() for name, (total, _) in sums.items()}
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_traced_in_few_graphs(model, compiler, dtype, batches):
    counting = CompileCounterWithBackend(compiler)
    compiled = torch.compile(model.loss_sums, fullgraph=True, dynamic=True, backend=counting)
    for step, lengths in enumerate(batches):
        batch = pretraining_batch(lengths, seed=step)
        key = DropoutKey.at(5, step, 0)
        with use_backend("plain"), computing(dtype):
            losses, found = gradients(model, compiled, batch, key)
            expected_losses, expected = gradients(model, model.loss_sums, batch, key)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        for name, loss in losses.items():
            torch.testing.assert_close(loss, expected_losses[name], atol=0, rtol=tolerance)
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], atol=tolerance, rtol=tolerance)
    assert counting.frame_count <= 2  # a batch of one size in every respect may have its own


def test_a_step_on_ragged_batches_is_one_graph():
    model = new_model(hidden_dropout=0.1, attention_dropout=0.1, num_layers=1)
    assert_traced_in_few_graphs(model, "aot_eager", torch.bfloat16, BATCHES)


@pytest.mark.slow
def test_so_is_that_of_a_deeper_model_in_float32():
    model = new_model(hidden_dropout=0.1, attention_dropout=0.1, num_layers=3)
    assert_traced_in_few_graphs(model, "aot_eager", torch.float32, BATCHES)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_compiler_makes_of_it_computes_the_same(dtype):
    model = new_model(hidden_dropout=0.1, attention_dropout=0.1, num_layers=1)
    assert_traced_in_few_graphs(model, "inductor", dtype, BATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("head", HEAD_SETTINGS)
def test_the_step_of_every_head_is_one_graph(head):
    model = new_model(head, num_layers=1)
    compiled = torch.compile(model.loss_sums, fullgraph=True, dynamic=True, backend="aot_eager")
    key = DropoutKey.at(0, 0, 0)
    with use_backend("plain"):
        losses, found = gradients(model, compiled, batch_for(head), key)
        expected_losses, expected = gradients(model, model.loss_sums, batch_for(head), key)
    assert losses == expected_losses
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_checkpointed_layers_are_traced_too():
    model = new_model(hidden_dropout=0.1)
    model.encoder.num_checkpointed_layers = 1
    compiled = torch.compile(model.loss_sums, fullgraph=True, dynamic=True, backend="aot_eager")
    batch, key = pretraining_batch(), DropoutKey.at(0, 0, 0)
    with use_backend("plain"), torch._dynamo.config.patch(specialize_float=True):
        _, found = gradients(model, compiled, batch, key)
        _, expected = gradients(model, model.loss_sums, batch, key)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks, and hides it otherwise
def test_one_graph_serves_all_layers_of_a_model_that_trains_compiled():
    model, twin = (new_model(hidden_dropout=0.1, num_layers=12) for _ in range(2))
    names = set(model.state_dict())
    traced = Counter()

    def compiler(graph, inputs):
        traced[len(inputs)] += 1
        return aot_eager(graph, inputs)

    layers = CompiledLayers(model, compiler)
    for step, lengths in enumerate(BATCHES[:3]):
        batch, key = pretraining_batch(lengths, seed=step), DropoutKey.at(0, step, 0)
        with layers.computing():
            _, found = gradients(model, model.loss_sums, batch, key)
        with use_backend("plain"):
            _, expected = gradients(twin, twin.loss_sums, batch, key)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)
    # Embeddings, the vocabulary's loss, pooler and head; the layers but for the last, and that.
    assert traced.total() == 6
    assert set(model.state_dict()) == names
    num_traced = traced.total()
    assert num_traced > 0
    model.loss_sums(batch, key)  # outside of the block the model is what it was
    assert traced.total() == num_traced
    assert "forward" not in model.encoder.layers[0].__dict__


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_compiled_step_and_evaluation_multiply_by_the_step_s_copies():
    found = []

    def compiler(graph, inputs):
        traced.append([each.dtype for each in inputs if getattr(each, "ndim", 0) == 2])
        return aot_eager(graph, inputs)

    for is_compiled in (True, False):
        model, traced = new_model(hidden_dropout=0.1, num_layers=4), []
        optimizer = AdamW(model, OptimizationConfig(num_steps=2))
        layers = CompiledLayers(model, compiler).computing if is_compiled else nullcontext
        with use_backend("plain"), layers():
            for step, lengths in enumerate(BATCHES[:2]):
                batches = [(index, pretraining_batch(lengths, seed=index)) for index in range(2)]
                step_gradients(model, optimizer, batches, seed=0, step=step, dtype=torch.bfloat16)
                found.append(optimizer.arena.gradients.clone())
            num_traced = len(traced)
            with optimizer.arena.computing(torch.bfloat16):
                sums = model.evaluation_sums(pretraining_batch())
            found.append(torch.stack([each.total for each in sums.values()]))
        if is_compiled:
            assert num_traced == 6  # as above: copies make no graphs of their own
            assert len(traced) - num_traced <= 5
            assert [torch.float32 in each for each in traced[:6]].count(True) == 1  # embeddings
    for ours, expected in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_hooks_between_compiled_layers_are_called():
    model = new_model(num_layers=2)
    layers, seen = CompiledLayers(model, "aot_eager"), []

    def watch(index):
        def before_forward(layer, arguments):
            arguments[0].register_hook(lambda gradient: seen.append(index))

        return before_forward

    for index, layer in enumerate(model.encoder.layers):
        layer.register_forward_pre_hook(watch(index))
    with layers.computing():
        gradients(model, model.loss_sums, pretraining_batch(), None)
    assert seen == [1, 0]
