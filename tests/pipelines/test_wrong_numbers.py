"""Numbers that go wrong in a real training: skipped, or too many and ended with a diagnosis."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.artifacts import Artifact
from pipelines.config.errors import UserError
from pipelines.tracking.tracker import Tracker
from tests.pipelines.small_trainings import train_small, worker_that_meets

pytestmark = pytest.mark.slow

# One loss that is no number, and two in a row after the checkpoint of step 4.
BAD = {2: math.nan, 6: math.inf, 7: math.nan}
RULES: dict[str, Any] = {"max_skipped_steps": 3}


@pytest.mark.parametrize("ranks", [1, 2])
def test_skipped_steps_are_the_same_after_a_death(
    small_examples: Artifact, local_ray: None, tmp_path: Path, ranks: int
) -> None:
    notes: list[str] = []
    told, weights = train_small(
        worker_that_meets(BAD, num_steps=14, **RULES),
        small_examples, tmp_path / "undisturbed", ranks=ranks, notes=notes,
    )  # fmt: skip
    assert [each["step"] for each in told["skipped"]] == [2, 6, 7]
    assert told["skipped"][0]["loss"] == "nan"
    history = {point["step"]: point for point in told["history"]}
    assert sorted(history) == [*range(1, 15)]
    assert "train/loss" not in history[3]
    assert history[3]["train/skipped_steps"] == 1
    assert history[10]["train/skipped_steps"] == 3
    assert any("the loss of step 2 is not finite" in note for note in notes)

    for dies_at in (11, 6):
        again, others = train_small(
            worker_that_meets(BAD, num_steps=14, dies_at=dies_at, **RULES),
            small_examples, tmp_path / f"died at {dies_at}", ranks=ranks,
        )  # fmt: skip
        assert len(again["resumed_from"]) == 1
        for name in ("history", "skipped"):
            assert again[name] == told[name], name
        assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_norm_out_of_all_proportion_is_left_out(
    small_examples: Artifact, local_ray: None, tmp_path: Path
) -> None:
    told, weights = train_small(
        worker_that_meets({68: 1e5}, num_steps=72, checkpoint_every_steps=36),
        small_examples, tmp_path,
    )  # fmt: skip
    (skipped,) = told["skipped"]
    assert skipped["step"] == 68
    assert skipped["gradient_norm"] > 100 * skipped["limit"]
    assert all(tensor.isfinite().all() for tensor in weights.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_never_heals_ends_with_a_diagnosis(
    small_examples: Artifact, local_ray: None, tmp_path: Path, ranks: int
) -> None:
    worker = worker_that_meets(
        dict.fromkeys(range(1, 14), math.inf), num_steps=14, max_skipped_steps=2
    )
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    run_id = tracker.create_run("training", "never heals", {}, {})
    with pytest.raises(UserError) as raised:
        train_small(
            worker, small_examples, tmp_path, ranks=ranks, tracking_uri=tracker.uri, run_id=run_id
        )
    history = tracker.client().get_metric_history(run_id, "train/learning_rate")
    assert [point.step for point in history] == [1, 2]  # that of its last second, too
    said = str(raised.value)
    assert "2 steps in a row had to be skipped: the loss of step 2 is not finite" in said
    assert "largest gradients: " in said
    assert "encoder." in said
    assert "pretraining has learning_rate" in said
