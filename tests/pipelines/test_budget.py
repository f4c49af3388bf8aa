"""A budget of minutes: what fits it by what was measured, and a run that keeps its steps."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pyarrow.fs import LocalFileSystem
from pydantic import ValidationError

from bert_core.training.loop import SETTLING_BATCHES
from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from pipelines.config.runtime import RuntimeSettings
from pipelines.recipes.files import read_recipe
from pipelines.stage import Progress
from pipelines.stages.pretraining import budget
from pipelines.stages.pretraining.budget import (
    MOST_MEASURED,
    Timing,
    steps_within,
    training_seconds,
    with_steps_in_budget,
)
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.training.ranks import Work

TIMING = Timing(step=0.5, start=4.0, evaluation=2.0, first_evaluation=6.0, checkpoint=3.0)


@pytest.fixture(autouse=True)
def a_rank_alone(monkeypatch):
    """As on a worker, without Ray Train."""
    monkeypatch.setattr(budget.ray.train.torch, "get_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(budget, "rank_and_world_size", lambda: (0, 1))


def settings(**values) -> PretrainingSettings:
    return PretrainingSettings(
        **{"evaluate_every_steps": 50, "checkpoint_every_steps": 100, **values}
    )


def test_steps_evaluations_and_checkpoints_count():
    # 4 to start, 100 steps, 2 evaluations of which the first has more to do, a checkpoint
    assert training_seconds(settings(num_steps=100), {"train": TIMING}) == 4 + 50 + 6 + 2 + 3
    # one step more brings an evaluation and a checkpoint with it
    assert training_seconds(settings(num_steps=101), {"train": TIMING}) == 65 + 0.5 + 2 + 3


@pytest.mark.parametrize("minutes", [0.5, 1, 7, 60])
def test_as_many_steps_as_fit_and_not_one_more(minutes):
    found = steps_within(settings(budget_minutes=minutes), {"train": TIMING})
    assert training_seconds(settings(num_steps=found), {"train": TIMING}) <= 60 * minutes
    assert training_seconds(settings(num_steps=found + 1), {"train": TIMING}) > 60 * minutes


def test_each_phase_has_its_own_rate():
    wanted = settings(budget_minutes=10, short_steps_fraction=0.9)
    timings = {"short": replace(TIMING, step=0.1), "train": TIMING}
    found = steps_within(wanted, timings)
    assert found > 2 * steps_within(settings(budget_minutes=10), timings)
    assert 595 < training_seconds(wanted.model_copy(update={"num_steps": found}), timings) <= 600


def test_a_budget_for_less_than_a_training_is_refused():
    with pytest.raises(UserError, match=r"budget_minutes=0\.1 is too short: 10 steps take"):
        steps_within(settings(budget_minutes=0.1), {"train": TIMING})


def test_steps_and_minutes_are_alternatives():
    assert PretrainingSettings(budget_minutes=1, num_steps=1000).budget_minutes == 1
    with pytest.raises(ValidationError, match=r"add --set pretraining\.num_steps=null"):
        PretrainingSettings(budget_minutes=1, num_steps=1500)


@pytest.mark.parametrize("preset", ["own-text", "demo", "original"])
def test_a_budget_takes_the_place_of_a_presets_steps(preset):
    overrides = ["pretraining.budget_minutes=5"]
    with pytest.raises(UserError, match=r"add --set pretraining\.num_steps=null"):
        read_recipe(preset, overrides)
    recipe = read_recipe(preset, [*overrides, "pretraining.num_steps=null"])
    assert recipe.pretraining.budget_minutes == 5
    assert (
        read_recipe(preset, ["pretraining.num_steps=null"]).pretraining.model_dump()["num_steps"]
        == 1000
    )  # as it names an artifact


class Clock:
    """Stands in for the machine's: seconds pass only when they are told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize("slower_at_first", [1, 3])
