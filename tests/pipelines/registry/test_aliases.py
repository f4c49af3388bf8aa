"""A person promotes and goes back, and what the registry tells of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from flows.cli.app import DONE, MISTAKE, run
from flows.promote import compare_and_promote
from pipelines.errors import UserError
from pipelines.recipes.recipe import ComparisonSettings
from pipelines.registry.compare import Comparison, compare_versions
from pipelines.registry.find import COMPARISON_TAG, KIND_TAG, PROMOTED_TAG, VERIFIED_TAG
from pipelines.registry.lineage import lineage_lines
from pipelines.registry.promote import PREVIOUS, Promotion, decide_promotion, move_alias
from pipelines.stages.dataset.settings import DatasetSettings, LabelledFile
from pipelines.stages.dataset.stage import build_dataset
from pipelines.train.imported import import_folder
from tests.pipelines.registry.classifiers import choose, go_back, run_of
from tests.pipelines.registry.conftest import Models


@pytest.fixture
def home(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the registry of the tests."""
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path


@pytest.fixture
def three(models: Models, home: Path) -> Models:
    """A registry whose versions 1, 2 and 3 became champion one after the other."""
    for number in (1, 2, 3):
        models.register(models.encoder(number))
        tag(models, str(number), VERIFIED_TAG, "true")
        choose(models, "encoder", str(number), f"reason {number}")
    return models


def tag(models: Models, number: str, key: str, value: str) -> None:
    models.tracker.client().set_model_version_tag("encoder", number, key, value)


def champion(models: Models) -> int:
    client = models.tracker.client()
    return int(client.get_model_version_by_alias("encoder", "champion").version)


def nothing_began(home: Path) -> bool:
    """No Prefect API, hence no flow run that could be left failed."""
    return not (home / "logs").exists()


def test_it_goes_back_one_after_the_other_and_a_new_champion_to_the_one_that_was_kept(
    three: Models,
) -> None:
    assert [go_back(three, "encoder"), go_back(three, "encoder")] == [2, 1]
    with pytest.raises(UserError, match="no version of encoder was champion before"):
        go_back(three, "encoder")
    choose(three, "encoder", "3")
    assert go_back(three, "encoder") == 1


def test_a_version_before_that_was_deleted_is_named(three: Models) -> None:
    three.tracker.client().delete_model_version("encoder", "2")
    with pytest.raises(UserError, match=r"or it was deleted; .*promote encoder"):
        go_back(three, "encoder")
    assert champion(three) == 3


