"""Who becomes champion: what is better on the same data, or what a person chose; and who stays."""

import csv
import re
from pathlib import Path

import pytest

from flows.promote import compare_and_promote
from pipelines.errors import UserError
from pipelines.registry.compare import compare_versions
from pipelines.registry.find import version_with_alias
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from tests.pipelines.registry.classifiers import (
    NAMES,
    choose,
    compared,
    finetuned,
    go_back,
    labelled_texts,
    proved,
    run_of,
)
from tests.pipelines.registry.conftest import Models, package_of

pytestmark = pytest.mark.slow  # every version answers in a process of its own

LITTLE, WELL = 30, 150  # steps: next to nothing is learned, and the task


def holder(models: Models, alias: str, name: str = "classifier") -> int | None:
    version = version_with_alias(models.tracker.client(), name, alias)
    return None if version is None else int(version.version)


def test_better_versions_follow_each_other_and_nothing_takes_the_alias_back(
    models: Models, tmp_path: Path
) -> None:
    dataset = labelled_texts(models, tmp_path)
    majority, little, well = (finetuned(models, dataset, steps) for steps in (0, LITTLE, WELL))

    first = proved(models, majority, dataset)
    comparison = compared(models, first)
    assert not comparison.is_better
    assert "not better than TF-IDF: accuracy" in comparison.reason
    assert holder(models, "champion") is None

    good = compared(models, proved(models, well, dataset))
    assert good.is_better
    assert good.against == "TF-IDF"
    assert good.difference is not None
    assert good.difference.score == well.statistics["eval/accuracy"]
    assert holder(models, "champion") == 2

    worse = compared(models, proved(models, little, dataset))
    assert not worse.is_better
    assert worse.against == "models:/classifier/2"
    assert worse.difference is not None
    assert worse.difference.other == well.statistics["eval/accuracy"]
    assert re.search(r"; log loss 0\.\d{3} against 0\.\d{3} \(less is better\)$", worse.reason)
    assert "log loss" not in good.reason  # baselines answer without probabilities
    assert holder(models, "champion") == 2
    tags = models.tracker.client().get_model_version("classifier", "3").tags
    assert tags["bertsmith.comparison.decision"] == "not better"
    assert tags["bertsmith.comparison.reason"] == worse.reason

    again = proved(models, little, dataset)  # a cached rerun of the older recipe
    assert again.reused
    assert not again.awaits_promotion

    # A person is free to choose it all the same, and to go back.
    choose(models, "classifier", "3", "short texts")
    assert holder(models, "champion") == 3
    assert go_back(models, "classifier") == holder(models, "champion") == 2
    with pytest.raises(UserError, match="no version of classifier was champion before"):
        go_back(models, "classifier")


def test_a_model_that_somebody_went_back_from_is_not_promoted_under_a_new_number(
    models: Models, tmp_path: Path
) -> None:
    dataset = labelled_texts(models, tmp_path)
    little, well = (finetuned(models, dataset, steps) for steps in (LITTLE, WELL))
    proved(models, little, dataset)
    choose(models, "classifier", "1")
    assert compared(models, proved(models, well, dataset)).is_better
    go_back(models, "classifier")
    models.tracker.client().delete_model_version("classifier", "2")
    anew = proved(models, well, dataset)  # the nightly run finds the model, and no version of it
    assert (anew.version, anew.reused) == (3, False)
    comparison = compared(models, anew)
    assert "a person rolled this model back" in comparison.reason
    assert holder(models, "champion") == 1
    choose(models, "classifier", "3")
    assert holder(models, "champion") == 3


def test_a_run_that_was_overtaken_compares_with_the_new_champion(
    models: Models, tmp_path: Path
) -> None:
    dataset = labelled_texts(models, tmp_path)
    little, well, longer = (finetuned(models, dataset, n) for n in (LITTLE, WELL, WELL + 10))
    proved(models, little, dataset)
    choose(models, "classifier", "1")
    model = proved(models, well, dataset)
    proved(models, longer, dataset)

    def overtake(title: str) -> None:
        if title.startswith("promotion"):
            choose(models, "classifier", "3", "a person is faster")

    run = run_of(models, before=overtake)
    compare_and_promote(run, model, None)
    compared_with = [each.against for each in run.report.comparisons]
    assert compared_with == ["models:/classifier/1", "models:/classifier/3"]
    assert run.report.promotions == []
    assert holder(models, "champion") == 3
    tags = models.tracker.client().get_model_version("classifier", "2").tags
    assert tags["bertsmith.comparison.decision"] == "not better"
    assert not [key for key in tags if key.startswith("bertsmith.promoted")]


