"""The score of each slice, with an interval that few items make wide."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from pipelines.tasks.scoring import class_scores, mean
from pipelines.tasks.slices import slices_of


def test_a_slice_has_the_score_of_its_items_alone_and_the_worst_comes_first() -> None:
    answered = ["a"] * 30 + ["b"] * 10
    expected = ["a"] * 27 + ["b"] * 3 + ["b"] * 4 + ["a"] * 6
    values = ["en"] * 30 + ["es"] * 10
    score = class_scores(answered, expected, ("a", "b"))["eval/accuracy"]
    spanish, english = slices_of(score, values)
    assert (spanish.value, spanish.items, spanish.score) == ("es", 10, 0.4)
    assert (english.value, english.items, english.score) == ("en", 30, 0.9)
    assert slices_of(score, values) == [spanish, english]


def test_the_interval_is_that_of_scipy_s_bootstrap() -> None:
    right = np.random.default_rng(0).random(200) < 0.8
    (row,) = slices_of(mean(right), ["x"] * 200)
    reference = bootstrap(
        (right.astype(float),), np.mean, n_resamples=5000, method="percentile", rng=1
    ).confidence_interval
    assert row.low == pytest.approx(reference.low, abs=0.012)
    assert row.high == pytest.approx(reference.high, abs=0.012)
    few = slices_of(mean(right[:20]), ["x"] * 20)[0]
    assert few.high - few.low > 2 * (row.high - row.low)
