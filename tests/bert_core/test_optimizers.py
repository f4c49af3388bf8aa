"""Each optimizer against a plain reference for 50 steps, and what holds for all of them."""

import pytest
import torch

from bert_core.backends.context import computing
from bert_core.model.catalogue import PretrainingModel
from bert_core.training import optimization
from bert_core.training.loop import train
from bert_core.training.optimization import OPTIMIZERS, build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.optimizer_references import TorchAdamW, TorchMuon, WrittenLAMB
from tests.bert_core.optimizer_runs import DECAY, NUM_STEPS, draw_gradients, new_run

REFERENCES = {
    "adamw": ("adamw", TorchAdamW, {}, 2e-6),
    "lamb": ("lamb", WrittenLAMB, {}, 1e-5),
    "muon": ("muon", TorchMuon, {}, 1e-5),
}


@pytest.mark.parametrize("layer_decay", [1.0, 0.7])
@pytest.mark.parametrize("case", REFERENCES)
def test_fifty_updates_equal_those_of_the_reference(case, layer_decay):
    name, kind, settings, tolerance = REFERENCES[case]
    model, optimizer = new_run(name, layer_decay=layer_decay, warmup_steps=5, **settings)
    reference = kind(model, layer_decay)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step in range(NUM_STEPS):
        draw_gradients(model, step)
        reference.take_gradients(model, 2.0)
        rate = optimizer.config.learning_rate_at(step)
        with computing(torch.bfloat16):  # as torch's Muon always computes
            assert optimizer.update(rate, divisor=torch.tensor(2.0))
        reference.step(rate)
    reference.assert_near(model, tolerance)
    moved = [(p - before[n]).abs().max() for n, p in model.named_parameters()]
    assert min(moved) > 20 * tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_muons_iteration_is_its_polynomial_of_the_singular_values(dtype, tolerance):
    torch.manual_seed(0)
    matrices = torch.randn(3, 48, 20)
    with computing(dtype):
        ours = optimization.orthogonalized(matrices)
    assert ours.dtype == dtype
    left, values, right = torch.linalg.svd(matrices.double(), full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = left @ torch.diag_embed(values) @ right
    torch.testing.assert_close(ours.double(), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("float32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_muon_computes_in_the_precision_of_the_training_run(monkeypatch, precision, dtype):
    model, optimizer = new_run("muon")
    dtypes = []

    def orthogonalized(matrices):
        result = original(matrices)
        dtypes.append(result.dtype)
        return result

    original = optimization.orthogonalized
    monkeypatch.setattr(optimization, "orthogonalized", orthogonalized)
    batches = [(0, pretraining_batch())]
    for _ in train(
        model, optimizer, lambda step: batches, seed=0, num_steps=1, precision=precision
    ):
        pass
    assert set(dtypes) == {dtype}


def test_lamb_moves_what_is_zero_at_the_plain_rate():
    model, optimizer = new_run("lamb")
    with torch.no_grad():
        model.pooler.dense.weight.zero_()
    draw_gradients(model, 0)
    gradient = model.pooler.dense.weight.grad.clone()
    optimizer.update(0.01)
    moved = (gradient / (gradient.abs() + 1e-6)).mul(-0.01)
    torch.testing.assert_close(model.pooler.dense.weight.detach(), moved, atol=1e-6, rtol=0)


def test_what_has_no_gradient_stays_but_for_its_decay():
    for name in OPTIMIZERS:
        model, optimizer = new_run(name)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        assert optimizer.update(0.01)
        decays = {"adamw": 0.01 * DECAY, "lamb": 0.01, "muon": 0.01 * DECAY}
        for n, parameter in model.named_parameters():
            kept = before[n] * (1 - decays[name] * (parameter.ndim > 1))
            torch.testing.assert_close(parameter.detach(), kept, atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_is_left_out_changes_nothing(name):
    model, optimizer = new_run(name)
    draw_gradients(model, 0)
    assert optimizer.update(0.01)
    before = optimizer.arena.values.clone()
    state = {
        key: {n: t.clone() for n, t in value.items()}
        for key, value in optimizer.state_dict().items()
        if isinstance(value, dict)
    }
    for value in (torch.nan, torch.inf, 1.0):
        optimizer.arena.gradients.fill_(value)
        divisor = torch.tensor(value)
        assert not optimizer.update(0.1, divisor=divisor, skip=torch.tensor(True))
    assert torch.equal(optimizer.arena.values, before)
    assert optimizer.num_updates == 1
    for key, value in optimizer.state_dict().items():
        if isinstance(value, dict):
            assert all(torch.equal(state[key][n], t) for n, t in value.items())
    draw_gradients(model, 1)
    assert optimizer.update(0.01)  # the next one is taken as if nothing had been
    other, unharmed = new_run(name)
    for step in (0, 1):
        draw_gradients(other, step)
        unharmed.update(0.01)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_and_resumed_run_ends_with_the_same_bits(tmp_path, name):
    def micro_batches(step):
        yield 0, pretraining_batch(seed=step)

    def after(model, optimizer, first, last):
        for _ in train(model, optimizer, micro_batches, seed=1, first_step=first, num_steps=last):
            pass
        return optimizer.arena.values

    whole = after(*new_run(name, layer_decay=0.8), 0, 6)
    model, optimizer = new_run(name, layer_decay=0.8)
    after(model, optimizer, 0, 3)
    save_checkpoint(tmp_path / "three", model, optimizer, Position(seed=1, step=3))
    model, optimizer = new_run(name, layer_decay=0.8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    position = load_checkpoint(tmp_path / "three", model, optimizer)
    assert (position.step, optimizer.num_updates) == (3, 3)
    assert torch.equal(whole, after(model, optimizer, 3, 6))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns_a_batch_by_heart(name):
    torch.manual_seed(0)
    model = PretrainingModel(small_config())
    config = OptimizationConfig(
        optimizer=name, num_steps=80, warmup_steps=8,
        learning_rate={"adamw": 5e-3, "lamb": 3e-2, "muon": 2e-2}[name],
    )  # fmt: skip
    batch = pretraining_batch(lengths=(12, 20))
    steps = train(model, build_optimizer(model, config), lambda step: [(0, batch)], seed=1)
    losses = [float(report.loss) for report in steps]
    assert losses[0] > 5.0
    assert losses[-1] < 1.0


def test_the_state_of_another_optimizer_is_refused():
    _, adamw = new_run("adamw")
    _, lamb = new_run("lamb")
    with pytest.raises(ValueError, match=r"must be that of lamb, found that of adamw"):
        lamb.load_state_dict(adamw.state_dict())
