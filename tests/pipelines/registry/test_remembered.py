"""A home's registry is asked once, until somebody writes to it; bytes are checked each time."""

import os
import sqlite3
from pathlib import Path

import pytest

from flows.cli import asked_model
from flows.cli.app import DONE, MISTAKE, run
from flows.cli.first_answers import find_first_answers
from pipelines.core.place import PlaceSettings
from pipelines.registry.lookups.remembered import remember, remembered, state_of
from pipelines.registry.serving.integrity import seal
from pipelines.registry.tags import VERIFIED_TAG
from tests.pipelines.registry.conftest import Models, package_of


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "mlflow.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table registered_model_aliases (name text)")
        connection.execute("create table metrics (value real)")
    connection.close()
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "weights").write_text("x")
    seal(folder)
    return folder


def write(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("insert into registered_model_aliases values ('champion')")
    connection.close()


def test_an_answer_counts_until_the_registry_changes(database: Path, package: Path) -> None:
    assert remembered(database, "clf") is None
    remember(database, [("clf", "clf/3", package)], state_of(database))
    remember(database, [("other", "other/1", package)], state_of(database))
    found = remembered(database, "clf")
    assert found is not None
    assert (found.called, found.package) == ("clf/3", package)
    assert remembered(database, "clf@champion") is None
    write(database)
    assert remembered(database, "clf") is None


def test_what_changed_while_it_was_asked_is_not_kept(database: Path, package: Path) -> None:
    before = state_of(database)
    write(database)
    remember(database, [("clf", "clf/3", package)], before)
    assert remembered(database, "clf") is None


def test_a_change_that_keeps_size_and_time_is_seen(database: Path, package: Path) -> None:
    write(database)
    told = database.stat()
    remember(database, [("clf", "clf/3", package)], state_of(database))
    write(database)
    os.utime(database, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert database.stat().st_size == told.st_size
    assert remembered(database, "clf") is None


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_what_runs_log_changes_no_answer(database: Path, package: Path, journal: str) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(f"pragma journal_mode={journal}")
        remember(database, [("clf", "clf/3", package)], state_of(database))
        connection.execute("insert into metrics values (0.5)")
        connection.commit()
        assert remembered(database, "clf") is not None
        connection.execute("insert into registered_model_aliases values ('champion')")
        connection.commit()
        assert remembered(database, "clf") is None
    connection.close()


def test_a_registry_that_cannot_be_read_has_no_state(database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("begin exclusive")
        assert state_of(database) is None
        connection.rollback()
        assert state_of(database) is not None
        connection.execute("drop table registered_model_aliases")
    connection.close()
    assert state_of(database) is None
    assert state_of(database.with_name("nowhere.db")) is None
    database.write_text("no database")
    assert state_of(database) is None


def test_a_damaged_memory_is_forgotten(database: Path, package: Path) -> None:
    remember(database, [("clf", "clf/3", package)], state_of(database))
    database.with_name("lookups.json").write_text("[1")
    assert remembered(database, "clf") is None
    remember(database, [("clf", "clf/3", package)], state_of(database))
    assert remembered(database, "clf") is not None


def test_a_command_asks_again_when_an_alias_moved_and_refuses_changed_bytes(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))  # whose registry the models stand in
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    assert PlaceSettings().own_registry() == tmp_path / "mlflow.db"
    made = [models.register(models.encoder(seed)) for seed in (1, 2)]
    client = models.tracker.client()
    for number in ("1", "2"):
        client.set_model_version_tag("encoder", number, VERIFIED_TAG, "true")
    client.set_registered_model_alias("encoder", "champion", "1")
    asked: list[object] = []
    ask = asked_model.tracker_of
    monkeypatch.setattr(
        asked_model, "tracker_of", lambda *args, **more: asked.append(args) or ask(*args, **more)
    )

    def vector(*which: str) -> str:
        assert run(["embed", "a text", "--json", *which]) == DONE
        return capsys.readouterr().out

    champion = ["--model", "encoder@champion"]
    assert run(["similar", "a", "text", *champion]) == DONE
    assert capsys.readouterr().err == "model: models:/encoder/1\n"
    asked.clear()
    asked_model.place_of(None).own_registry().with_name("lookups.json").unlink()
    first = vector(*champion)
    assert vector(*champion) == first == vector("--model", "models:/encoder/1")
    assert vector() == first
    assert len(asked) == 3  # each way of naming it once
    assert vector() == vector(*champion) == first
    assert len(asked) == 3
    client.set_registered_model_alias("encoder", "champion", "2")
    assert vector(*champion) == vector() != first
    assert len(asked) == 5
    weights = package_of(models, made[1]) / "artifacts" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run(["embed", "a text", *champion]) == MISTAKE
    assert "model.safetensors has other bytes" in capsys.readouterr().err
    assert len(asked) == 5


def test_what_is_asked_first_was_found_before(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BERTSMITH_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    for seed in (1, 2):
        models.register(models.encoder(seed))
    client = models.tracker.client()
    for number in ("1", "2"):
        client.set_model_version_tag("encoder", number, VERIFIED_TAG, "true")
    client.set_registered_model_alias("encoder", "champion", "1")
    find_first_answers(None, ["nothing-of-this-name", "encoder"])
    monkeypatch.setattr(asked_model, "tracker_of", None)  # who asks now fails
    answers = []
    for which in ([], ["--model", "encoder"]):
        assert run(["embed", "a text", "--json", *which]) == DONE
        said = capsys.readouterr()
        answers.append(said.out)
        assert said.err == "model: models:/encoder/1\n"
    assert answers[0] == answers[1]
    assert run(["fill-mask", "a [MASK]"]) == DONE
