"""The progress line: it updates on a terminal, and leaves no control characters in a pipe."""

import io
import sys
from dataclasses import replace

import pytest

from flows.progress import ProgressLine, duration, number, progress_on_terminal, sentence
from pipelines.stage import Progress

HALF_WAY = Progress(
    stage="pretraining", done=60, total=120, unit="steps", figures={"train/loss": 5.1234}
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_sentence_says_stage_share_count_time_left_and_figures() -> None:
    said = sentence(HALF_WAY, 90)
    assert said == "pretraining  ·  50% · 60/120 steps · 1 min 30 s left · loss 5.123"


def test_the_live_figures_of_a_training_share_one_line() -> None:
    figures: dict[str, float | str] = {
        "train/loss": 5.1234, "train/learning_rate": 0.001, "speed/tokens_per_second": 39_017.8,
        "eval/mlm_accuracy": 0.172, "eval/mlm_loss": 5.1, "baseline/mlm_accuracy": 0.057,
        "eval/nsp_accuracy": 0.6, "step": "read",
    }  # fmt: skip
    said = sentence(replace(HALF_WAY, figures=figures), 90)
    assert said.partition("left · ")[2].split(" · ") == [
        "loss 5.123", "learning rate 0.001", "39,018 tokens/s",
        "held-out mlm accuracy 17.2% (baseline 5.7%)", "held-out nsp accuracy 60.0%",
        "step read",
    ]  # fmt: skip


def test_without_a_total_there_is_neither_share_nor_time_left() -> None:
    unknown = Progress(stage="corpus", done=7, total=0, unit="files")
    assert sentence(unknown) == "corpus       · 7 files"


def test_a_terminal_line_replaces_the_one_before() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.show("first")
    line.keep("stays")
    assert terminal.getvalue() == "\r\x1b[2Kfirst\r\x1b[2Kstays\n"


def test_a_pipe_gets_whole_lines_and_no_control_characters() -> None:
    pipe = io.StringIO()
    line = ProgressLine(pipe)
    line.show("first")
    line.show("too soon after the first")
    line.keep("stays")
    line.clear()
    assert pipe.getvalue() == "first\nstays\n"


def test_a_quiet_one_shows_warnings_alone() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, is_quiet=True)
    line.show("50%")
    line.keep("corpus built")
    line.warn("the disk is nearly full")
    assert terminal.getvalue() == "\r\x1b[2Kthe disk is nearly full\n"


class Closed(Terminal):
    """A terminal whose window was closed."""

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_terminal_that_was_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Closed())
    with progress_on_terminal() as line:
        line.show("50%")
        line.keep("stays")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (4.21, "4.2 s"), (59.96, "1 min 00 s"), (125, "2 min 05 s")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"), [(12345, "12,345"), (0.42134, "0.4213"), (12345.6, "12,346"), (3, "3")]
)
def test_numbers(value: float, said: str) -> None:
    assert number(value) == said
