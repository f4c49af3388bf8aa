"""What the last screen of a run sends people to, and its page."""

import sys

import pytest

from flows.report import RunReport, print_report
from pipelines.recipes.recipe import Recipe


def test_a_terminal_shows_the_markdown_rendered_that_a_pipe_gets_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = RunReport(flow="end-to-end", recipe=Recipe(), notes=["a note"])
    print_report(report)
    assert "\n## Notes\n\n- a note\n" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_report(report)
    said = capsys.readouterr().out
    assert "Notes" in said
    assert "a note" in said
    assert "#" not in said.partition("Next")[0]
