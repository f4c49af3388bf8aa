"""Where a recipe puts things: paths as people write them."""

from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import open_tracker


def test_a_tilde_is_the_persons_own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RuntimeSettings(store="~/store").store_url() == str(tmp_path / "store")
    assert RuntimeSettings(home="~/home").store_url() == str(tmp_path / "home" / "store")
    monkeypatch.setenv("BERTSMITH_HOME", "~/other")
    assert RuntimeSettings().home_folder() == tmp_path / "other"


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
    monkeypatch.setenv("BERTSMITH_WAIT_FOR_NODES_SECONDS", "15 minutes")
    with pytest.raises(UserError, match="'15 minutes'; set a number of seconds such as 900"):
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
