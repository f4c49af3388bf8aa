"""A GPU's attention: its dropout is a function of the key, its rate exact, its gradient its own."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bert_core.backends.attention_dropout import attention_dropout
from bert_core.backends.context import computing
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.flash import attend_flash, kernel_rate
from bert_core.backends.operations import backend_for
from bert_core.model.catalogue import PretrainingModel
from bert_core.model.preparation import checkpoint_activations
from tests.bert_core.batches import pretraining_batch, ragged_batch, small_config

LENGTHS = (128, 7, 90, 128)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.3, 0.5, 0.999])
def test_the_kernel_s_bytes_and_its_scale_belong_together(rate):
    taken = kernel_rate(rate)
    num_kept_bytes = math.floor(255 * (1 - taken)) + 1  # as the kernel counts them
    assert num_kept_bytes / 256 == 1 - taken
    assert abs(taken - rate) <= 1 / 256


def test_a_rate_of_a_tenth_is_26_of_256():
    assert kernel_rate(0.1) == 26 / 256


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_kernel_is_asked_without_making_a_tensor_of_the_host(rate):
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.extend(each for each in tree_leaves(out) if isinstance(each, torch.Tensor))
            return out

    qkv = torch.randn(sum(LENGTHS), 3, 4, 64, dtype=torch.bfloat16, device="meta")
    tokens = ragged_batch(LENGTHS).to("meta")
    dropped = attention_dropout(DropoutKey.at(1, 2, 3), rate)
    with Made():
        out = attend_flash(qkv, tokens, False, dropped)
    assert out.shape == (sum(LENGTHS), 256)
    assert {tensor.device.type for tensor in made} == {"meta"}


def attend(qkv, key, rate=0.1):
    device = torch.device("cuda")
    backend = backend_for(device)
    layout = backend.lay_out(ragged_batch(LENGTHS).to(device))
    return backend.attend(qkv, layout, False, attention_dropout(key, rate))


def random_qkv(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(LENGTHS), 3, 4, 64, generator=generator).cuda().bfloat16()


def key(layer=0, step=0):
    return DropoutKey.at(1, step, 2, "cuda").at_layer(layer)


@pytest.mark.gpu
@needs_gpu
def test_what_is_dropped_depends_on_the_key_alone():
    qkv = random_qkv()
    before = torch.cuda.get_rng_state()
    first = attend(qkv, key())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    torch.cuda.manual_seed(77)
    assert torch.equal(first, attend(qkv, key()))
    for other in (key(layer=1), key(step=1)):
        assert not torch.equal(first, attend(qkv, other))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_dropout_keeps_the_mean(rate):
    qkv = random_qkv()
    qkv[:, 2] = 1  # each output is then the sum of the kept probabilities
    means = [attend(qkv, key(step=step), rate).double().mean() for step in range(50)]
    assert torch.stack(means).mean().item() == pytest.approx(1.0, abs=5e-4)


@pytest.mark.gpu
@needs_gpu
def test_the_way_back_drops_what_the_way_there_did():
    qkv = random_qkv().requires_grad_()
    mixed = attend(qkv, key(), 0.4)
    weights = torch.randn_like(mixed)
    mixed.backward(weights)
    # For given masks the output is linear in the values.
    found = (qkv.grad[:, 2].double() * qkv[:, 2].double()).sum()
    expected = (mixed.double() * weights.double()).sum()
    norm = mixed.double().norm() * weights.double().norm()
    assert abs(found - expected) < 1e-3 * norm


@pytest.mark.gpu
@needs_gpu
def test_layers_computed_a_second_time_have_the_same_gradients():
    torch.use_deterministic_algorithms(True)
    try:
        found = []
        for num_layers in (0, 2):
            torch.manual_seed(0)
            config = small_config(hidden_size=64, num_attention_heads=2, attention_dropout=0.3)
            model = PretrainingModel(config).cuda()
            checkpoint_activations(model, num_layers)
            with computing(torch.bfloat16):
                sums = model.loss_sums(pretraining_batch().to("cuda"), key())
                (sums["mlm"].total + sums["nsp"].total).backward()
            found.append([p.grad for p in model.parameters()])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, *found))
