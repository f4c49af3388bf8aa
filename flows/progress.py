"""Live progress of a flow run: to its log, to a progress artifact, and to the terminal."""

import contextvars
import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TextIO, cast
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectHTTPStatusError
from prefect.logging import get_run_logger

from pipelines.errors import redacted
from pipelines.stage import Progress

logger = logging.getLogger(__name__)

_AWAY = (httpx.HTTPError, PrefectHTTPStatusError)  # a server that restarts, or whose database does
_LOG_SECONDS = 10.0
_ARTIFACT_SECONDS = 3.0
_REDRAW_SECONDS = 0.1
_PIPE_SECONDS = 15.0  # between two lines in a file or a pipe
_OURS = tuple(logging.getLogger(name) for name in ("bert_core", "pipelines", "flows"))
_current = contextvars.ContextVar["ProgressLine | None"]("progress_line", default=None)


class ProgressLine:
    """Shows progress on `stream`: one line that updates, or a line now and then in a pipe.

    A quiet one shows warnings alone.
    """

    def __init__(self, stream: TextIO, *, is_quiet: bool = False) -> None:
        self._stream = stream
        self._is_quiet = is_quiet
        self._is_terminal = stream.isatty()
        self._last = 0.0

    def show(self, text: str) -> None:
        """Show `text` in place of the line before; too frequent calls are dropped."""
        now = time.monotonic()
        pause = _REDRAW_SECONDS if self._is_terminal else _PIPE_SECONDS
        if self._is_quiet or now - self._last < pause:
            return
        self._last = now
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[2K{text[:width]}")
        else:
            self._write(f"{text}\n")

    def keep(self, text: str) -> None:
        """Print a line that stays."""
        if not self._is_quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a warning, which stays."""
        self.clear()
        self._write(f"{text}\n")
        self._last = time.monotonic()

    def clear(self) -> None:
        """Take the updating line away."""
        if self._is_terminal:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        """A closed terminal or pipe does not end the run."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def progress_on_terminal(*, is_quiet: bool = False) -> Iterator[ProgressLine]:
    """Flows that run inside show their progress on standard error, quiet ones warnings alone."""
    line = ProgressLine(sys.stderr, is_quiet=is_quiet)
    token = _current.set(line)
    try:
        yield line
    finally:
        line.clear()
        _current.reset(token)


class ProgressReporter:
    """The observer of a run's stages. It may be called from any thread and never blocks."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._logger = get_run_logger()
        self.line = _current.get()
        self._lock = threading.Lock()
        self._first: dict[str, tuple[float, float]] = {}  # stage -> (time, done) when first seen
        self._last_logged: dict[str, float] = {}
        self._latest: tuple[Progress, str] | None = None
        self._stopping = threading.Event()
        # A thread of its own calls the API: a slow answer must not delay a training run.
        self._publisher = threading.Thread(
            target=contextvars.copy_context().run, args=(self._publish,), daemon=True
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
        if self.line is not None:
            self.line.clear()

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
        if self.line is not None:
            self.line.show(text)
        if progress.note:
            self.note(progress.note)
        if is_due:
            self._logger.info(text)

    def say(self, text: str) -> None:
        """A line for the log and the terminal that stays."""
        self._logger.info(text)
        if self.line is not None:
            self.line.keep(text)

    def note(self, sentence: str) -> None:
        """A sentence for the report, the terminal and the log."""
        self.notes.append(sentence)
        self.say(sentence)

    def _seconds_left(self, progress: Progress, now: float) -> float | None:
        """By the rate since the stage was first seen, or resumed."""
        started, done_then = self._first.setdefault(progress.stage, (now, progress.done))
        done = progress.done - done_then
        if done <= 0 or now - started < 1 or progress.done >= progress.total:
            return None
        return (progress.total - progress.done) * (now - started) / done

    def _publish(self) -> None:
        artifact_id: UUID | None = None
        published: tuple[Progress, str] | None = None
        is_last_round = False
        while not is_last_round:
            is_last_round = self._stopping.wait(_ARTIFACT_SECONDS)
            latest = self._latest
            if latest is None or latest is published:
                continue
            percent, text = round(100 * latest[0].fraction, 1), latest[1]
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
    """Shows each warning of the log once, in the terminal and the report."""

    def __init__(self, reporter: ProgressReporter) -> None:
        super().__init__(logging.WARNING)
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        sentence, reporter = redacted(record.getMessage()), self._reporter
        if sentence not in reporter.notes:
            reporter.notes.append(sentence)
            if reporter.line is not None:
                reporter.line.warn(sentence)


def sentence(progress: Progress, seconds_left: float | None = None) -> str:
    """One line: stage, done of total, time left, figures."""
    parts = [f"{progress.stage:<12}"]
    if progress.total > 0:
        parts.append(f"{100 * progress.fraction:3.0f}%")
        parts.append(f"{progress.done:,.0f}/{progress.total:,.0f} {progress.unit}")
    else:
        parts.append(f"{progress.done:,.0f} {progress.unit}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    return " · ".join([*parts, *_phrases(progress.figures)])


def _phrases(figures: Mapping[str, float | str]) -> Iterator[str]:
    """A phrase for each figure worth watching, which are named like the curves in MLflow."""
    for name, value in figures.items():
        group, _, rest = name.rpartition("/")
        if group in ("", "train"):
            yield f"{rest.replace('_', ' ')} {value if isinstance(value, str) else number(value)}"
        elif name == "speed/tokens_per_second":
            yield f"{value:,.0f} tokens/s"
        elif group == "eval" and name.endswith("accuracy"):
            baseline = figures.get(f"baseline/{rest}")
            known = "" if baseline is None else f" (baseline {baseline:.1%})"
            yield f"held-out {rest.replace('_', ' ')} {value:.1%}{known}"


def duration(seconds: float) -> str:
    """`4.2 s`, `2 min 05 s`, `3 h 10 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: float) -> str:
    """`12,345`, `0.4213`; whole numbers stay whole."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
