"""What the last screen of a run sends people to."""

import sys
from pathlib import Path

import pytest

from flows.reporting.publishing import print_report
from flows.reporting.run_report import RunReport
from pipelines.recipes.models import EndToEndRecipe
from pipelines.recipes.runtime import RuntimeSettings

SERVER = "http://127.0.0.1:5000"


@pytest.mark.parametrize(
    ("tracking_uri", "services_run", "wanted", "unwanted"),
    [
        ("sqlite:////somewhere/mlflow.db", False, "bertsmith up", "bertsmith down"),
        ("sqlite:////somewhere/mlflow.db", True, "bertsmith down", "bertsmith up"),
        (SERVER, True, "bertsmith down", "bertsmith up"),
        (SERVER, False, "bertsmith run", "bertsmith down"),  # somebody else's server
    ],
)
def test_servers_are_stopped_only_where_they_are_this_homes(
    tracking_uri: str,
    services_run: bool,
    wanted: str,
    unwanted: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = RunReport(flow="end-to-end", recipe=EndToEndRecipe())
    print_report(report, tracking_uri, services_run=services_run)
    said = capsys.readouterr().out
    assert wanted in said
    assert unwanted not in said
    assert "--home" not in said


def test_the_next_commands_go_to_the_home_that_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a home"
    report = RunReport(
        flow="end-to-end", recipe=EndToEndRecipe(runtime=RuntimeSettings(home=str(home)))
    )
    print_report(report, "")
    commands = capsys.readouterr().out.partition("## Next\n")[2].strip().splitlines()
    assert len(commands) == 2
    for command in commands:
        assert f"--home '{home}'" in command


def test_a_terminal_shows_the_markdown_rendered_that_a_pipe_gets_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = RunReport(flow="end-to-end", recipe=EndToEndRecipe(), notes=["a note"])
    print_report(report, "")
    assert "\n## Notes\n\n- a note\n" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(report, "")
    said = capsys.readouterr().out
    assert "Notes" in said
    assert "a note" in said
    assert "#" not in said.partition("Next")[0]
