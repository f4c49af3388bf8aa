"""A command that only asks a registry creates none, and names one that it cannot read."""

import sqlite3
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.cli.app import DONE, MISTAKE, run

ASKING = (
    ["predict", "a", "--model", "encoder@champion"],
    ["models", "encoder@champion"],
    ["promote", "encoder"],
    ["rollback", "encoder"],
    ["serve", "encoder@champion", "--port", "0"],
    ["evaluate", "--model", "encoder", "--labels", "a.csv"],
    ["export", "encoder@champion", "--to", "out"],
)

# Without a model they ask which there are.
OF_ANY_MODEL = (["predict", "a"], ["serve", "--port", "0"], ["fill-mask", "a [MASK]"])


@pytest.mark.parametrize("command", ASKING, ids=lambda command: command[0])
def test_a_home_without_a_registry_gets_none(
    command: list[str], own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == MISTAKE
    assert "there is no registry at sqlite:///" in capsys.readouterr().err
    assert not list(own_home.rglob("*.db"))


def test_a_list_of_no_models_creates_no_registry(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["models"], ["store"], ["store", "prune"]):
        assert run(command) == DONE
    assert "is empty; `bertsmith run` fills it" in capsys.readouterr().out
    assert not list(own_home.rglob("*.db"))


def test_a_database_of_another_program_gets_no_tables(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{own_home}.db")
    with sqlite3.connect(f"{own_home}.db") as database:
        database.execute("create table theirs (number)")
    assert run(["models"]) == MISTAKE
    assert "is another program's database; name one of MLflow's" in capsys.readouterr().err
    assert database.execute("select count(*) from sqlite_master").fetchone() == (1,)


@pytest.mark.parametrize("command", [["models"], ["store"], *OF_ANY_MODEL, *ASKING], ids=" ".join)
def test_a_database_of_another_mlflow_ends_in_a_sentence(
    command: list[str], own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "made.db"  # elsewhere: MLflow keeps what it has opened
    MlflowClient(f"sqlite:///{file}", f"sqlite:///{file}").search_registered_models()
    with sqlite3.connect(file) as database:
        database.execute("update alembic_version set version_num = 'deadbeef0000'")
    own_home.mkdir(exist_ok=True)
    file.rename(own_home / "mlflow.db")
    capsys.readouterr()
    assert run(command) == MISTAKE
    sentence = capsys.readouterr().err
    assert "mlflow db upgrade" in sentence
    assert "Traceback" not in sentence
