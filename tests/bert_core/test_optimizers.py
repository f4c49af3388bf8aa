"""Each optimizer against a plain reference for 50 steps, and what holds for all of them."""

import re

import pytest
import torch

from bert_core.model import PretrainingModel, SequenceClassifier, freeze
from bert_core.training import Position, load_checkpoint, save_checkpoint, train
from bert_core.training.depth import depths
from bert_core.training.optimization import (
    LAMB,
    OPTIMIZERS,
    AdamW,
    Muon,
    NonFiniteGradientError,
    OptimizationConfig,
    build_optimizer,
)
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.test_loop import needs_gpu

NUM_STEPS, RATE, DECAY = 50, 5e-3, 0.1
NUM_LAYERS = 2


@pytest.fixture(autouse=True)
def one_thread():
    """Such small products wait for a second thread longer than they take."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def new_model():
    torch.manual_seed(0)
    return PretrainingModel(small_config())


def new_run(name, **settings):
    model = new_model()
    config = OptimizationConfig(
        optimizer=name, num_steps=NUM_STEPS, learning_rate=RATE, weight_decay=DECAY, **settings
    )
    return model, build_optimizer(model, config)


def draw_gradients(model, step):
    """Fill the gradients of `model` as every model's at this step."""
    generator = torch.Generator().manual_seed(step)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.grad is not None:
            scale = 10.0 ** (len(name) % 4 - 3)  # of different sizes
            parameter.grad.copy_(torch.randn(parameter.shape, generator=generator) * scale)


def rate_scale(name, layer_decay):
    """Of the paper's fine-tuning: embeddings lowest, heads the whole rate."""
    layer = re.match(r"encoder\.layers\.(\d+)\.", name)
    if layer:
        return layer_decay ** (NUM_LAYERS - int(layer[1]))
    return layer_decay ** (NUM_LAYERS + 1) if name.startswith("encoder.") else 1.0


class Reference:
    """The parameters of BERT as published, each by itself: queries, keys and values are three."""

    def __init__(self, model, layer_decay, dtype=torch.float32):
        self.parts = {}
        for name, parameter in model.named_parameters():
            pieces = parameter.detach().clone().to(dtype)
            pieces = pieces.chunk(3) if "to_qkv.weight" in name else (pieces,)
            self.parts[name] = [torch.nn.Parameter(piece.clone()) for piece in pieces]
        self.layer_decay = layer_decay

    def group(self, name):
        scale = rate_scale(name, self.layer_decay)
        is_vector = self.parts[name][0].ndim == 1
        return {
            "params": self.parts[name],
            "scale": scale,
            "weight_decay": 0.0 if is_vector else DECAY,
            "is_hidden": not is_vector and "encoder.layers." in name,
        }

    def groups(self):
        return [self.group(name) for name in self.parts]

    def take_gradients(self, model, divisor):
        for name, parameter in model.named_parameters():
            gradients = parameter.grad / divisor
            chunks = gradients.chunk(3) if "to_qkv.weight" in name else (gradients,)
            for part, gradient in zip(self.parts[name], chunks, strict=True):
                part.grad = gradient.clone().to(part.dtype)

    def assert_near(self, model, tolerance):
        for name, parameter in model.named_parameters():
            theirs = torch.cat([part.detach() for part in self.parts[name]]).float()
            torch.testing.assert_close(parameter.detach(), theirs, atol=tolerance, rtol=0, msg=name)


class TorchAdamW(Reference):
    def __init__(self, model, layer_decay, choose=lambda group: True):
        super().__init__(model, layer_decay)
        groups = [group for group in self.groups() if choose(group)]
        self.optimizers = [torch.optim.AdamW(groups, lr=RATE, eps=1e-6)]

    def step(self, rate):
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            optimizer.step()


class TorchMuon(TorchAdamW):
    adjustment = "match_rms_adamw"

    def __init__(self, model, layer_decay):
        super().__init__(model, layer_decay, lambda group: not group["is_hidden"])
        hidden = [group for group in self.groups() if group["is_hidden"]]
        assert len(hidden) == 4 * NUM_LAYERS
        self.optimizers.append(torch.optim.Muon(hidden, lr=RATE, adjust_lr_fn=self.adjustment))


class TorchOriginalMuon(TorchMuon):
    adjustment = "original"