@pytest.mark.parametrize("num_batches", [1, 3, 8])
@pytest.mark.parametrize("step_seconds", [0.002, 0.02, 0.06, 3.0, 30.0])
def test_a_step_is_measured_once_it_takes_what_later_ones_take(
    monkeypatch, step_seconds, num_batches, slower_at_first
):
    clock = Clock()
    monkeypatch.setattr(budget, "_now", clock)
    num_settling = -(-SETTLING_BATCHES // num_batches)  # steps, until which freed blocks go back
    watch = budget.Stopwatch(settling_steps=num_settling)

    def passing(seconds):
        def passes(*_) -> dict[str, float]:
            clock.seconds += seconds
            return {}

        return passes

    batches = [(number, None) for number in range(num_batches)]
    work = Work(
        stage="test", section="test", settings=PretrainingSettings(),
        num_steps=MOST_MEASURED + 1, evaluate_every_steps=1000, build_model=lambda: None,
        micro_batches=watch.from_first(lambda step: batches), batches_of=lambda step: batches,
        evaluate=watch.twice(passing(0.5)), final_evaluation=passing(0), is_enough=watch.is_enough,
    )  # fmt: skip
    for step in range(work.num_steps):
        list(work.micro_batches(step))
        clock.seconds += step_seconds * (slower_at_first if step < num_settling else 1)
        if work.is_last(step + 1):
            break
    work.evaluate(None)
    clock.seconds += 0.25  # the checkpoint
    timing = watch.timing()
    assert timing.step == pytest.approx(step_seconds)
    assert (timing.evaluation, timing.checkpoint) == pytest.approx((0.5, 0.25))
    extra = num_settling * (slower_at_first - 1) * step_seconds
    assert timing.start == pytest.approx(extra, abs=1e-6)
    assert watch.ended - watch.settled >= min(20, 400 * step_seconds) - 1e-6


class Listener:
    """Takes the notes that a worker sends."""

    def __init__(self, notes: list[str]) -> None:
        self.send = lambda progress: notes.append(progress.note)
        self.close = lambda: None


def test_a_run_that_goes_on_where_a_step_takes_another_time_keeps_its_steps(monkeypatch, tmp_path):
    notes: list[str] = []
    monkeypatch.setattr(budget, "ProgressSender", lambda queue: Listener(notes))
    wanted = settings(budget_minutes=10)
    values = {
        "checkpoints": (str(tmp_path / "work"), LocalFileSystem()),
        "messages": None,
    }
    monkeypatch.setattr(budget, "_measured_phases", lambda *_: None)
    assert with_steps_in_budget(wanted, values) is None  # stopped while it measured
    monkeypatch.setattr(budget, "_measured_phases", lambda *_: {"train": TIMING})
    found = with_steps_in_budget(wanted, values)
    assert found == wanted.model_copy(
        update={"num_steps": steps_within(wanted, {"train": TIMING}), "budget_minutes": None}
    )
    monkeypatch.setattr(budget, "_measured_phases", lambda *_: pytest.fail("measured again"))
    assert with_steps_in_budget(wanted, values) == found
    of_budget, going_on = notes
    assert of_budget.startswith(f"pretraining: 10 minutes: {found.num_steps:,} steps of 0.5 s")
    assert going_on.startswith(f"pretraining: resuming with the {found.num_steps:,} steps")


@pytest.mark.slow
def test_a_budget_names_an_encoder_that_is_to_the_bit_the_one_of_its_steps(
    small_examples, small_vocabulary, local_ray, tmp_path: Path, small_context
):
    notes: list[str] = []

    def observe(progress: Progress) -> None:
        if progress.note:
            notes.append(progress.note)

    store = ArtifactStore(tmp_path)
    context = replace(
        small_context, store=store, observe=observe, runtime=RuntimeSettings(training_workers=2)
    )
    wanted = PretrainingSettings(
        size="tiny", budget_minutes=0.25, global_batch_size=16, micro_batch_size=8,
        evaluate_every_steps=100, checkpoint_every_steps=500, evaluation_examples=64,
        final_evaluation_examples=64,
    )  # fmt: skip
    encoder = build_encoder(wanted, small_examples, small_vocabulary, context)
    num_steps = encoder.statistics["num_steps"]
    assert num_steps >= 10
    assert encoder.manifest.settings["budget_minutes"] == 0.25
    assert encoder.manifest.settings["num_steps"] is None
    assert any(f"0.25 minutes: {num_steps:,} steps" in note for note in notes)
    again = build_encoder(wanted, small_examples, small_vocabulary, context)
    assert again.reused and again.fingerprint == encoder.fingerprint
    plain = wanted.model_copy(update={"num_steps": num_steps, "budget_minutes": None})
    other = build_encoder(plain, small_examples, small_vocabulary, context)
    assert not other.reused
    for name in ("model.safetensors", "history.json"):
        assert other.manifest.files[name].sha256 == encoder.manifest.files[name].sha256
