"""The one line of a terminal that says how far a run has come."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TextIO

from flows.reporting.live import phrases
from flows.reporting.quantities import duration
from pipelines.core.stage import Progress

_REDRAW_SECONDS = 0.1
_PIPE_SECONDS = 15.0  # between two lines where the output is a file or a pipe
_current: ContextVar["ProgressLine | None"] = ContextVar("progress_line", default=None)


class ProgressLine:
    """Shows progress on `stream`: one line that updates, or a line now and then in a pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._last = 0.0
        self._is_drawn = False

    def show(self, text: str) -> None:
        """Show `text` in place of the line before; too frequent calls are dropped."""
        now = time.monotonic()
        if now - self._last < (_REDRAW_SECONDS if self._is_terminal else _PIPE_SECONDS):
            return
        self._last = now
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"\r\x1b[2K{text[:width]}")
            self._is_drawn = True
        else:
            self._write(f"{text}\n")

    def keep(self, text: str) -> None:
        """Print a line that stays."""
        self.clear()
        self._write(f"{text}\n")
        self._last = time.monotonic()

    def clear(self) -> None:
        """Take the updating line away."""
        if self._is_drawn:
            self._write("\r\x1b[2K")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        """A terminal that was closed, or a pipe that nobody reads, ends no run."""
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def progress_on_terminal() -> Iterator[ProgressLine]:
    """Flows that run inside show their progress on standard error."""
    line = ProgressLine(sys.stderr)
    token = _current.set(line)
    try:
        yield line
    finally:
        line.clear()
        _current.reset(token)


def current_progress_line() -> ProgressLine | None:
    """The line to show progress on, if someone sits in front of a terminal."""
    return _current.get()


def sentence(progress: Progress, seconds_left: float | None) -> str:
    """One line: stage, done of total, time left, figures."""
    parts = [f"{progress.stage:<12}"]
    if progress.total > 0:
        parts.append(f"{100 * progress.fraction:3.0f}%")
        parts.append(f"{progress.done:,.0f}/{progress.total:,.0f} {progress.unit}")
    else:
        parts.append(f"{progress.done:,.0f} {progress.unit}")
    if seconds_left is not None:
        parts.append(f"{duration(seconds_left)} left")
    parts.extend(phrases(progress.figures))
    return " · ".join(parts)
