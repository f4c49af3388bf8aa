"""Layers that torch compiles, as on a GPU: one graph for ragged batches of every size."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from bert_core.backends.context import computing
from bert_core.backends.operations import use_backend
from bert_core.model.catalogue import PretrainingModel
from tests.bert_core.batches import pretraining_batch, small_config

BATCHES = ((3, 17, 64, 5, 64, 29), (9, 9), (40, 2, 2, 31))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def new_model(**settings):
    torch.manual_seed(0)
    return PretrainingModel(small_config(num_layers=3, **settings))


def gradients(model, batch, key, dtype=torch.float32):
    model.zero_grad()
    with use_backend("plain"), computing(dtype):
        sums = model.loss_sums(batch, key)
        sum(total / count for total, count in sums.values()).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def compiled(model, backend):
    for layer in model.encoder.layers:
        layer.compile(fullgraph=True, dynamic=True, backend=backend)
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo looks, and hides it otherwise
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_layers_compute_the_same_in_few_graphs(dtype):
    counting = CompileCounterWithBackend("aot_eager")
    model, twin = compiled(new_model(), counting), new_model()
    assert set(model.state_dict()) == set(twin.state_dict())
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for step, lengths in enumerate(BATCHES):
        batch = pretraining_batch(lengths, seed=step)
        ours, expected = (gradients(each, batch, None, dtype) for each in (model, twin))
        for name, gradient in ours.items():
            torch.testing.assert_close(gradient, expected[name], atol=tolerance, rtol=tolerance)
    assert counting.frame_count <= 3  # the layers but for the last, and that one
