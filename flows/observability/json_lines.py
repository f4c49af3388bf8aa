"""Logs as JSON lines, one object a line, where BERTSMITH_LOGS=json asks for them.

Every line says which run, stage and artifact it belongs to, so that a log store can be asked for
all that one of them said. They go to standard output, in place of Prefect's own console lines.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple

from prefect.logging.handlers import PrefectConsoleHandler

from pipelines.artifacts.store import being_built
from pipelines.core.errors import UserError
from pipelines.core.redaction import redacted

VARIABLE = "BERTSMITH_LOGS"
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "flows", "pipelines", "bert_core")


class _Working(NamedTuple):
    run: str
    flow_run: str
    stage: str = ""


_working: ContextVar[_Working | None] = ContextVar("working", default=None)


class JsonLines(logging.Formatter):
    """A record as one line of JSON; names with nothing to say are left out."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without secrets."""
        working, made = _working.get(), being_built()
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
            "run": working.run if working else "",
            "flow_run": working.flow_run if working else "",
            "stage": working.stage if working else "",
            "artifact": made.kind if made else "",
            "fingerprint": made.fingerprint if made else "",
            "error": redacted(self.formatException(record.exc_info)) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in told.items() if value})


@contextmanager
def logs_of_run(run: str, flow_run_id: str) -> Iterator[None]:
    """Lines of the block belong to this run; they are JSON where that is asked for.

    Raises UserError where the variable asks for anything else.
    """
    asked = os.environ.get(VARIABLE, "text")
    if asked not in ("text", "json"):
        raise UserError(f"{VARIABLE} must be text or json, found {asked!r}")
    token = _working.set(_Working(run, flow_run_id))
    try:
        if asked == "text":
            yield
        else:
            with _json_on_standard_output():
                yield
    finally:
        _working.reset(token)


@contextmanager
def logs_of_stage(stage: str) -> Iterator[None]:
    """Lines of the block belong to this stage of the run."""
    working = _working.get() or _Working("", "")
    token = _working.set(working._replace(stage=stage))
    try:
        yield
    finally:
        _working.reset(token)


@contextmanager
def _json_on_standard_output() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    muted: list[tuple[logging.Logger, logging.Handler]] = []
    for logger in map(logging.getLogger, _LOGGERS):
        for other in list(logger.handlers):
            if isinstance(other, PrefectConsoleHandler):
                logger.removeHandler(other)
                muted.append((logger, other))
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in map(logging.getLogger, _LOGGERS):
            logger.removeHandler(handler)
        for logger, other in muted:
            logger.addHandler(other)
