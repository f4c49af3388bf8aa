"""Workers come and go; the steps stay the same."""

from itertools import groupby, pairwise
from pathlib import Path

import pytest

from pipelines.store import Artifact
from tests.integration.elastic import changing, fixed, largest_difference, same_batches, settings

pytestmark = pytest.mark.slow

NUM_STEPS = 200
INTERVAL = settings(NUM_STEPS)["checkpoint_every_steps"]


def test_one_two_and_four_workers_and_two_one_two_take_the_same_steps(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    data = {
        "data": str(Path(small_examples.root).parents[1]),
        "examples": small_examples.fingerprint,
        "vocabulary": small_vocabulary.fingerprint,
    }
    runs = fixed(data, tmp_path, NUM_STEPS, [1, 2, 4])
    changed, changes = changing(data, tmp_path, NUM_STEPS)
    assert [change.num_ranks for change in changes] == [1, 2]
    assert len(changed.outcome.resumed_from) == 2
    noted = [list(group) for _, group in groupby(changed.starts, lambda b: b.num_ranks)]
    assert [group[0].num_ranks for group in noted] == [2, 1, 2]
    assert [group[0].step for group in noted[1:]] == changed.outcome.resumed_from
    for before, after in pairwise(noted):
        last_step, resumed_at = max(b.step for b in before), after[0].step
        # From the newest checkpoint that was due, or the one before where it was on its way.
        newest_due = last_step // INTERVAL * INTERVAL
        assert max(newest_due - INTERVAL, INTERVAL) <= resumed_at <= last_step + 1
    for run in (runs[2], runs[4], changed):
        assert len(run.outcome.losses()) == NUM_STEPS
        assert same_batches(run, runs[1])
        assert largest_difference(run, runs[1]) < 1e-4
