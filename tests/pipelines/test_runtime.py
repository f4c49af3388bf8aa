"""Where a recipe puts things: paths as people write them."""

from pathlib import Path

import pytest

from pipelines.settings import RuntimeSettings
from pipelines.stage import open_tracker


def test_a_tilde_is_the_persons_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RuntimeSettings(store="~/store").store_url() == str(tmp_path / "store")
    assert RuntimeSettings(home="~/home").store_url() == str(tmp_path / "home" / "store")
    monkeypatch.setenv("BERTSMITH_HOME", "~/other")
    assert RuntimeSettings().home_folder() == tmp_path / "other"


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
