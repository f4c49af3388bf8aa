"""A registered classifier answers alone where it is sure enough, however it is asked."""

import json
import re
from dataclasses import replace
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mlflow.exceptions import MlflowException

from flows.cli.app import DONE, MISTAKE, run
from pipelines.predict.batch_prediction import BatchSettings, build_predictions
from pipelines.registry.package import Confidence, open_model, opened
from pipelines.registry.register import Submission, model_card, register
from pipelines.settings import RuntimeSettings
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset, read_items
from pipelines.stages.evaluation import build_evaluation, confidence_of
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks.calibration import SHOWN
from tests.pipelines.registry.classifiers import finetuned, labelled_texts
from tests.pipelines.registry.conftest import Models
from tests.pipelines.registry.test_serving import untrained

PRECISION = 0.9


def submission(models: Models, folder: Path) -> tuple[Submission, Artifact]:
    """A classifier that learned well but not all, with its evaluation; and its dataset."""
    dataset = labelled_texts(models, folder)
    model = finetuned(models, dataset, 60)
    evaluation = build_evaluation(model, dataset, models.context)
    return Submission(
        kind="classification", name="sure", alias="candidate", artifact=model,
        lineage={"dataset": dataset, "finetuned": model}, recipe_yaml="name: small\n",
        evaluation=evaluation,
    ), dataset  # fmt: skip


def test_several_labels_a_text_have_no_class_that_is_never_answered(
    models: Models, tmp_path: Path
) -> None:
    """Their probabilities have two columns, yes and no, whatever the number of labels."""
    letters = np.random.default_rng(0).choice(list("abcdefgh"), (300, 4))
    rows = [
        {"text": " ".join(row), "labels": [each for each in "abcd" if each in row]}
        for row in letters
    ]
    path = tmp_path / "several.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = DatasetSettings(family="multi_label", source=LabelledFile(path=str(path)))
    dataset = build_dataset(settings, None, models.context)
    evaluation = build_evaluation(finetuned(models, dataset, 60), dataset, models.context)
    table = json.loads(evaluation.local("report.json").read_text())["confidence"]["precision"]
    reached = [row for row in table if row["precision"] in SHOWN and row["answered"]]
    assert reached and not any(row["never"] for row in reached)


def test_what_is_not_sure_enough_is_left_to_a_person_and_the_rest_is_as_precise_as_asked(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    submitted, dataset = submission(models, tmp_path)
    assert submitted.evaluation is not None
    report = json.loads(submitted.evaluation.local("report.json").read_text())["confidence"]
    (row,) = [each for each in report["precision"] if each["precision"] == PRECISION]
    assert 0.2 < row["answered"] < 1  # else there is nothing to see
    assert submitted.evaluation.statistics["eval/accuracy"] < PRECISION
    version = register(submitted, models.tracker)

    heldout = read_items(dataset, "heldout").rows
    asked = pd.DataFrame({"text": [item["text"] for item in heldout]})
    mlflow.set_tracking_uri(models.tracker.uri)
    model = mlflow.pyfunc.load_model(version.uri)
    plain = model.predict(asked)
    answers = model.predict(asked, params={"min_precision": PRECISION})
    given = answers["label"].notna()
    assert list(answers["guess"]) == list(plain["label"])
    assert given.mean() == pytest.approx(row["answered"])
    assert list(answers["label"][given]) == list(plain["label"][given])
    expected = pd.Series([item["label"] for item in heldout])
    assert (answers["label"][given] == expected[given]).mean() == pytest.approx(row["right"])
    by_probability = model.predict(asked, params={"min_confidence": row["min_confidence"]})
    assert list(by_probability["label"].notna()) == list(given)
    with pytest.raises(MlflowException, match=r"no probability gives a precision of 0.99999"):
        model.predict(asked, params={"min_precision": 0.99999})

    for params in ({"min_confidence": 1.5}, {"min_confidence": 0.5, "min_precision": 0.5}):
        with pytest.raises(MlflowException, match="give min_confidence or min_precision, from 0"):
            model.predict(asked, params=params)

    # Whole files, and the command.
    path = tmp_path / "texts.csv"
    asked.to_csv(path, index=False)
    settings = BatchSettings(model="sure/1", files=(str(path),), min_precision=PRECISION)
    alone = replace(
        models.context, store=ArtifactStore(tmp_path / "store"),
        runtime=RuntimeSettings(num_workers=1),
    )  # fmt: skip
    made = build_predictions(settings, models.tracker, alone)
    table = pq.read_table(made.local("part-00000-00000.parquet")).to_pydict()
    assert [label is not None for label in table["label"]] == list(given)
    assert table["guess"] == list(plain["label"])
    with_folder = ["--file", str(path), "--model", str(submitted.artifact.local_folder())]
    least = str(row["min_confidence"])
    assert run(["predict", *with_folder, "--min-confidence", least, "--json"]) == DONE
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] is not None for line in lines] == list(given)
    assert run(["predict", *with_folder, "--min-confidence", least]) == DONE
    shown = capsys.readouterr().out.splitlines()
    first = list(given).index(False)
    assert shown[first].startswith(f"- ({plain['label'][first]}?)")
    assert run(["predict", *with_folder, "--min-precision", "0.9"]) == MISTAKE
    assert "has no table of precisions" in capsys.readouterr().err
    assert run(["predict", *with_folder, "--min-precision", "95"]) == MISTAKE
    assert "is a share from 0 to below 1, such as 0.95 for 95%" in capsys.readouterr().err

    # On labelled items the command says how often it answers, and how often that is right.
    labelled = tmp_path / "labelled.csv"
    asked.assign(label=expected).to_csv(labelled, index=False)
    evaluate = ["evaluate", "--labels", str(labelled), "--model"]
    home = ["--home", str(tmp_path / "home")]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", models.tracker.uri)
    assert run([*evaluate, "sure/1", *home, "--min-precision", "0.9", "--json"]) == DONE
    alone = json.loads(capsys.readouterr().out)["alone"]
    assert alone["min_confidence"] == row["min_confidence"]
    assert alone["answered"] == given.sum() and alone["items"] == len(heldout)
    assert alone["precision"] == pytest.approx(row["right"])
    assert alone["low"] < alone["precision"] < alone["high"]
    for each in alone["by_label"]:
        answers_of = given & (plain["label"] == each["label"])
        assert each["answered"] == answers_of.sum()
        if each["answered"]:
            right = (expected[answers_of] == each["label"]).mean()
            assert each["precision"] == pytest.approx(right)
    folder = str(submitted.artifact.local_folder())
    assert run([*evaluate, folder, "--min-confidence", least]) == DONE
    shown = capsys.readouterr().out
    assert f"| {given.sum()} of {len(heldout)} " in shown
    assert "| items | answered alone | right of those |" in shown
    assert re.search(rf"right, of those +\| {row['right']:.1%}", shown)
    assert run([*evaluate, folder, "--min-precision", "0.9"]) == MISTAKE
    assert "has no table of precisions" in capsys.readouterr().err

    # What a person reads of it.
    card = model_card(submitted, 1)
    for cells in confidence_of(submitted.evaluation):
        assert any(
            tuple(map(str.strip, line.split("|")[1:-1])) == cells for line in card.split("\n")
        )