def test_the_majority_class_is_counted_on_the_compared_items(
    models: Models, tmp_path: Path
) -> None:
    """Half of the held-out texts were learned before; of the others far more have its class."""
    few = labelled_texts(models, tmp_path, size=600)
    train, heldout = (read_items(few, part).rows for part in ("train", "heldout"))
    learned = [row for row in train if row["label"] == "yes"][:60]
    unseen = [row for row in heldout if row["label"] == "no"][:54]
    unseen += [row for row in heldout if row["label"] == "yes"][:6]
    paths = [tmp_path / "train.csv", tmp_path / "heldout.csv"]
    for path, rows in zip(paths, (train, learned + unseen), strict=True):
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(
                [("text", "label"), *((row["text"], row["label"]) for row in rows)]
            )
    source = LabelledFile(path=str(paths[0]), heldout_path=str(paths[1]))
    dataset = build_dataset(DatasetSettings(source=source), None, models.context)
    comparison = compared(models, proved(models, finetuned(models, dataset, 0), dataset))
    assert comparison.left_out == 60
    assert comparison.difference is not None
    assert comparison.difference.score == comparison.difference.other == 0.9
    assert "not better than the majority class baseline" in comparison.reason


def test_other_labels_cannot_be_compared_and_that_is_said(models: Models, tmp_path: Path) -> None:
    dataset = labelled_texts(models, tmp_path)
    other = labelled_texts(models, tmp_path, labels=("false", "true"), seed=1)
    assert compared(models, proved(models, finetuned(models, dataset, WELL), dataset)).is_better
    comparison = compared(models, proved(models, finetuned(models, other, 0), other))
    assert comparison.reason == (
        "it cannot be compared: models:/classifier/1 was not run: it has other labels: false, no, "
        "true, yes"
    )
    assert holder(models, "champion") == 1


def test_items_that_the_champion_was_trained_on_do_not_count(
    models: Models, tmp_path: Path
) -> None:
    """More texts, divided anew: some that are held out now the champion learned before."""
    few = labelled_texts(models, tmp_path, size=600)
    more = labelled_texts(models, tmp_path, size=900, split=1)
    proved(models, finetuned(models, few, 0), few)
    choose(models, "classifier", "1")
    comparison = compared(models, proved(models, finetuned(models, more, WELL), more))
    assert comparison.left_out > 0
    assert comparison.difference is not None
    num_heldout = more.statistics["items"]["heldout"]
    assert comparison.difference.num_items + comparison.left_out == num_heldout
    assert f"without {comparison.left_out} that one of them was trained on" in comparison.reason
    assert comparison.is_better


def test_what_was_changed_in_the_registry_is_neither_promoted_nor_compared(
    models: Models, tmp_path: Path
) -> None:
    dataset = labelled_texts(models, tmp_path)
    model = proved(models, finetuned(models, dataset, LITTLE), dataset)
    weights = package_of(models, model) / "artifacts" / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 64
    weights.write_bytes(data)
    with pytest.raises(UserError, match=r"model\.safetensors has other bytes"):
        choose(models, "classifier", "1")
    comparison = compare_versions(
        models.tracker, models.context.store, "classifier", 1, "champion", NAMES.comparison
    )
    assert not comparison.is_better
    assert "model.safetensors has other bytes" in comparison.reason
    assert holder(models, "champion") is None


def test_a_run_killed_after_the_alias_moved_leaves_it(models: Models, tmp_path: Path) -> None:
    dataset = labelled_texts(models, tmp_path)
    model = proved(models, finetuned(models, dataset, LITTLE), dataset)
    client = models.tracker.client()
    client.set_registered_model_alias("classifier", "champion", "1")  # and here it is lost
    assert "it is champion already" in compared(models, model).reason
    assert holder(models, "champion") == 1
    assert not proved(models, finetuned(models, dataset, LITTLE), dataset).awaits_promotion


def test_encoders_are_compared_by_their_loss_and_not_across_vocabularies(models: Models) -> None:
    better, worse = (models.proved_encoder(seed, steps) for seed, steps in ((1, 40), (2, 0)))
    low = compared(models, worse)
    assert "not better than the token-frequency baseline: loss of masked tokens" in low.reason
    choose(models, "encoder", str(worse.version))
    comparison = compare_versions(
        models.tracker, models.context.store, "encoder", better.version, "champion",
        NAMES.comparison,
    )  # fmt: skip
    assert comparison.is_better
    assert "loss of masked tokens" in comparison.reason
    difference = comparison.difference
    assert difference is not None
    losses = [models.encoder(seed, steps).statistics["eval/mlm_loss"]
              for seed, steps in ((1, 40), (2, 0))]  # fmt: skip
    assert [difference.score, difference.other] == pytest.approx(losses, rel=1e-5)
    assert difference.value == pytest.approx(losses[1] - losses[0], rel=1e-3)
