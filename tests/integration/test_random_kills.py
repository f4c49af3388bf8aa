"""SIGKILL at random instants, of a worker, the driver, a node: the training run ends the same."""

from pathlib import Path

import pytest

from pipelines.store import Artifact
from tests.integration.faults import disturbed, plan, settings

pytestmark = pytest.mark.slow

INTERVAL = settings(1)["checkpoint_every_steps"]


def test_a_training_that_is_killed_again_and_again_ends_with_the_same_bits(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    data = {
        "data": str(Path(small_examples.root).parents[1]),
        "examples": small_examples.fingerprint,
        "vocabulary": small_vocabulary.fingerprint,
    }
    kills = plan(6, seed=0)
    assert {kill.victim for kill in kills} == {"worker", "driver", "node"}
    alone, met, recoveries = disturbed(data, tmp_path, kills)
    assert any(recovery.was_writing for recovery in recoveries)
    for recovery in recoveries:
        assert recovery.resumed_at <= recovery.last_step + 1
        assert recovery.resumed_at % INTERVAL == 0  # a checkpoint's step
        # Of those that were due the newest alone may have been on its way.
        newest_due = recovery.last_step // INTERVAL * INTERVAL
        assert recovery.resumed_at >= newest_due - INTERVAL
    assert any(recovery.resumed_at > 0 for recovery in recoveries)
    assert met.history == alone.history
    assert met.weights == alone.weights
