"""What the last screen of a run sends people to, and its page."""

import sys
from pathlib import Path

import pytest

from flows.reporting.report import RunReport, print_report
from pipelines.recipes.recipe import Recipe
from pipelines.settings import RuntimeSettings

SERVER = "http://127.0.0.1:5000"


@pytest.mark.parametrize("tracking_uri", ["sqlite:////somewhere/mlflow.db", SERVER])
def test_servers_are_offered_where_none_is_used(
    tracking_uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(RunReport(flow="end-to-end", recipe=Recipe()), tracking_uri)
    printed = capsys.readouterr().out
    assert ("bertsmith up" in printed) is (tracking_uri != SERVER)
    assert "--home" not in printed


def test_the_next_commands_go_to_the_home_that_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "a home"
    report = RunReport(flow="end-to-end", recipe=Recipe(runtime=RuntimeSettings(home=str(home))))
    print_report(report, "")
    commands = capsys.readouterr().out.partition("## Next\n")[2].strip().splitlines()
    assert len(commands) == 2
    for command in commands:
        assert f"--home '{home}'" in command


def test_a_terminal_shows_the_markdown_rendered_that_a_pipe_gets_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = RunReport(flow="end-to-end", recipe=Recipe(), notes=["a note"])
    print_report(report, "")
    assert "\n## Notes\n\n- a note\n" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(report, "")
    said = capsys.readouterr().out
    assert "Notes" in said
    assert "a note" in said
    assert "#" not in said.partition("Next")[0]