@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_rollback_that_is_tried_again_goes_back_once(
    three: Models, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    set_alias = MlflowClient.set_registered_model_alias

    def lose(client: MlflowClient, *arguments: str) -> None:
        if lost == "the answer":
            set_alias(client, *arguments)
        raise MlflowException("no connection")

    decision = decide_promotion(three.tracker, "encoder", PREVIOUS, "champion")
    with monkeypatch.context() as patched, pytest.raises(MlflowException):
        patched.setattr(MlflowClient, "set_registered_model_alias", lose)
        move_alias(three.tracker, decision)
    move_alias(three.tracker, decision)
    assert champion(three) == 2


def test_nothing_moves_where_another_version_has_got_the_alias_since(three: Models) -> None:
    forward = decide_promotion(three.tracker, "encoder", "1", "champion")
    back = decide_promotion(three.tracker, "encoder", PREVIOUS, "champion")
    choose(three, "encoder", "2")
    for decision in (replace(forward, previous_version=None), forward, back):
        with pytest.raises(UserError, match=r"encoder@champion is version 2 now, .*then ask again"):
            move_alias(three.tracker, replace(decision, version=1))
    assert champion(three) == 2
    assert not three.tracker.client().get_registered_model("encoder").tags


def test_a_run_that_tries_again_does_not_undo_a_rollback(
    three: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = three.tracker.client()
    choose(three, "encoder", "2")
    decision = Promotion(
        name="encoder", alias="champion", version=1, previous_version=2, reason="better",
        is_of_run=True,
    )  # fmt: skip

    set_tag = MlflowClient.set_model_version_tag

    def lose(client: MlflowClient, name: str, number: str, key: str, value: str) -> None:
        if key.endswith(".reason"):
            raise MlflowException("no connection")
        set_tag(client, name, number, key, value)

    with monkeypatch.context() as patched, pytest.raises(MlflowException):
        patched.setattr(MlflowClient, "set_model_version_tag", lose)
        move_alias(three.tracker, decision)
    assert champion(three) == 1
    go_back(three, "encoder")
    kept = client.get_registered_model("encoder").tags
    assert kept
    with pytest.raises(UserError, match="a person rolled models:/encoder/1 back"):
        move_alias(three.tracker, decision)
    assert champion(three) == 2
    assert client.get_registered_model("encoder").tags == kept
    choose(three, "encoder", "1")  # a person may
    assert champion(three) == 1
    assert not client.get_registered_model("encoder").tags


def test_a_run_compares_three_times_with_an_alias_that_moves_each_time(
    three: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = Comparison(
        name="encoder", version=2, is_better=True, reason="better than models:/encoder/1",
        champion=1,
    )  # fmt: skip
    monkeypatch.setattr("flows.promote.compare_versions", lambda *inputs: better)
    run = run_of(three)
    with pytest.raises(UserError, match=r"moved during each of 3 comparisons.*run the recipe"):
        compare_and_promote(run, three.register(three.encoder(2)), None)
    assert champion(three) == 3
    assert (len(run.report.comparisons), run.report.promotions) == (3, [])


def test_what_cannot_be_done_is_refused_before_anything_begins(
    three: Models, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three.register(three.encoder(4))
    for command, sentence in (
        (["rollback", "encoder", "--alias", "latest"], "keeps `latest` and numbers"),
        (["rollback", "nobody"], "the registry has no model 'nobody'"),
        (["promote", "encoder", "--version", "9"], "no version of encoder has the alias or number"),
        (["promote", "encoder", "--version", "4"], "has not repeated its logged score"),
        (["promote", "encoder", "--to", "v3"], "keeps `latest` and numbers"),
    ):
        assert run(command) == MISTAKE
        assert sentence in capsys.readouterr().err
    assert nothing_began(home)


def test_an_alias_does_not_move_to_a_version_of_another_kind(three: Models) -> None:
    tag(three, "2", KIND_TAG, "classification")
    with pytest.raises(UserError, match=r"is of the kind classification, and encoder@champion of"):
        choose(three, "encoder", "2", "it is newer")
    assert champion(three) == 3
    # One that moved so before there was this rule is taken back.
    go_back(three, "encoder")
    assert champion(three) == 2


def test_a_reason_that_a_person_gives_is_kept(three: Models) -> None:
    """Also for the version that has the alias; one that nobody gave replaces none."""
    for given, kept in (("legal asked for it", "legal asked for it"), ("", "legal asked for it")):
        choose(three, "encoder", "3", given)
        tags = three.tracker.client().get_model_version("encoder", "3").tags
        assert tags[f"{PROMOTED_TAG}.champion.reason"] == kept
    comparison = compare_versions(
        three.tracker, three.context.store, "encoder", 3, "champion", ComparisonSettings()
    )
    assert comparison.reason == "it is champion already"
    tags = three.tracker.client().get_model_version("encoder", "3").tags
    assert tags[f"{PROMOTED_TAG}.champion.reason"] == "legal asked for it"


@pytest.mark.slow
def test_promote_and_rollback_as_flows(three: Models) -> None:
    """With a Prefect API of their own each time."""
    assert run(["promote", "encoder", "--version", "1", "--because", "it is old"]) == DONE
    assert champion(three) == 1
    assert run(["rollback", "encoder"]) == DONE
    assert champion(three) == 3


def test_models_lists_versions_and_says_why_one_is_champion(
    three: Models, capsys: pytest.CaptureFixture[str]
) -> None:
    tag(three, "2", f"{COMPARISON_TAG}.reason", "not better than models:/encoder/1")
    assert run(["models"]) == DONE
    said = capsys.readouterr().out
    for words in (
        "encoder  version 3   @candidate, @champion", "champion: reason 3",
        "not better than models:/encoder/1",
    ):  # fmt: skip
        assert words in said
    assert run(["models", "--json"]) == DONE
    rows = json.loads(capsys.readouterr().out)
    assert [row["version"] for row in rows] == [3, 2, 1]
    assert rows[0]["promoted"] == {"champion": "reason 3"}
    choose(three, "encoder", PREVIOUS, "wrong on long texts")
    assert run(["models"]) == DONE
    assert "champion: version 3 was rolled back: wrong on long texts" in capsys.readouterr().out


def test_one_model_is_shown_in_full(models: Models, home: Path, capsys: pytest.CaptureFixture[str]):
    models.register(models.encoder(1))
    for name, value in {
        "proof.reproduced": "0.25", "comparison.decision": "better",
        "comparison.reason": "better than the constant", "promoted.archive.reason": "by hand",
        "promoted.champion.reason": "better than the constant",
    }.items():  # fmt: skip
        tag(models, "1", f"bertsmith.{name}", value)
    store = ["--store", models.context.store.url]
    assert run(["models", "encoder/1", *store]) == DONE
    said = capsys.readouterr().out
    fingerprint = models.encoder(1).fingerprint
    for words in (
        "models:/encoder/1  @candidate\nencoder, registered 20", f" {fingerprint}\n",
        "\ncomparison: better than the constant\nformerly archive: by hand\n",
        "\nformerly champion: by this comparison\n",
        "\nnot verified: it has not reproduced its score in a fresh process\nmade from\n",
        "    seed: 1",
    ):  # fmt: skip
        assert words in said
    assert run(["models", "encoder/1", "--json", *store]) == DONE
    assert json.loads(capsys.readouterr().out)["tags"]["fingerprint"] == fingerprint
    assert run(["models", "encoder/9", *store]) == MISTAKE


def test_the_lineage_of_labels_names_what_somebody_set(models: Models, tmp_path: Path) -> None:
    rows = "".join(f"text {number},{['да', 'нет'][number % 2]}\n" for number in range(100))
    (tmp_path / "labels.csv").write_text(f"text,ответ\n{rows}", encoding="utf-8")
    source = LabelledFile(path=str(tmp_path / "labels.csv"), label_column="ответ")
    dataset = build_dataset(DatasetSettings(source=source), None, models.context)
    settings = [
        line for line in lineage_lines("dataset", dataset.fingerprint, models.context.store)
        if ": " in line
    ]  # fmt: skip
    assert settings == ["  source.label_column: ответ"]


def test_the_lineage_goes_down_to_the_bytes_that_came_from_outside(models: Models) -> None:
    store, examples = models.context.store, models.examples
    lines = lineage_lines("examples", examples.fingerprint, store)
    assert lines[0] == f"examples {examples.fingerprint}"
    assert "  max_tokens: 64" in lines
    assert any(line.startswith("  corpus ") for line in lines)
    assert any(line.startswith("    text ") for line in lines)
    assert any(line.endswith(", see above") for line in lines)  # the vocabulary's corpus
    gone = lineage_lines("examples", "0" * 32, store)
    assert gone == [f"examples {'0' * 32}: not in the store {store.url}"]
    imported = import_folder(models.encoder(1).local_folder(), models.context, source="theirs")
    for name in ("encoder", "finetuned", "base_encoder"):  # whatever its reader calls it
        first = lineage_lines(name, imported.fingerprint, store)[0]
        assert first == f"imported_model {imported.fingerprint}"
