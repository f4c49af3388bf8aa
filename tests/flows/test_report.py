"""What the last screen of a run sends people to, and its page."""

import json
import sys
from pathlib import Path

import pytest

from flows.reporting.markdown import details
from flows.reporting.publishing import print_report
from flows.reporting.run_report import RunReport, StageRecord
from pipelines.artifacts import ArtifactStore, Built, Draft
from pipelines.config.runtime import RuntimeSettings
from pipelines.recipes.models import EndToEndRecipe

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


def test_labels_are_code_in_the_tables_of_the_page(tmp_path: Path) -> None:
    scores = {"precision": 1.0, "recall": 0.5, "f1": 0.67, "items": 3}
    rows = [{"label": label, **scores} for label in ("*a*", "b|c", "<i>d</i>")]

    def build(draft: Draft) -> Built:
        draft.write("report.json", json.dumps({"by_label": rows}).encode())
        return Built(["report.json"], {})

    evaluation = ArtifactStore(tmp_path / "store").get_or_build(
        "evaluation", version=1, settings={}, inputs={}, build=build
    )
    record = StageRecord("evaluation", evaluation, seconds=1.0, peak_bytes=1)
    page = details(RunReport("end-to-end", EndToEndRecipe(), records=[record]), {})
    for cell in ("`*a*`", "`b\\|c`", "`<i>d</i>`"):
        assert f"\n| {cell:<10} | 100.0% " in page
