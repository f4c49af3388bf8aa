"""A budget of minutes: how many steps fit it, and a run that keeps their number."""

import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from pipelines.errors import UserError
from pipelines.recipes.files import read_recipe
from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder, steps_within, training_seconds
from pipelines.store import ArtifactStore
from pipelines.train.worker import Timing

TIMING = Timing(spent=15.0, step=0.5, evaluation=2.0, checkpoint=3.0)
DONE = 20  # steps, in those 15 seconds


def settings(**values) -> PretrainingSettings:
    return PretrainingSettings(
        **{"evaluate_every_steps": 50, "checkpoint_every_steps": 100, **values}
    )


def seconds(wanted: PretrainingSettings, **operations: float) -> float:
    return training_seconds(wanted, TIMING, DONE, operations)


def test_steps_evaluations_and_checkpoints_count():
    # 15 spent, 80 more steps, 3 evaluations and 2 checkpoints with the last ones
    assert seconds(settings(num_steps=100)) == 15 + 40 + 3 * 2 + 2 * 3
    assert seconds(settings(num_steps=150)) == 15 + 65 + 4 * 2 + 2 * 3


@pytest.mark.parametrize("minutes", [1, 7, 60])
def test_as_many_steps_as_fit_and_not_one_more(minutes):
    found = steps_within(settings(budget_minutes=minutes), TIMING, DONE, {})
    assert seconds(settings(num_steps=found)) <= 60 * minutes
    assert seconds(settings(num_steps=found + 1)) > 60 * minutes


def test_the_steps_of_each_phase_take_as_long_as_their_operations():
    wanted = settings(budget_minutes=10, short_steps_fraction=0.9)
    operations = {"short": 1.0, "train": 5.0}
    found = steps_within(wanted, TIMING, DONE, operations)
    assert found < steps_within(settings(budget_minutes=10), TIMING, DONE, {})
    assert 590 < seconds(wanted.model_copy(update={"num_steps": found}), **operations) <= 600


def test_a_budget_for_less_than_a_training_is_refused():
    with pytest.raises(UserError, match=r"budget_minutes=0\.3 is too short: 30 steps take"):
        steps_within(settings(budget_minutes=0.3), TIMING, DONE, {})


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


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_budget_sets_the_steps_on_all_ranks_and_a_resumed_run_takes_as_many(
    small_examples, small_vocabulary, local_ray, tmp_path: Path, small_context, is_killed: bool
):
    notes: list[str] = []
    killed: list[int] = []

    def observe(progress: Progress) -> None:
        if progress.note:
            notes.append(progress.note)
        if is_killed and not killed and progress.total and progress.done > 0.6 * progress.total:
            (worker, *_) = [
                each for each in psutil.Process().children(recursive=True)
                if "train" in " ".join(each.cmdline()).lower() and "RayTrainWorker" in each.name()
            ] or [None]  # fmt: skip
            if worker is not None:
                killed.append(worker.pid)
                worker.kill()

    context = replace(
        small_context,
        store=ArtifactStore(tmp_path),
        observe=observe,
        runtime=RuntimeSettings(training_workers=2),
    )
    wanted = PretrainingSettings(
        size="tiny", budget_minutes=0.25, global_batch_size=16, micro_batch_size=8,
        evaluate_every_steps=100, checkpoint_every_steps=20, evaluation_examples=64,
        final_evaluation_examples=64,
    )  # fmt: skip
    encoder = build_encoder(wanted, small_examples, small_vocabulary, context)
    num_steps = encoder.statistics["num_steps"]
    assert num_steps >= 10
    assert encoder.manifest.settings["budget_minutes"] == 0.25
    assert encoder.manifest.settings["num_steps"] is None
    (told,) = [note for note in notes if "0.25 minutes" in note]
    assert f"0.25 minutes: {num_steps:,} steps" in told
    history = json.loads(encoder.local("history.json").read_text())
    assert history[-1]["step"] == num_steps
    if killed:
        assert len(encoder.statistics["resumed_from"]) == 1
    again = build_encoder(wanted, small_examples, small_vocabulary, context)
    assert again.reused and again.fingerprint == encoder.fingerprint
