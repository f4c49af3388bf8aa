"""Layers that are computed a second time give the same gradients, to the bit."""

import pytest
import torch

from bert_core.backends.context import computing
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import use_backend
from bert_core.model.catalogue import PretrainingModel, build_model
from bert_core.model.preparation import checkpoint_activations
from tests.bert_core.batches import pretraining_batch, small_config


def new_model(num_checkpointed, **overrides):
    torch.manual_seed(0)
    model = PretrainingModel(small_config(num_layers=3, **overrides))
    checkpoint_activations(model, num_checkpointed)
    return model


def gradients(num_checkpointed, dtype):
    model = new_model(num_checkpointed, hidden_dropout=0.2, attention_dropout=0.3)
    with computing(dtype):
        sums = model.loss_sums(pretraining_batch(), DropoutKey.at(0, 7, 2))
        (sums["mlm"].total + sums["nsp"].total).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_checkpointed", [1, 3])
def test_gradients_are_the_same_with_and_without_it(backend, dtype, num_checkpointed):
    without, with_it = gradients(0, dtype), gradients(num_checkpointed, dtype)
    for name, gradient in without.items():
        assert torch.equal(with_it[name], gradient), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_computed_again_as_it_was_whatever_holds_by_then(dtype):
    found = []
    for num_checkpointed in (0, 3):
        model = new_model(num_checkpointed)
        with use_backend("plain"), computing(dtype):
            loss = model.loss_sums(pretraining_batch(), DropoutKey.at(0, 0, 0))["mlm"].total
        loss.backward()  # outside of the blocks
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient), name


def test_less_is_kept_for_the_way_back():
    kept = []
    for num_checkpointed in (0, 3):
        seen = {}

        def keep(tensor, seen=seen):
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        model = new_model(num_checkpointed)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.loss_sums(pretraining_batch((64,) * 8), DropoutKey.at(0, 0, 0))
        kept.append(sum(seen.values()))
    assert kept[1] < 0.4 * kept[0]


def test_what_does_not_exist_cannot_be_computed_again():
    model = build_model("encoder", small_config(num_layers=2))
    with pytest.raises(ValueError, match=r"num_layers must lie in \[0, 2\], got 3"):
        checkpoint_activations(model, 3)
    checkpoint_activations(model, 2)
    checkpoint_activations(model, 0)
