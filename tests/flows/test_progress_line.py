"""The progress line: it updates on a terminal, and leaves no control characters in a pipe."""

import io

from flows.reporting.terminal import ProgressLine, sentence
from pipelines.core.stage import Progress

HALF_WAY = Progress(
    stage="pretraining", done=60, total=120, unit="steps", figures={"train/loss": 5.1234}
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_sentence_says_stage_share_count_time_left_and_figures() -> None:
    said = sentence(HALF_WAY, seconds_left=90)
    assert said == "pretraining  ·  50% · 60/120 steps · 1 min 30 s left · train/loss 5.123"


def test_without_a_total_there_is_neither_share_nor_time_left() -> None:
    unknown = Progress(stage="corpus", done=7, total=0, unit="files")
    assert sentence(unknown, seconds_left=None) == "corpus       · 7 files"


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
