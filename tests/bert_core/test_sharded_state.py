"""A state that is divided among the ranks: the bits of one that is not, saved and resumed whole."""

import hashlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from bert_core.training.exchange import cut
from bert_core.training.guard import GuardConfig, SkippedStepsError
from bert_core.training.optimization import OPTIMIZERS
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.optimizer_runs import draw_gradients, new_run
from tests.bert_core.ranks import run_ranks

SETTINGS = {"layer_decay": 0.8, "averaging_decay": 0.6, "shard_optimizer_state": True}


def digest(tensors):
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def take_steps(model, optimizer, first, last):
    for step in range(first, last):
        draw_gradients(model, step)
        optimizer.update(0.01, divisor=torch.tensor(1.5))


def everything(model, optimizer):
    """Digests of the weights, their average, and the whole state."""
    weights = digest(model.state_dict())
    with optimizer.averaged():
        averaged = digest(model.state_dict())
    assert digest(model.state_dict()) == weights != averaged
    state = optimizer.state_dict()
    moments = {key: digest(value) for key, value in state.items() if isinstance(value, dict)}
    return weights, averaged, moments, state["num_updates"]


def held_bytes(optimizer):
    moments = [m for s in optimizer._segments for m in s.moments.values()]
    return sum(m.numel() * 4 for m in [*moments, optimizer._average])


def trained_and_saved(rank, folder):
    """Five steps of each optimizer, saved after three; what is held by this rank."""
    results = {}
    for name in OPTIMIZERS:
        model, optimizer = new_run(name, **SETTINGS)
        take_steps(model, optimizer, 0, 3)
        position = Position(seed=0, step=3)
        save_checkpoint(folder / name, model, optimizer, position, is_writer=rank == 1)
        take_steps(model, optimizer, 3, 5)
        results[name] = everything(model, optimizer), held_bytes(optimizer)
    return results


def resumed(rank, folder):
    results = {}
    for name in OPTIMIZERS:
        model, optimizer = new_run(name, **SETTINGS)
        assert load_checkpoint(folder / name, model, optimizer).step == 3
        take_steps(model, optimizer, 3, 5)
        results[name] = everything(model, optimizer), held_bytes(optimizer)
    return results


def test_saved_by_two_ranks_it_goes_on_on_one_and_on_three_to_the_same_bits(tmp_path):
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    two = run_ranks(trained_and_saved, 2, tmp_path)
    three = run_ranks(resumed, 3, tmp_path)
    one = resumed(0, tmp_path)  # nothing is divided where there is one
    for name in OPTIMIZERS:
        model, optimizer = new_run(name, **{**SETTINGS, "shard_optimizer_state": False})
        take_steps(model, optimizer, 0, 5)
        expected = everything(model, optimizer)
        for rank in (*two, *three, one):
            assert rank[name][0] == expected, name
        whole = held_bytes(optimizer)
        assert one[name][1] == whole
        for ranks in (two, three):
            assert sum(rank[name][1] for rank in ranks) == whole
            # Shares are equal in parameters; Muon keeps one moment of some and two of others.
            tolerance = 1.5 if name == "muon" else 1.3
            assert max(rank[name][1] for rank in ranks) < tolerance * whole / len(ranks)
    torch.set_num_threads(num_threads)


def gathered(rank):
    """What the ranks keep of a save, and the largest tensor that torch took for it."""
    model, optimizer = new_run("adamw", **SETTINGS)
    take_steps(model, optimizer, 0, 1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        state = optimizer.state_dict(is_writer=rank == 0)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    moments = [v for key, v in state.items() if isinstance(v, dict) and key != "guard"]
    # By storages: gloo's threads free buffers where the profiler does not look.
    kept = sum(t.untyped_storage().nbytes() for value in moments for t in value.values())
    whole = optimizer.arena.values.nbytes
    return kept / whole, max(e.nbytes() for e in events) / whole, sum(map(len, moments))


def test_a_save_gathers_share_by_share_and_only_its_writer_keeps_it():
    writer, other = run_ranks(gathered, 2)
    assert other[0] == 0
    assert other[2] == 0
    assert 2.5 < writer[0] <= 3  # mean, variance and average
    assert writer[2] > 0
    assert max(writer[1], other[1]) < 0.9


def test_a_saved_state_is_mapped_and_not_read_whole(tmp_path, monkeypatch):
    model, optimizer = new_run("adamw", averaging_decay=0.6)
    take_steps(model, optimizer, 0, 1)
    save_checkpoint(tmp_path / "saved", model, optimizer, Position(seed=0, step=1))
    load, mapped = optimizer.load_state_dict, []

    def look_and_load(state):
        mapped.append("training_state.pt" in Path("/proc/self/maps").read_text())
        load(state)

    monkeypatch.setattr(optimizer, "load_state_dict", look_and_load)
    load_checkpoint(tmp_path / "saved", model, optimizer)
    assert mapped == [True]


def halted(rank):
    guard = GuardConfig(max_skipped_in_a_row=1)
    model, optimizer = new_run("lamb", guard=guard, **SETTINGS)
    take_steps(model, optimizer, 0, 1)
    before = digest(model.state_dict())
    optimizer.arena.gradients.fill_(torch.nan)
    nan = torch.tensor(torch.nan)
    optimizer.update(0.1, skip=optimizer.guard.should_skip(1, nan, nan))
    try:
        optimizer.state_dict()
    except SkippedStepsError as error:
        dist.barrier()  # nobody waits in a collective for one that raised
        return error.last.step, digest(model.state_dict()) == before
    return None


def test_a_divided_state_halts_on_all_ranks_alike():
    assert run_ranks(halted, 2) == [(1, True), (1, True)]


@pytest.mark.parametrize(
    ("ends", "num_shares", "spans"),
    [
        ([10, 20, 30, 40], 2, [(0, 20), (20, 40)]),
        ([10, 20, 30, 40], 3, [(0, 10), (10, 30), (30, 40)]),
        ([90, 95, 100], 3, [(0, 90), (90, 90), (90, 100)]),
        ([10], 2, [(0, 10), (10, 10)]),
    ],
)
def test_shares_are_cut_between_parameters_as_equal_as_they_go(ends, num_shares, spans):
    assert cut(ends, num_shares) == spans
