"""Steps that are left out: which, when it is too many, and what a resumed run makes of them."""

import math

import pytest
import torch

from bert_core.training.guard import RECORD, WINDOW, Guard, GuardConfig, SkippedStepsError
from bert_core.training.loop import train
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.optimizer_runs import new_run
from tests.bert_core.ranks import run_ranks
from tests.bert_core.test_loop import assert_equal, micro_batches, weights

FINE = torch.tensor(1.0)


def guard_after(num_steps, max_grad_norm=None, norm=1.0, **settings):
    guard = Guard(GuardConfig(**settings), max_grad_norm, torch.device("cpu"))
    for step in range(num_steps):
        assert not guard.should_skip(step, FINE, torch.tensor(norm))
    return guard


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_left_out_from_the_first_step_on(value):
    guard = guard_after(0)
    assert guard.should_skip(0, torch.tensor(value), FINE)
    assert not guard.should_skip(1, FINE, FINE)
    assert guard.should_skip(2, FINE, torch.tensor(abs(value)))
    skipped = guard.new_skipped()
    assert [(each.step, each.limit) for each in skipped] == [(0, math.inf), (2, math.inf)]
    assert "loss of step 0 is not finite" in str(skipped[0])
    assert "gradient of step 2 is not finite" in str(skipped[1])


def test_a_norm_is_out_of_proportion_to_the_median_of_those_taken_once_there_are_enough():
    guard = guard_after(WINDOW - 1, spike_factor=10.0)
    assert not guard.should_skip(
        63, FINE, torch.tensor(1e6)
    )  # a first norm is compared with nothing
    assert not guard.should_skip(64, FINE, torch.tensor(10.0))
    assert guard.should_skip(65, FINE, torch.tensor(10.1))
    (skipped,) = guard.new_skipped()
    assert skipped[::3] == (65, 10.0)
    assert str(skipped).endswith("out of all proportion (norm 10.1, at most 10)")


def test_what_passes_unscaled_is_never_out_of_proportion_to_gradients_that_hardly_are():
    guard = guard_after(WINDOW, max_grad_norm=1.0, norm=1e-4)
    assert not guard.should_skip(WINDOW, FINE, torch.tensor(99.0))
    assert guard.should_skip(WINDOW, FINE, torch.tensor(101.0))


def test_norms_that_were_left_out_are_no_measure_and_rising_ones_are_followed():
    guard = guard_after(WINDOW, spike_factor=2.0, max_skipped_in_a_row=1000)
    for step in range(100):
        assert guard.should_skip(WINDOW + step, FINE, torch.tensor(2.5))
    norm = 1.0
    for step in range(500):
        norm *= 1.015
        assert not guard.should_skip(200 + step, FINE, torch.tensor(norm))
    assert norm > 1000


def test_a_guard_without_a_factor_takes_any_number():
    guard = guard_after(WINDOW, spike_factor=None)
    assert not guard.should_skip(WINDOW, FINE, torch.tensor(1e30))


def test_too_many_in_a_row_halt_and_one_that_was_taken_between_them_does_not():
    guard = guard_after(0, max_skipped_in_a_row=3)
    for step, loss in enumerate([math.nan, math.nan, 1.0, math.nan, math.nan]):
        guard.should_skip(step, torch.tensor(loss), FINE)
    assert not guard.is_halted
    assert [each.step for each in guard.new_skipped()] == [0, 1, 3, 4]  # the row goes on
    guard.should_skip(5, torch.tensor(math.nan), FINE)
    assert guard.is_halted
    assert guard.should_skip(6, FINE, FINE)
    assert [each.step for each in guard.new_skipped()] == [5]
    error = guard.error("largest gradients: none")
    assert str(error).startswith("3 steps in a row had to be skipped: the loss of step 5 is not")
    assert "; largest gradients: none; lower the learning rate, " in str(error)


def test_the_latest_skipped_steps_are_kept_until_they_are_read():
    guard = guard_after(0, max_skipped_in_a_row=10**6)
    for step in range(RECORD + 10):
        guard.should_skip(step, torch.tensor(math.nan), FINE)
    assert [each.step for each in guard.new_skipped()] == list(range(10, RECORD + 10))
    assert guard.new_skipped() == []


