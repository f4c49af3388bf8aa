"""Logs as JSON lines: each says its run, stage and artifact, and no secret."""

import json
import logging

import pytest

from flows.observability.json_lines import VARIABLE, logs_of_run, logs_of_stage
from pipelines.artifacts.store import building
from pipelines.core.errors import UserError

FINGERPRINT = "0123456789abcdef0123456789abcdef"


def test_a_line_says_run_stage_and_fingerprint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "json")
    logger = logging.getLogger("pipelines.of_a_test")
    logger.setLevel(logging.INFO)
    with logs_of_run("demo 1", "id"):
        logger.info("before")
        with logs_of_stage("pretraining"), building("encoder", FINGERPRINT):
            logger.warning("at s3://name:secret@host/%s", "path")
        try:
            raise ValueError("of postgresql://name:secret@host/x")
        except ValueError:
            logger.exception("failed")
    logger.info("after")
    before, within, failed = map(json.loads, capsys.readouterr().out.splitlines())
    assert {"run": "demo 1", "flow_run": "id", "message": "before", "level": "info"}.items() <= (
        before.items()
    )
    assert "stage" not in before
    assert within["stage"] == "pretraining"
    assert (within["artifact"], within["fingerprint"]) == ("encoder", FINGERPRINT)
    assert within["message"] == "at s3://host/path"
    assert "ValueError: of postgresql://host/x" in failed["error"]


def test_lines_are_text_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with logs_of_run("demo 1", "id"):
        logging.getLogger("pipelines.of_a_test").info("said")
    assert not capsys.readouterr().out


def test_any_other_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "xml")
    with pytest.raises(UserError, match="must be text or json, found 'xml'"), logs_of_run("", ""):
        pass
