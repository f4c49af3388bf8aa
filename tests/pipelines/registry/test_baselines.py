"""Baselines as an artifact, beside the figures of a version, and in the way of its alias."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipelines.predict.model_evaluation import evaluate_file
from pipelines.registry.find import version_with_alias
from pipelines.registry.register import Submission, model_card
from pipelines.stages import evaluation as learning
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.stages.evaluation import answers_in, build_baselines, build_evaluation
from pipelines.stages.figures import beside
from pipelines.store import Artifact
from pipelines.store.pruning import take_inventory
from tests.pipelines.registry.classifiers import compared, finetuned, labelled_texts, proved
from tests.pipelines.registry.conftest import Models

WELL = 150


def bags_of_letters(models: Models, folder: Path, size: int = 600) -> Artifact:
    """Texts whose label says whether an `e` is among their letters: nothing that needs an order."""
    random, rows = np.random.default_rng(0), []
    for number in range(size):
        letters = list(random.choice(list("abcdfghijklmnopqrstuvwxyz"), 6))
        if number % 3 == 0:
            letters[int(random.integers(6))] = "e"
        rows.append((" ".join(letters), ("no", "yes")["e" in letters]))
    path = folder / "bags.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    source = LabelledFile(path=str(path), heldout_fraction=0.3)
    return build_dataset(DatasetSettings(source=source), None, models.context)


def test_baselines_are_learned_once_and_come_out_alike(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, store = labelled_texts(models, tmp_path, size=300), models.context.store
    first = build_baselines(dataset, store)
    assert dict(first.manifest.inputs) == {"dataset": dataset.fingerprint}
    assert "scikit-learn" in first.manifest.settings["libraries"]
    bytes_of_it = first.local("answers.json").read_bytes()
    assert build_baselines(dataset, store).reused
    values = answers_in(first)["TF-IDF"]
    right = [
        a == item["label"]
        for a, item in zip(values, read_items(dataset, "heldout").rows, strict=True)
    ]
    assert first.statistics["baseline/TF-IDF/accuracy"] == pytest.approx(np.mean(right))
    monkeypatch.setattr(learning, "_BASELINES_VERSION", 1_000)
    again = build_baselines(dataset, store)
    assert again.fingerprint != first.fingerprint
    assert again.local("answers.json").read_bytes() == bytes_of_it


def test_a_label_without_a_heldout_item_is_named(
    models: Models, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [f"word{number} text,{'ab'[number % 2]}" for number in range(60)]
    train, heldout = tmp_path / "train.csv", tmp_path / "heldout.csv"
    train.write_text("\n".join(["text,label", *rows[:40]]), encoding="utf-8")
    heldout.write_text("\n".join(["text,label", *rows[40::2]]), encoding="utf-8")
    source = LabelledFile(path=str(train), heldout_path=str(heldout))
    dataset = build_dataset(DatasetSettings(source=source), None, models.context)
    model = finetuned(models, dataset, 0)
    build_evaluation(model, dataset, models.context)
    assert "no held-out item has the label b" in caplog.text
    # As of a tagger: `described` finds such tags.
    statistics = {**dataset.statistics, "only_held_out": ["B-LOC"]}
    manifest = dataset.manifest.model_copy(update={"statistics": statistics})
    build_evaluation(model, replace(dataset, manifest=manifest), models.context)
    assert "no training item has the tag B-LOC: it counts as missed" in caplog.text


def test_an_evaluation_and_a_card_have_them_beside_the_majority_class(
    models: Models, tmp_path: Path
) -> None:
    dataset = labelled_texts(models, tmp_path, size=300)
    model = finetuned(models, dataset, 0)
    evaluation = build_evaluation(model, dataset, models.context)
    figures = beside(evaluation.statistics, "accuracy")
    assert list(figures) == ["majority class", "TF-IDF", "TF-IDF of characters"]
    assert list(beside(evaluation.statistics, "macro_f1")) == ["TF-IDF", "TF-IDF of characters"]
    submission = Submission(
        kind="classification", name="x", alias="candidate", artifact=model, lineage={},
        recipe_yaml="", evaluation=evaluation,
    )  # fmt: skip
    card = model_card(submission, 1)
    assert f"majority class {figures['majority class']:.1%}, TF-IDF" in card
    # A look through the store tells that the evaluation stands on them, so `prune` keeps both.
    found = build_baselines(dataset, models.context.store)
    artifacts = [each for each in take_inventory(models.context.store) if each.manifest]
    (stored,) = (each for each in artifacts if each.fingerprint == evaluation.fingerprint)
    assert found.fingerprint in stored.inputs


@pytest.mark.slow  # its version answers in a process of its own
def test_what_a_linear_model_does_as_well_stays_a_candidate(models: Models, tmp_path: Path) -> None:
    dataset = bags_of_letters(models, tmp_path)
    model = proved(models, finetuned(models, dataset, WELL), dataset)
    comparison = compared(models, model)
    assert not comparison.is_better
    assert comparison.against == "TF-IDF"
    assert "not better than TF-IDF: accuracy " in comparison.reason
    assert "95% interval" in comparison.reason
    assert comparison.reason.endswith("or use TF-IDF itself, which is cheaper")
    assert version_with_alias(models.tracker.client(), "classifier", "champion") is None

    # The baselines' figures on a file of one's own stand beside the model's.
    path = tmp_path / "more.csv"
    known = read_items(dataset, "train").rows[0]
    rows = f"a b c e f g,yes\na b c d f g,no\n{known['text']},{known['label']}\n"
    path.write_text(f"text,label\n{rows}")
    source = LabelledFile(path=str(path))
    store = models.context.store
    figures, _ = evaluate_file(models.tracker, "classifier/1", source, store)
    assert figures["baseline/TF-IDF/accuracy"] == 1.0
    assert figures["items_trained_on"] == 1
    figures, _ = evaluate_file(models.tracker, "classifier/1", source)
    assert not [name for name in figures if name.startswith("baseline/")]
