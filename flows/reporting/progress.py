"""Live progress of a flow run: to its log, to a progress artifact, and to the terminal."""

import contextvars
import logging
import threading
import time
from typing import cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging import get_run_logger

from flows.reporting.progress_line import current_progress_line, sentence
from pipelines.errors import redacted
from pipelines.stage import Progress

logger = logging.getLogger(__name__)

_AWAY = (httpx.HTTPError, PrefectHTTPStatusError)  # a server that restarts, or whose database does
_LOG_SECONDS = 10.0
_ARTIFACT_SECONDS = 3.0
_OURS = tuple(logging.getLogger(name) for name in ("bert_core", "pipelines", "flows"))


class ProgressReporter:
    """The observer of a run's stages. It may be called from any thread and never blocks."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._logger = get_run_logger()
        self._line = current_progress_line()
        self._lock = threading.Lock()
        self._first: dict[str, tuple[float, float]] = {}  # stage -> (time, done) when first seen
        self._last_logged: dict[str, float] = {}
        self._latest: tuple[Progress, str] | None = None
        self._stopping = threading.Event()
        # A thread of its own calls the API: a slow answer must not delay a training run.
        self._publisher = threading.Thread(
            target=contextvars.copy_context().run,
            args=(self._publish,),
            name="progress-artifact",
            daemon=True,
        )
        self._warnings = _Warnings(self)
        self.notes: list[str] = []

    def __enter__(self) -> "ProgressReporter":
        for ours in _OURS:
            ours.addHandler(self._warnings)
        self._publisher.start()
        return self

    def __exit__(self, *raised: object) -> None:
        for ours in _OURS:
            ours.removeHandler(self._warnings)
        self._stopping.set()
        self._publisher.join()
        if self._line is not None:
            self._line.clear()

    def observe(self, progress: Progress) -> None:
        """Pass on how far a stage has come."""
        now = time.monotonic()
        with self._lock:
            text = sentence(progress, self._seconds_left(progress, now))
            self._latest = (progress, text)
            last = self._last_logged.get(progress.stage)
            is_due = last is None or now - last >= _LOG_SECONDS or progress.fraction == 1
            if is_due:
                self._last_logged[progress.stage] = now
        if self._line is not None:
            self._line.show(text)
        if progress.note:
            self.note(progress.note)
        if is_due:
            self._logger.info(text)

    def say(self, text: str) -> None:
        """A line for the log and the terminal that stays."""
        self._logger.info(text)
        if self._line is not None:
            self._line.keep(text)

    def note(self, sentence: str, *, is_logged: bool = False) -> None:
        """A sentence for the report, the terminal and, unless it is there already, the log."""
        with self._lock:
            self.notes.append(sentence)
        if not is_logged:
            self._logger.info(sentence)
        if self._line is not None:
            self._line.keep(sentence)

    def _seconds_left(self, progress: Progress, now: float) -> float | None:
        """By the rate since the stage was first seen, or resumed."""
        started, done_then = self._first.setdefault(progress.stage, (now, progress.done))
        done_since = progress.done - done_then
        if done_since <= 0 or now - started < 1 or progress.done >= progress.total:
            return None
        return (progress.total - progress.done) * (now - started) / done_since

    def _publish(self) -> None:
        artifact_id: UUID | None = None
        published: tuple[Progress, str] | None = None
        is_last_round = False
        while not is_last_round:
            is_last_round = self._stopping.wait(_ARTIFACT_SECONDS)
            latest = self._latest
            if latest is None or latest is published:
                continue
            progress, text = latest
            percent = round(100 * progress.fraction, 1)
            try:
                if artifact_id is None:
                    key = f"{self._key}-progress"
                    made = create_progress_artifact(percent, key=key, description=text)
                    artifact_id = cast(UUID, made)  # a coroutine only inside an event loop
                else:
                    update_progress_artifact(artifact_id, percent, description=text)
                published = latest
            except _AWAY as error:  # the next round tries again
                logger.warning("progress is not shown on the page: %s", error)


class _Warnings(logging.Handler):
    """Shows warnings of the log in the terminal and the report."""

    def __init__(self, reporter: ProgressReporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on each sentence once."""
        sentence = redacted(record.getMessage())
        if sentence not in self._reporter.notes:
            self._reporter.note(sentence, is_logged=True)
