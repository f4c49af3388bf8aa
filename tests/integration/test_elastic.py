"""Workers come and go; the steps stay the same."""

from pathlib import Path

import pytest

from benchmarks.elastic import changing, fixed, largest_difference, same_batches
from pipelines.artifacts import Artifact

pytestmark = pytest.mark.slow

NUM_STEPS = 200


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
    assert changes[0].seconds < 60  # a lost node costs less than a minute
    for run in (runs[2], runs[4], changed):
        assert len(run.outcome.losses()) == NUM_STEPS
        assert same_batches(run, runs[1])
        assert largest_difference(run, runs[1]) < 1e-4
