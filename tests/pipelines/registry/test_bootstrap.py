"""The paired bootstrap against what is known of it."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.recipes.recipe import ComparisonSettings
from pipelines.registry.compare import counted_places, in_words, paired_bootstrap
from pipelines.stage import StageContext
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.store import ArtifactStore
from pipelines.tasks.scoring import mean

SETTINGS = ComparisonSettings()


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation() -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 2000)
    difference = paired_bootstrap(mean(values), mean(np.zeros(2000)), 2000, SETTINGS, margin=0.0)
    error = values.std() / np.sqrt(2000)
    assert difference.value == pytest.approx(values.mean())
    assert difference.low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert difference.high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)


def test_what_makes_an_item_hard_for_both_cancels_out() -> None:
    """The same 2 points on items of very different difficulty: sure when paired."""
    hard = np.random.default_rng(1).random(500) * 10
    difference = paired_bootstrap(mean(hard + 0.02), mean(hard), 500, SETTINGS, margin=0.01)
    assert difference.low == pytest.approx(0.02)
    assert difference.ahead == 1.0
    assert difference.holds(0.95)


def test_a_system_is_never_better_than_itself() -> None:
    values = np.random.default_rng(2).random(100)
    same = paired_bootstrap(mean(values), mean(values), 100, SETTINGS, margin=0.0)
    assert (same.value, same.low, same.high, same.ahead) == (0.0, 0.0, 0.0, 0.0)
    assert not same.holds(0.95)


def test_a_difference_below_the_margin_does_not_hold_however_sure() -> None:
    zeros = np.zeros(100)
    difference = paired_bootstrap(mean(zeros + 0.001), mean(zeros), 100, SETTINGS, margin=0.002)
    assert not difference.holds(0.95)


def test_of_losses_the_lower_is_better() -> None:
    losses = np.random.default_rng(3).random(300) + 2
    difference = paired_bootstrap(
        mean(losses - 0.1), mean(losses), 300, SETTINGS, margin=0.01, lower_is_better=True
    )
    assert difference.value == pytest.approx(0.1)
    assert difference.holds(0.95)


def test_few_items_are_not_sure_of_a_difference_of_one() -> None:
    right, other = np.ones(20), np.ones(20)
    other[0] = 0.0
    difference = paired_bootstrap(mean(right), mean(other), 20, SETTINGS, margin=0.0)
    assert difference.value == pytest.approx(0.05)
    assert difference.ahead == pytest.approx(1 - (1 - 1 / 20) ** 20, abs=0.03)
    assert not difference.holds(0.95)


def test_the_same_seed_draws_the_same_items_and_another_one_others() -> None:
    values = np.random.default_rng(4).random(50)
    first, again, other = (
        paired_bootstrap(
            mean(values), mean(np.zeros(50)), 50, ComparisonSettings(seed=seed), margin=0.0
        )
        for seed in (7, 7, 8)
    )
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)


def test_the_sentence_says_in_whose_favour_a_difference_is() -> None:
    high, low = mean(np.array([1.0] * 9 + [0.0])), mean(np.array([0.0] * 9 + [1.0]))
    better = paired_bootstrap(high, low, 10, SETTINGS, margin=0.0)
    worse = paired_bootstrap(low, high, 10, SETTINGS, margin=0.0)
    assert in_words("x", "accuracy", better, SETTINGS).startswith(
        "better than x: accuracy 0.9000 against 0.1000, +0.8000 in its favour (95% interval +"
    )
    assert in_words("x", "accuracy", worse, SETTINGS).startswith(
        "not better than x: accuracy 0.1000 against 0.9000, -0.8000 in its favour (95% interval -"
    )


def test_items_that_the_candidate_learned_itself_do_not_count(tmp_path: Path) -> None:
    train, heldout = tmp_path / "train.csv", tmp_path / "heldout.csv"
    train.write_text("text,label\n" + "".join(f"learned {n},{'ab'[n % 2]}\n" for n in range(8)))
    rows = [f"learned {n},{'ab'[n % 2]}\n" for n in range(3)]
    rows += [f"unseen {n},{'ab'[n % 2]}\n" for n in range(5)]
    heldout.write_text("text,label\n" + "".join(rows))
    source = LabelledFile(path=str(train), heldout_path=str(heldout))
    context = StageContext(store=ArtifactStore(tmp_path / "store"))
    data = build_dataset(DatasetSettings(source=source), None, context)
    assert counted_places(data, None, context.store) == [3, 4, 5, 6, 7]
    # In another spelling they are the same, as they are for the split.
    heldout.write_text(heldout.read_text().replace("learned ", "LEARNED  "))
    data = build_dataset(DatasetSettings(source=source), None, context)
    assert counted_places(data, None, context.store) == [3, 4, 5, 6, 7]


def test_pairs_in_the_other_order_do_not_count_and_a_column_says_what_belongs_together(
    tmp_path: Path,
) -> None:
    train, heldout = tmp_path / "train.csv", tmp_path / "heldout.csv"
    names = "text,second_text,label,shop\n"
    train.write_text(names + "".join(f"one {n},other {n},{'ab'[n % 2]},{n}\n" for n in range(8)))
    heldout.write_text(f"{names}other 0,one 0,a,x\none 1,new,a,y\nnew,new,b,z\n")
    context = StageContext(store=ArtifactStore(tmp_path / "store"))
    for column, counted in (("", [2]), ("shop", [1, 2])):
        source = LabelledFile(path=str(train), heldout_path=str(heldout), group_column=column)
        data = build_dataset(DatasetSettings(source=source), None, context)
        assert data.statistics["heldout_also_in_train"] == 3 - len(counted)
        assert counted_places(data, None, context.store) == counted
