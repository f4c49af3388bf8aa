"""The progress line of a terminal, and quantities as people read them."""

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TextIO

from pipelines.stage import Progress

_REDRAW_SECONDS = 0.1
_PIPE_SECONDS = 15.0  # between two lines in a file or a pipe
_current: ContextVar["ProgressLine | None"] = ContextVar("progress_line", default=None)

# What evaluations measure, by the prefix of its figures.
_MEASURED = {
    "mlm_": "masked tokens",
    "clm_": "next tokens",
    "nsp_": "next sentences",
    "": "labels",
}


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
        """A closed terminal or pipe does not end the run."""
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
    """The line to show progress on, if a command runs the flow."""
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
    return " · ".join([*parts, *_phrases(progress.figures)])


def _phrases(figures: Mapping[str, float | str]) -> Iterator[str]:
    """A phrase for each figure worth watching, which are named like the curves in MLflow."""
    for name, value in figures.items():
        group, _, rest = name.rpartition("/")
        if group in ("", "train"):
            yield f"{rest.replace('_', ' ')} {_value(value)}"
        elif name == "speed/tokens_per_second":
            yield f"{_value(value)} tokens/s"
        elif group == "eval" and name.endswith("accuracy"):
            assert not isinstance(value, str), name
            baseline = figures.get(f"baseline/{rest}")
            known = "" if baseline is None else f" (baseline {baseline:.1%})"
            yield f"held-out {_MEASURED[rest.removesuffix('accuracy')]} {value:.1%}{known}"


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


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