def test_only_answers_with_one_probability_can_be_withheld(tmp_path: Path, models: Models) -> None:
    folder = untrained(tmp_path, "tagging").local_folder()
    with pytest.raises(Exception, match="gives no one probability a row; leave out min_conf"):
        opened(folder, Confidence(min_confidence=0.5))
    with pytest.raises(ValueError, match="give min_confidence or min_precision, not both"):
        BatchSettings(min_confidence=0.5, min_precision=0.5)


def test_a_model_without_an_evaluation_asks_for_a_probability(
    models: Models, tmp_path: Path
) -> None:
    artifact = untrained(tmp_path, "classification")
    register(
        Submission(kind="classification", name="bare", alias="candidate", artifact=artifact,
                   lineage={}, recipe_yaml="name: small\n"),
        models.tracker,
    )  # fmt: skip
    with pytest.raises(Exception, match=r"has no table of precisions .* with min_confidence"):
        open_model(models.tracker, "bare/1", Confidence(min_precision=0.9))
    model, _ = open_model(models.tracker, "bare/1", Confidence(min_confidence=0.4))
    assert model.min_confidence == 0.4


def test_the_score_of_each_slice_stands_beside_that_of_all(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted, dataset = submission(models, tmp_path)
    rows = [*read_items(dataset, "heldout").rows]
    table = pd.DataFrame({
        "text": [row["text"] for row in rows],
        "label": [row["label"] for row in rows],
        "language": ["hi" if place % 4 == 0 else "ru" for place in range(len(rows))],
    })  # fmt: skip
    # Every fourth item has the other label: a slice whose score is bad.
    other = table["label"].map({"no": "yes", "yes": "no"})
    table["label"] = table["label"].where(table["language"] == "ru", other)
    path = tmp_path / "more.csv"
    table.to_csv(path, index=False)
    asked = ["evaluate", "--model", str(submitted.artifact.local_folder()), "--labels", str(path)]
    assert run([*asked, "--slice", "language", "--json"]) == DONE
    told = json.loads(capsys.readouterr().out)
    hindi, russian = told["slices"]
    assert (hindi["value"], russian["value"]) == ("hi", "ru")
    assert hindi["items"] + russian["items"] == len(rows)
    mean = (hindi["score"] * hindi["items"] + russian["score"] * russian["items"]) / len(rows)
    assert mean == pytest.approx(told["eval/accuracy"])
    assert hindi["low"] <= hindi["score"] <= hindi["high"] < russian["low"]
    assert run([*asked, "--slice", "language"]) == DONE
    shown = capsys.readouterr().out
    assert "| language | accuracy | 95% interval " in shown
    assert f"| hi       | {hindi['score']:.1%} " in shown
    for column, message in (("product", "has no column 'product'"), ("text", "at most 100")):
        assert run([*asked, "--slice", column]) == MISTAKE
        assert message in capsys.readouterr().err


def test_labels_that_are_probably_wrong_are_written_to_a_file(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    submitted, _ = submission(models, tmp_path)
    rows = [("да" if place % 2 else "нет", "yes" if place % 2 else "no") for place in range(60)]
    rows[41] = ("да", "no")
    path = tmp_path / "ответы.csv"
    lines = [f"{text} {place % 7},{label}" for place, (text, label) in enumerate(rows)]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    model = str(submitted.artifact.local_folder())
    asked = ["evaluate", "--model", model, "--labels", str(path), "--suspects", "5"]
    assert run(asked) == DONE
    assert (
        "1 labels most likely to be wrong, by TF-IDF: ответы-suspects.csv"
        in capsys.readouterr().out
    )
    (row,) = pd.read_csv("ответы-suspects.csv").to_dict("records")
    assert (row["place"], row["label"], row["suggestion"]) == ("line 43", "no", "yes")
    assert row["text"] == "да 6" and 0 < row["probability"] < 0.5
    assert run(asked) == MISTAKE
    assert "ответы-suspects.csv exists; move it away first" in capsys.readouterr().err