@pytest.mark.parametrize("settings", [{"spike_factor": 1.0}, {"max_skipped_in_a_row": 0}])
def test_settings_that_leave_everything_out_are_refused(settings):
    (name,) = settings
    with pytest.raises(ValueError, match=f"{name} must be"):
        GuardConfig(**settings)


POISONED = {1: math.nan, 3: 1e4, 4: 1e4, 7: math.inf}
GUARD = GuardConfig(spike_factor=20.0, max_skipped_in_a_row=3)


class Poisonous:
    """Scales the losses of single steps, as an overflow or a bad shard would."""

    def __init__(self, model, poisoned):
        self.model, self.poisoned, self.step = model, poisoned, 0
        self.unharmed = model.loss_sums
        model.loss_sums = self.loss_sums

    def loss_sums(self, batch, dropout):
        factor = self.poisoned.get(self.step, 1.0)
        sums = self.unharmed(batch, dropout)
        return {name: each._replace(total=each.total * factor) for name, each in sums.items()}

    def micro_batches(self, step):
        self.step = step
        return micro_batches(step)


def run(model, optimizer, poisoned, first, last, **more):
    poison = Poisonous(model, poisoned)
    steps = train(
        model, optimizer, poison.micro_batches,
        seed=1, first_step=first, num_steps=last, precision="float32", **more,
    )  # fmt: skip
    return {report.step: bool(report.is_taken) for report in steps}


def new_guarded_run(name="adamw"):
    """Its guard knows a median already."""
    model, optimizer = new_run(name, guard=GUARD)
    for _ in range(WINDOW):
        optimizer.guard.should_skip(0, FINE, torch.tensor(5.0))
    return model, optimizer


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_run_that_left_steps_out_is_resumed_to_the_same_bits(tmp_path, name):
    whole, optimizer = new_guarded_run(name)
    taken = run(whole, optimizer, POISONED, 0, 9)
    assert [step for step, is_taken in taken.items() if not is_taken] == list(POISONED)
    assert optimizer.num_updates == 9 - len(POISONED)
    assert [each.step for each in optimizer.guard.new_skipped()] == list(POISONED)

    first, optimizer = new_guarded_run(name)
    run(first, optimizer, POISONED, 0, 4)  # the last step was left out
    save_checkpoint(tmp_path / "4", first, optimizer, Position(seed=1, step=4))
    second, optimizer = new_guarded_run(name)
    load_checkpoint(tmp_path / "4", second, optimizer)
    resumed = run(second, optimizer, POISONED, 4, 9)
    assert resumed == {step: taken[step] for step in range(4, 9)}
    assert_equal(weights(whole), weights(second))


def on_a_rank(rank, last):
    """Only rank 1 meets what is no number."""
    model, optimizer = new_guarded_run()
    poison = Poisonous(model, dict.fromkeys(range(4, 10), math.nan) if rank else {})
    steps = train(
        model, optimizer,
        lambda step: [each for each in poison.micro_batches(step) if each[0] == rank],
        seed=1, num_steps=last, precision="float32",
        wants_stop=lambda: rank == 1 and poison.step == 1,
    )  # fmt: skip
    stopped = [report.step for report in steps]
    poison_again = poison.micro_batches
    told = ""
    try:
        for _ in train(
            model, optimizer,
            lambda step: [each for each in poison_again(step) if each[0] == rank],
            seed=1, first_step=3, num_steps=last, precision="float32",
        ):  # fmt: skip
            pass
    except SkippedStepsError as error:
        told = str(error)
    return stopped, optimizer.num_updates, told


def test_what_one_rank_meets_or_wants_all_ranks_answer_alike():
    first, second = run_ranks(on_a_rank, 2, 10)
    stopped, num_updates, told = first
    assert first == second
    assert (stopped, num_updates) == ([0, 1], 3)
    assert "loss of step 6 is not finite; largest gradients: " in told
    assert "(norm nan)" in told
    assert "largest parameters: " in told


def test_a_run_whose_steps_were_all_skipped_ends_with_the_diagnosis():
    """Fewer steps than may be skipped in a row: no weights of a random model end as a success."""
    model, optimizer = new_run("adamw")
    with pytest.raises(SkippedStepsError, match=r"2 steps in a row .* largest gradients: "):
        run(model, optimizer, dict.fromkeys(range(2), math.nan), 0, 2)
    assert optimizer.num_updates == 0
    model, optimizer = new_run("adamw")
    assert run(model, optimizer, {1: math.nan}, 0, 2) == {0: True, 1: False}
