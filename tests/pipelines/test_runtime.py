"""Where a recipe puts things: paths as people write them."""

from pathlib import Path

import pytest

from pipelines.config.errors import UserError
from pipelines.config.runtime import RuntimeSettings
from pipelines.recipes.connections import check_tracker, open_tracker
from pipelines.tracking.address import database_file


def test_a_tilde_is_the_persons_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RuntimeSettings(store="~/store").store_url() == str(tmp_path / "store")
    assert RuntimeSettings(home="~/home").store_url() == str(tmp_path / "home" / "store")
    monkeypatch.setenv("BERTSMITH_HOME", "~/other")
    assert RuntimeSettings().home_folder() == tmp_path / "other"


def test_the_folder_of_somebody_who_is_not_there_is_one_sentence() -> None:
    for runtime in (
        RuntimeSettings(store="~nobody-of-this-name/x"),
        RuntimeSettings(home="~nobody-0/x"),
    ):
        with pytest.raises(UserError, match=r"~nobody-.* unknown user's home folder"):
            runtime.store_url()


def test_a_home_whose_name_would_cut_the_address_of_a_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has a \? in its name"):
        RuntimeSettings(home=str(tmp_path / "what?")).store_url()


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:////data/mlflow.db", Path("/data/mlflow.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db").absolute()),
        ("http://mlflow:5000", None),
        ("postgresql://somebody@database/mlflow", None),
    ],
)
def test_a_tracker_is_a_file_or_serves_many(uri: str, file: Path | None) -> None:
    assert database_file(uri) == file


@pytest.mark.parametrize(
    ("stated", "recipe", "seconds"),
    [("", None, 0), ("900", None, 900), ("900", 0, 0), ("", 60, 60)],
)
def test_nodes_are_waited_for_as_the_recipe_says_or_else_the_environment(
    monkeypatch: pytest.MonkeyPatch, stated: str, recipe: int | None, seconds: int
) -> None:
    monkeypatch.setenv("BERTSMITH_WAIT_FOR_NODES_SECONDS", stated)
    runtime = RuntimeSettings(wait_for_nodes_seconds=recipe)
    assert runtime.with_waiting_resolved().wait_for_nodes_seconds == seconds


@pytest.mark.parametrize("stated", ["15 minutes", "-1", "1.5"])
def test_a_wait_that_is_no_number_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, stated: str
) -> None:
    monkeypatch.setenv("BERTSMITH_WAIT_FOR_NODES_SECONDS", stated)
    with pytest.raises(UserError, match=f"'{stated}'; set a number of seconds such as 900"):
        RuntimeSettings().with_waiting_resolved()


def test_a_named_database_has_its_files_beside_it_and_not_where_a_command_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beside, elsewhere = tmp_path / "beside", tmp_path / "elsewhere"
    for folder in (beside, elsewhere):
        folder.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{beside / 'mlflow.db'}")
    tracker = open_tracker(RuntimeSettings(home=str(tmp_path / "home")))
    run = tracker.create_run("a run", "fingerprint", {}, {})
    tracker.client().log_text(run, "a line", "file.txt")
    assert [*(beside / "mlartifacts").rglob("file.txt")]
    assert not [*elsewhere.iterdir()]


def test_a_password_in_the_address_of_a_server_is_refused_and_not_shown() -> None:
    runtime = RuntimeSettings(tracking_uri="https://ann:hidden-word@mlflow.example")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING") as refused:
        check_tracker(runtime)
    assert "hidden-word" not in str(refused.value)
