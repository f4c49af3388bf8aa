"""Numbers that go wrong in a real training: left out, led back, and ended with a diagnosis."""

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

# One loss that is no number, and a window of three in a row after the checkpoint of step 4.
BAD = {2: math.nan, 6: math.inf, 7: math.nan, 8: math.inf}
RULES: dict[str, Any] = {"max_skipped_steps": 3, "rollback_rate_factor": 0.5}


@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_are_left_out_and_a_row_of_them_is_passed_over_alike_after_a_death(
    small_examples: Artifact, local_ray: None, tmp_path: Path, ranks: int
) -> None:
    notes: list[str] = []
    told, weights = train_small(
        worker_that_meets(BAD, num_steps=14, **RULES),
        small_examples, tmp_path / "undisturbed", ranks=ranks, notes=notes,
    )  # fmt: skip
    assert [each["step"] for each in told["skipped"]] == [2, 6, 7, 8]
    assert told["skipped"][0]["loss"] == "nan"
    assert told["rollbacks"] == [{"first": 4, "last": 8, "rate_scale": 0.5}]
    history = {point["step"]: point for point in told["history"]}
    assert sorted(history) == [*range(1, 9), *range(10, 15)]  # the one that ended it tells nothing
    assert "train/loss" not in history[3]
    assert history[3]["train/skipped_steps"] == 1
    assert history[10]["train/skipped_steps"] == 4
    # The schedule goes on where its step is, at half the rate.
    assert history[14]["train/learning_rate"] < 0.1 * history[4]["train/learning_rate"]
    assert any("back to step 4, past step 8, at 0.5 times" in note for note in notes)
    assert any("the loss of step 2 is not finite" in note for note in notes)

    # Killed once after it was led back, and once before it meets the window again.
    for dies_at in (11, 6):
        again, others = train_small(
            worker_that_meets(BAD, num_steps=14, dies_at=dies_at, **RULES),
            small_examples, tmp_path / f"died at {dies_at}", ranks=ranks,
        )  # fmt: skip
        assert len(again["resumed_from"]) == 1
        assert again["resumed_from"][0] in ((9,) if dies_at == 11 else (4,))
        for name in ("history", "skipped", "rollbacks"):
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
        dict.fromkeys(range(1, 14), math.inf), num_steps=14, max_rollbacks=2, max_skipped_steps=2
    )
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    run_id = tracker.create_run("training", "never heals", {}, {})
    with pytest.raises(UserError) as raised:
        train_small(
            worker, small_examples, tmp_path, ranks=ranks, tracking_uri=tracker.uri, run_id=run_id
        )
    history = tracker.client().get_metric_history(run_id, "train/learning_rate")
    assert [point.step for point in history] == [1, 2, 4, 6]  # those of its last second, too
    said = str(raised.value)
    assert "2 steps in a row, 5 to 6, had to be skipped" in said
    assert "rolling back past the steps 0 to 2, 3 to 4" in said
    assert "the loss of step 6 is not finite" in said
    assert "largest gradients: " in said
    assert "encoder." in said
    assert "lower pretraining.learning_rate" in said
