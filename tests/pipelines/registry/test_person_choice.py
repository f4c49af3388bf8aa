"""A person promotes and goes back: what is on record is said, and refusals come before anything."""

import json
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from flows.cli.app import DONE, MISTAKE, run
from pipelines.config.errors import UserError
from pipelines.registry.comparison.versus import versus
from pipelines.registry.finding import COMPARISON_TAG, PROOF_TAG, VERIFIED_TAG
from pipelines.registry.person_choice import moves_of, record, recorded_objection
from pipelines.registry.promotion import Promotion, promote, rollback
from tests.pipelines.registry.classifiers import finetuned, labelled_texts
from tests.pipelines.registry.conftest import Models, package_of

WORSE = "not better than models:/encoder/1: accuracy 0.3200 against 0.9660"


@pytest.fixture
def home(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose registry has a champion, and a version that was compared with it and lost."""
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    for seed in (1, 2):
        models.register(models.encoder(seed))
    tag(models, "1", {VERIFIED_TAG: "true"})
    tag(models, "2", {VERIFIED_TAG: "true", **compared("not better", "models:/encoder/1", WORSE)})
    promote(models.tracker, "encoder", "1", "champion", by="ann")
    return tmp_path


def compared(decision: str, against: str, reason: str = "what was found") -> dict[str, str]:
    values = {"decision": decision, "against": against, "reason": reason}
    return {f"{COMPARISON_TAG}.{key}": value for key, value in values.items()}


def tag(models: Models, number: str, tags: dict[str, str], name: str = "encoder") -> None:
    for key, value in tags.items():
        models.tracker.client().set_model_version_tag(name, number, key, value)


def champion(models: Models) -> int:
    client = models.tracker.client()
    return int(client.get_model_version_by_alias("encoder", "champion").version)


def nothing_began(home: Path) -> bool:
    """No Prefect API, hence no flow run that could be left failed."""
    return not (home / "logs").exists()


def champions(models: Models) -> list[tuple[int, int | None, str]]:
    moves = moves_of(models.tracker.client(), "encoder")
    return [(move.version, move.before, move.how) for move in moves]


@pytest.fixture
def three(models: Models) -> Models:
    """A registry whose versions 1, 2 and 3 became champion one after the other."""
    for number in (1, 2, 3):
        models.register(models.encoder(number))
        tag(models, str(number), {VERIFIED_TAG: "true"})
        promote(models.tracker, "encoder", str(number), "champion", by="ann")
    return models


@pytest.mark.parametrize("lost", ["the answer", "the request"])
def test_a_rollback_that_is_tried_again_goes_back_once(
    three: Models, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    move_alias = MlflowClient.set_registered_model_alias

    def lose(client: MlflowClient, *arguments: str) -> None:
        if lost == "the answer":
            move_alias(client, *arguments)
        raise MlflowException("no connection")

    with monkeypatch.context() as patched, pytest.raises(MlflowException):
        patched.setattr(MlflowClient, "set_registered_model_alias", lose)
        rollback(three.tracker, "encoder", "champion", by="ann", holder=3)
    assert rollback(three.tracker, "encoder", "champion", by="ann", holder=3).version == 2
    assert champion(three) == 2
    assert champions(three)[-2:] == [(3, 2, "person"), (2, 3, "rollback")]


def test_a_rollback_that_was_killed_before_the_alias_moved_is_typed_again(
    three: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*arguments: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(MlflowClient, "set_registered_model_alias", kill)
        rollback(three.tracker, "encoder", "champion", by="ann")
    rollback(three.tracker, "encoder", "champion", by="ann")
    assert champion(three) == 2


def test_two_people_who_see_the_same_bad_version_go_back_once(three: Models) -> None:
    for who in ("ann", "bea"):
        rollback(three.tracker, "encoder", "champion", by=who, holder=3)
        assert champion(three) == 2
    assert champions(three)[-1] == (2, 3, "rollback")
    promote(three.tracker, "encoder", "1", "champion", by="ann")
    for seen in (2, 3):
        with pytest.raises(UserError, match=rf"version {seen} had .*, and version 1 has it"):
            rollback(three.tracker, "encoder", "champion", by="bea", holder=seen)
    with pytest.raises(UserError, match=r"version 2 had .* decided, and version 1 has it now"):
        promote(three.tracker, "encoder", "3", "champion", by="bea", holder=2)
    assert champion(three) == 1


def test_moves_stay_in_order_after_one_by_a_machine_whose_clock_is_ahead(three: Models) -> None:
    client = three.tracker.client()
    last = moves_of(client, "encoder")[-1]
    ahead = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    client.set_registered_model_alias("encoder", "champion", "1")
    record(client, "encoder", replace(last, version=1, before=3, at=ahead))
    for version in (3, 2):
        rollback(three.tracker, "encoder", "champion", by="ann")
        assert champion(three) == version
    moved = [version for version, _, _ in champions(three)]
    assert moved == [1, 2, 3, 1, 3, 2]


def test_a_worse_version_is_not_promoted_without_a_word(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["promote", "encoder", "--version", "2"]) == MISTAKE
    said = capsys.readouterr().err
    assert "needs --force" in said
    assert f"models:/encoder/2: {WORSE}" in said
    assert champion(models) == 1
    assert nothing_began(home)


def test_what_simpler_models_do_as_well_is_told_and_not_asked(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models.tracker.client().delete_registered_model_alias("encoder", "champion")
    reason = "not better than TF-IDF: accuracy 0.5890 against 0.7960; try more labels"
    tag(models, "2", compared("not better", "TF-IDF", reason))
    moved = Promotion(name="encoder", alias="champion", version=2, previous_version=None)
    monkeypatch.setattr("flows.cli.commands.promotion._moved", lambda *given: moved)
    assert run(["promote", "encoder", "--version", "2"]) == DONE
    assert f"On record: {reason}." in capsys.readouterr().out


def at_a_terminal(answer: str, *command: str) -> subprocess.CompletedProcess[str]:
    """The command, typed by a person who answers its question."""
    ours, theirs = pty.openpty()
    code = "import sys; from flows.cli.app import run; sys.exit(run(sys.argv[1:]))"
    os.write(ours, answer.encode())
    try:
        return subprocess.run(
            [sys.executable, "-c", code, *command],
            stdin=theirs, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
    finally:
        os.close(ours)
        os.close(theirs)


def test_at_a_terminal_a_person_is_asked_and_may_say_no(models: Models, home: Path) -> None:
    asked = at_a_terminal("n\n", "promote", "encoder", "--version", "2")
    assert asked.returncode == 1, asked.stderr
    assert f"On record: models:/encoder/2: {WORSE}." in asked.stdout
    assert "Make encoder version 2 champion anyway? [y/N]" in asked.stdout
    assert "Nothing was moved." in asked.stdout
    assert champion(models) == 1
    assert nothing_began(home)


@pytest.mark.slow
def test_a_person_may_overrule_and_go_back(models: Models, home: Path) -> None:
    """With a Prefect API of its own each time."""
    done = at_a_terminal("y\n", "promote", "encoder", "--version", "2", "--because", "it is new")
    assert done.returncode == 0, done.stderr
    assert "encoder@champion is version 2, before it was 1" in done.stdout
    assert champion(models) == 2
    done = at_a_terminal("", "rollback", "encoder")
    assert done.returncode == 0, done.stderr
    assert champion(models) == 1
    assert [move.how for move in moves_of(models.tracker.client(), "encoder")] == [
        "person", "person", "rollback",
    ]  # fmt: skip


def test_what_cannot_go_back_is_refused_before_anything_begins(
    models: Models, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, sentence in (
        (["rollback", "encoder"], "had the alias champion before version"),
        (["rollback", "encoder", "--alias", "latest"], "keeps `latest` and numbers"),
        (["rollback", "nobody"], "no version of nobody has the alias"),
        (
            ["promote", "encoder", "--version", "9"],
            "no model 'encoder' with",
        ),
        (["promote", "encoder", "--to", "v3"], "keeps `latest` and numbers"),
    ):
        assert run(command) == MISTAKE
        assert sentence in capsys.readouterr().err
    assert nothing_began(home)


def test_what_is_on_record_of_two_versions_speaks_for_one_of_them(
    models: Models, home: Path
) -> None:
    client = models.tracker.client()

    def said(number: str, alias: str = "champion") -> str:
        return recorded_objection(client, client.get_model_version("encoder", number), alias)

    assert said("1") == said("2", "blessed") == ""
    tag(models, "2", compared("better, awaits approval", "models:/encoder/1"))
    assert said("2") == ""
    tag(models, "2", compared("not better", "models:/encoder/7", "of another champion"))
    assert said("2") == ""  # never compared, and no figures
    tag(models, "1", compared("better", "models:/encoder/2", "it won"))
    assert said("2") == "models:/encoder/1: it won"
    tag(models, "1", compared("better", "baselines"))
    for number, figure in (("1", "0.966"), ("2", "0.32")):
        proof = {"metric": "eval/mlm_accuracy", "reproduced": figure}
        tag(models, number, {f"{PROOF_TAG}.{key}": value for key, value in proof.items()})
    assert "reached eval/mlm_accuracy 0.3200" in said("2")
    assert said("2").endswith("they were never compared")


def test_the_history_is_read_by_people_and_older_ones_too(models: Models, home: Path) -> None:
    client = models.tracker.client()
    (move,) = moves_of(client, "encoder")
    tags = client.get_registered_model("encoder").tags
    ((key, text),) = ((k, v) for k, v in tags.items() if k.startswith("bertsmith.history."))
    assert text.startswith("alias: champion\nversion: 1\nbefore: null\nhow: person\nby: ann\n")
    older = {
        "at": move.at, "alias": "champion", "version": 2, "before": 1, "how": "comparison",
        "by": "the run x", "reason": 'better: "so"\nand so', "fingerprint": "f",
        "before_fingerprint": "g",
    }  # fmt: skip
    client.set_registered_model_tag("encoder", f"{key}0", json.dumps(older))
    assert [each.version for each in moves_of(client, "encoder")] == [1, 2]
    assert moves_of(client, "encoder")[1].reason == older["reason"]


def test_that_two_versions_cannot_be_compared_is_said_before_either_is_loaded(
    models: Models, tmp_path: Path
) -> None:
    from pipelines.registry.registration import Submission, register

    made = []
    for labels in (("no", "yes"), ("false", "true")):
        dataset = labelled_texts(models, tmp_path, labels=labels, size=60)
        artifact = finetuned(models, dataset, 0)
        submission = Submission(
            kind="classification", name="classifier", alias="candidate", artifact=artifact,
            lineage={"dataset": dataset}, recipe_yaml="name: small\n",
        )  # fmt: skip
        made.append(register(submission, models.tracker))
        tag(models, str(made[-1].version), {f"{PROOF_TAG}.metric": "eval/accuracy"}, "classifier")
    for model in made:
        shutil.rmtree(package_of(models, model))  # there is nothing that could be loaded
    found = versus(models.tracker, models.context.store, "classifier/1", "classifier/2")
    assert found.difference is None
    assert found.why_not.startswith("they have different labels: false, no, true, yes")