class WrittenLAMB(Reference):
    """Algorithm 2 of the paper in float64, parameter by parameter."""

    def __init__(self, model, layer_decay):
        super().__init__(model, layer_decay, torch.float64)
        self.moments = {}
        self.count = 0

    @torch.no_grad()
    def step(self, rate):
        self.count += 1
        for group in self.groups():
            for x in group["params"]:
                m, v = self.moments.get(x, (torch.zeros_like(x), torch.zeros_like(x)))
                m = 0.9 * m + 0.1 * x.grad
                v = 0.999 * v + 0.001 * x.grad**2
                self.moments[x] = m, v
                corrected = m / (1 - 0.9**self.count), v / (1 - 0.999**self.count)
                update = corrected[0] / (corrected[1].sqrt() + 1e-6)
                if x.ndim > 1:
                    update = update + group["weight_decay"] * x
                    update = update * (x.norm() / update.norm())
                x -= rate * group["scale"] * update


REFERENCES = {
    "adamw": ("adamw", TorchAdamW, {}, 2e-6),
    "lamb": ("lamb", WrittenLAMB, {}, 1e-5),
    "muon": ("muon", TorchMuon, {}, 1e-5),
    "muon, original": ("muon", TorchOriginalMuon, {"muon_rate": "original"}, 1e-5),
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
        assert optimizer.update(rate, divisor=torch.tensor(2.0))
        reference.step(rate)
    reference.assert_near(model, tolerance)
    moved = [(p - before[n]).abs().max() for n, p in model.named_parameters()]
    assert min(moved) > 20 * tolerance


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
def test_halting_changes_nothing_any_more(name):
    model, optimizer = new_run(name, averaging_decay=0.5)
    draw_gradients(model, 0)
    assert optimizer.update(0.01)
    before = optimizer.arena.values.clone()
    state = {
        key: {n: t.clone() for n, t in value.items()}
        for key, value in optimizer.state_dict().items()
        if isinstance(value, dict)
    }
    for value, halt in ((torch.nan, True), (torch.inf, False), (1.0, False)):
        optimizer.arena.gradients.fill_(value)
        divisor = torch.tensor(value)
        assert not optimizer.update(0.1, divisor=divisor, halt=torch.tensor(halt))
    assert torch.equal(optimizer.arena.values, before)
    assert optimizer.num_updates == 1
    with optimizer.averaged():
        assert torch.equal(optimizer.arena.values, before)  # the average of one
    optimizer._is_halted.zero_()  # what `state_dict` would refuse to show
    for key, value in optimizer.state_dict().items():
        if isinstance(value, dict):
            assert all(torch.equal(state[key][n], t) for n, t in value.items()), key


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_asks_the_host_for_nothing_on_a_gpu(name):
    model = new_model().cuda()
    config = OptimizationConfig(
        optimizer=name, num_steps=9, layer_decay=0.8, averaging_decay=0.9, max_grad_norm=1.0
    )
    optimizer = build_optimizer(model, config)
    optimizer.arena.gradients.normal_()
    halts = torch.tensor([False, True, False], device="cuda").unbind()
    optimizer.update(0.01)  # what is compiled or set up once may wait
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for halt in halts:
            optimizer.update(0.01, divisor=torch.ones((), device="cuda"), halt=halt)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert optimizer.num_updates == 2
    with pytest.raises(NonFiniteGradientError):
        optimizer.raise_if_halted()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_saved_and_resumed_run_ends_with_the_same_bits(tmp_path, name):
    def micro_batches(step):
        yield 0, pretraining_batch(seed=step)

    settings = {"layer_decay": 0.8, "averaging_decay": 0.6}

    def after(model, optimizer, first, last):
        for _ in train(model, optimizer, micro_batches, seed=1, first_step=first, num_steps=last):
            pass
        with optimizer.averaged():
            averaged = optimizer.arena.values.clone()
        return optimizer.arena.values, averaged

    whole = after(*new_run(name, **settings), 0, 6)
    model, optimizer = new_run(name, **settings)
    after(model, optimizer, 0, 3)
    save_checkpoint(tmp_path / "three", model, optimizer, Position(seed=1, step=3))
    model, optimizer = new_run(name, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    position = load_checkpoint(tmp_path / "three", model, optimizer)
    assert (position.step, optimizer.num_updates) == (3, 3)
    resumed = after(model, optimizer, 3, 6)
    assert torch.equal(whole[0], resumed[0])
    assert torch.equal(whole[1], resumed[1])
    assert not torch.equal(whole[0], whole[1])


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


def test_the_state_of_another_optimizer_or_without_its_average_is_refused():
    _, adamw = new_run("adamw")
    _, lamb = new_run("lamb")
    with pytest.raises(ValueError, match=r"be that of lamb without an average.* that of adamw"):
        lamb.load_state_dict(adamw.state_dict())
    _, averaged = new_run("adamw", averaging_decay=0.9)
    with pytest.raises(ValueError, match=r"adamw with an average.* adamw without an average"):
        averaged.load_state_dict(adamw.state_dict())
    with pytest.raises(ValueError, match=r"adamw without an average.* adamw with an average"):
        adamw.load_state_dict(averaged.state_dict())


def test_a_state_that_was_saved_before_there_were_other_optimizers_is_taken_up():
    model, optimizer = new_run("adamw")
    draw_gradients(model, 0)
    optimizer.update(0.01)
    old = {k: v for k, v in optimizer.state_dict().items() if k != "optimizer"}
    _, other = new_run("adamw")
    other.load_state_dict(old)
    assert other.num_updates == 1


def test_without_layer_decay_there_are_two_groups_in_the_models_order():
    model, optimizer = new_run("adamw")
    names = [name for name, _ in model.named_parameters()]
    parameters = dict(model.named_parameters())
    expected = sorted(names, key=lambda name: parameters[name].ndim < 2)
    assert list(optimizer.arena.names()) == expected
    assert [(g.kind, g.weight_decay) for g in optimizer._groups] == [
        ("matrix", DECAY), ("vector", 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_are_slices_and_matrices_come_first(name):
    model, optimizer = new_run(name, layer_decay=0.5, rate_scales={"*.bias": 2.0})
    parameters, begin = dict(model.named_parameters()), 0
    for segment in optimizer._segments:
        assert segment.begin == begin
        begin += segment.values.numel()
    assert begin == optimizer.arena.values.numel()
    order = [parameters[name].ndim < 2 for name in optimizer.arena.names()]
    assert order == sorted(order)
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 2.0 * 0.5
    assert scales["encoder.layers.0.attention.to_out.weight"] == 0.25
    assert scales["encoder.embeddings.token"] == 0.125
    assert scales["next_sentence_head.dense.weight"] == scales["pooler.dense.weight"] == 1.0


def test_of_several_patterns_the_first_that_fits_counts():
    _, optimizer = new_run("adamw", rate_scales={"encoder.layers.1.*": 3.0, "encoder.*": 2.0})
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 3.0
    assert scales["encoder.layers.0.attention.to_out.bias"] == 2.0
    assert scales["vocabulary_head.bias"] == 1.0


def test_frozen_layers_keep_the_rates_of_the_others():
    torch.manual_seed(0)
    model = SequenceClassifier(small_config(), 2)
    freeze(model, embeddings=True, layers=1)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1, layer_decay=0.5))
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 0.5
    assert not any(name.startswith("encoder.layers.0") for name in scales)


def test_depths_follow_the_layers():
    names = ["encoder.embeddings.token", "encoder.layers.0.x", "encoder.layers.11.x", "pooler.x"]
    assert list(depths(names).values()) == [0, 1, 12, 13]
    assert depths(["encoder.new", "head.x"]) == {"encoder.new": 0, "head.x": 1}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer must be adamw, lamb or muon, got 'sgd'"),
        ({"layer_decay": 0.0}, r"layer_decay must lie in \(0, 1\], got 0.0"),
        ({"rate_scales": {"a*": 0.0}}, "rate_scales must be positive, got 0.0 for 'a\\*'"),
        ({"averaging_decay": 1.0}, r"averaging_decay must lie in \[0, 1\), got 1.0"),
        ({"muon_momentum": 1.0}, r"muon_momentum must lie in \[0, 1\), got 1.0"),
        ({"muon_rate": "x"}, "muon_rate must be match_rms_adamw or original, got 'x'"),
        ({"exchange_dtype": "fp8"}, "exchange_dtype must be float32 or bf16, got 'fp8'"),
        ({"bucket_megabytes": 0}, "bucket_megabytes must be positive, got 0"),
    ],
)
def test_impossible_settings_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        OptimizationConfig(**{"num_steps": 10, **entry})


def test_what_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match=r"none that fits 'decoder\.\*'"):
        new_run("adamw", rate_scales={"decoder.*": 2.0})
    config = OptimizationConfig(num_steps=1, layer_decay=0.9)
    with pytest.raises(ValueError, match=r"layer_decay must be 1\.0 for a model without"):
        AdamW(torch.nn.Linear(2, 2), config)


@pytest.mark.parametrize("kind", [AdamW, LAMB, Muon])
def test_each_class_takes_any_config(kind):
    assert kind(new_model(), OptimizationConfig(num_steps=1)).name == kind.name
