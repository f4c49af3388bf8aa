"""Gradients that travel while backward runs are those of one exchange at its end, to the bit.

And a step that ranks share is the step that one of them would take alone.
"""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist

from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import use_backend
from bert_core.batch import LabelledBatch
from bert_core.model.catalogue import PretrainingModel, SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.arena import GradientExchange
from bert_core.training.loop import optimizer_step
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import pretraining_batch, ragged_batch, small_config
from tests.bert_core.ranks import run_ranks

NUM_LAYERS = 4
BUCKET_MEGABYTES = 0.03  # so that each layer of the small model has buckets of its own


def new_model(case="pretraining"):
    torch.manual_seed(0)
    config = small_config(num_layers=NUM_LAYERS)
    if case in ("pretraining", "plain"):
        return PretrainingModel(config)
    if case.startswith("siamese"):
        return Siamese(config)
    model = SequenceClassifier(config, 3)
    freezing = {
        "classifier": {},
        "lower layers frozen": {"embeddings": True, "layers": 2},
        "encoder frozen": {"embeddings": True, "layers": NUM_LAYERS},
        "vectors alone": {},
    }[case]
    if freezing:
        freeze(model, **freezing)
    if case == "vectors alone":  # biases and normalizations, as in BitFit
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.dim() == 1)
    return model


def batch(model, seed):
    if isinstance(model, PretrainingModel):
        return pretraining_batch(seed=seed)
    tokens = ragged_batch((12, 5, 30, 12), seed=seed)
    return LabelledBatch.from_arrays(tokens, np.random.default_rng(seed).integers(0, 3, 4))


def backward(model, seed, block=nullcontext):
    """Add gradients up: autograd, or what the block has weights for does it itself."""
    with block():
        losses = model.loss_sums(batch(model, seed), DropoutKey.at(0, 0, seed))
        torch.stack([loss.total for loss in losses.values()]).sum().backward()


class Siamese(PretrainingModel):
    """Reads a second batch in the same forward pass."""

    def loss_sums(self, batch, dropout_key=None):
        first = super().loss_sums(batch, dropout_key)
        second = super().loss_sums(pretraining_batch(seed=99), dropout_key)
        return {**first, **{f"{name} again": loss for name, loss in second.items()}}


def exchange_of(model, arena, dtype="float32"):
    names = [name for name, _ in model.named_parameters()]
    return GradientExchange(arena, names, dtype, BUCKET_MEGABYTES)


def both_ways(rank, case, idle_rank, dtype, adds_itself=True):
    """Gradients after buckets, after one exchange, buckets sent early, buckets."""
    model = new_model(case)
    arena = AdamW(model, OptimizationConfig(num_steps=1)).arena
    block = partial(arena.computing, torch.float32) if adds_itself else nullcontext
    gradients = {}
    for way in ("buckets", "at once"):
        arena.gradients.zero_()
        both = exchange_of(model, arena, dtype)
        if rank != idle_rank:
            backward(model, 10 * rank, block)
            with both.while_backward():
                backward(model, 10 * rank + 1, block)
        if way == "buckets":
            num_early = len(both._sent)
            sizes = [sent.numel() for _, sent in both._sent]
            both.finish()
        else:  # what was sent must be received, then it is the ranks' own again
            both.finish()
            arena.gradients.zero_()
            if rank != idle_rank:
                backward(model, 10 * rank, block)
                backward(model, 10 * rank + 1, block)
            dist.all_reduce(arena.gradients)
        gradients[way] = arena.gradients.tolist()
    planned = [bucket.end - bucket.begin for bucket in both._buckets]
    assert sizes == planned[:num_early]
    return gradients, num_early, len(planned)


CASES = (
    "pretraining", "classifier", "lower layers frozen", "encoder frozen", "vectors alone",
    "siamese",
)  # fmt: skip


def every_case(rank):
    exact = {
        (case, adds_itself): both_ways(rank, case, None, "float32", adds_itself)
        for case in CASES
        for adds_itself in (True, False)
    }
    with use_backend("plain"):
        exact["plain", False] = both_ways(rank, "plain", None, "float32", adds_itself=False)
    return exact | {"bf16": both_ways(rank, "pretraining", None, "bf16")}


@pytest.fixture(scope="module")
def ranks():
    """What two ranks found in every case."""
    return run_ranks(every_case, 2)


@pytest.mark.parametrize("adds_itself", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_buckets_of_two_ranks_have_the_bits_of_one_exchange(ranks, case, adds_itself):
    assert_bits_of_one_exchange(ranks, case, adds_itself)


def test_the_plain_backend_sends_the_same_bits_early(ranks):
    assert_bits_of_one_exchange(ranks, "plain", adds_itself=False)


def assert_bits_of_one_exchange(ranks, case, adds_itself):
    first, second = (rank[case, adds_itself] for rank in ranks)
    for gradients, num_early, num_buckets in (first, second):
        assert gradients["buckets"] == gradients["at once"]
        assert any(gradients["buckets"])
        assert num_early == num_buckets
    assert first[0]["buckets"] == second[0]["buckets"]


def test_three_ranks_of_which_one_is_idle_send_alike():
    ranks = run_ranks(both_ways, 3, "pretraining", 1, "float32")
    assert ranks[1][1] == 0  # nothing of the idle one's was early
    assert ranks[0][1] > NUM_LAYERS
    for gradients, *_ in ranks:
        assert gradients["buckets"] == ranks[0][0]["buckets"]
        torch.testing.assert_close(
            torch.tensor(gradients["buckets"]), torch.tensor(gradients["at once"]),
            atol=1e-5, rtol=1e-5,
        )  # fmt: skip


def test_in_bfloat16_gradients_are_sums_of_rounded_ones(ranks):
    gradients = ranks[0]["bf16"][0]
    assert gradients["buckets"] == ranks[1]["bf16"][0]["buckets"]
    exact, rounded = (torch.tensor(gradients[way]) for way in ("at once", "buckets"))
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert not torch.equal(rounded, exact)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.9999


def one_step(rank, dtype):
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    optimizer.exchange = exchange_of(model, optimizer.arena)  # many buckets
    mine = [(rank, pretraining_batch(seed=rank)), (rank + 2, pretraining_batch(seed=rank + 2))]
    report = optimizer_step(model, optimizer, mine, seed=0, step=0, dtype=dtype)
    return float(report.grad_norm), optimizer.arena.values.tolist()


def test_a_step_of_two_ranks_is_a_step_of_one():
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    batches = [(index, pretraining_batch(seed=index)) for index in range(4)]
    report = optimizer_step(model, optimizer, batches, seed=0, step=0, dtype=torch.bfloat16)
    first, second = run_ranks(one_step, 2, torch.bfloat16)
    assert first == second
    assert first[0] == pytest.approx(float(report.grad_norm), rel=1e-3)
