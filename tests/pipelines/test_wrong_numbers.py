"""Numbers that go wrong in a real training: skipped, or too many and ended with a diagnosis."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.errors import UserError
from pipelines.store import Artifact
from pipelines.tracking.tracker import Tracker
from pipelines.train.settings import TrainingSettings
from tests.pipelines.small_trainings import CADENCE, SmallJob, train_small

pytestmark = pytest.mark.slow

# One loss that is no number, and two in a row after the checkpoint of step 4.
BAD = {2: math.nan, 6: math.inf, 7: math.nan}


def settings(**values: Any) -> TrainingSettings:
    return TrainingSettings(**{**CADENCE, **values})


@pytest.mark.parametrize(("ranks", "dies_at"), [(1, 11), (2, 6)])
def test_skipped_steps_are_the_same_after_a_death(
    small_examples: Artifact, local_ray: None, tmp_path: Path, ranks: int, dies_at: int
) -> None:
    notes: list[str] = []
    job = SmallJob(
        examples=small_examples, num_steps=14, factors=BAD, settings=settings(max_skipped_steps=3)
    )
    told, weights = train_small(job, tmp_path / "undisturbed", ranks=ranks, notes=notes)
    assert [each["step"] for each in told["skipped"]] == [2, 6, 7]
    assert told["skipped"][0]["loss"] == "nan"
    history = {point["step"]: point for point in told["history"]}
    assert sorted(history) == [*range(1, 15)]
    assert "train/loss" not in history[3]
    assert history[3]["train/skipped_steps"] == 1
    assert history[10]["train/skipped_steps"] == 3
    assert any("the loss of step 2 is not finite" in note for note in notes)

    dying = replace(job, dies_at=dies_at, marks=str(tmp_path / "died"))
    again, others = train_small(dying, tmp_path / "died", ranks=ranks)
    assert len(again["resumed_from"]) == 1
    for name in ("history", "skipped"):
        assert again[name] == told[name], name
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(("ranks", "num_steps"), [(2, 14), (1, 2)])
def test_what_never_heals_ends_with_a_diagnosis_and_publishes_nothing(
    small_examples: Artifact, local_ray: None, tmp_path: Path, ranks: int, num_steps: int
) -> None:
    # Of two steps neither can be taken, which are fewer than end a training run in a row.
    begins = 1 if num_steps == 14 else 0
    job = SmallJob(
        examples=small_examples, num_steps=num_steps,
        factors=dict.fromkeys(range(begins, 14), math.inf),
        settings=settings(max_skipped_steps=2 if num_steps == 14 else 5),
    )  # fmt: skip
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    run_id = tracker.create_run("training", "never heals", {}, {})
    with pytest.raises(UserError) as raised:
        train_small(job, tmp_path, ranks=ranks, tracker=tracker, run_id=run_id)
    said = str(raised.value)
    assert "2 steps in a row had to be skipped: the loss of step" in said
    assert "largest gradients: " in said
    assert "encoder." in said
    assert "pretraining has learning_rate" in said
