"""What signals do to a command: each stop raises once, and an ignored signal stays ignored."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import prefect.exceptions  # before a test names a home that is not there
import prefect.runtime  # noqa: F401
import pytest
from pydantic import BaseModel, field_serializer
from pydantic_core import PydanticSerializationError

from flows import stopping
from flows.cli.app import INTERRUPTED, run

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Clock:
    """Of a machine that is as fast as the test says."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """Handlers as they are in a new process; put back after the test."""
    kept = {number: signal.getsignal(number) for number in _NUMBERS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    clock = Clock()
    monkeypatch.setattr(stopping, "time", clock)
    monkeypatch.setattr(stopping, "_last_stop", float("-inf"))
    monkeypatch.setattr(stopping, "_handled", set())
    yield clock
    for number, handler in kept.items():
        signal.signal(number, handler)


def is_stopped_by(number: int) -> bool:
    try:
        os.kill(os.getpid(), number)
        return False
    except KeyboardInterrupt:
        return True


@pytest.mark.parametrize("number", _NUMBERS)
def test_each_of_them_stops_and_what_follows_at_once_is_the_same_stop(
    clock: Clock, number: int
) -> None:
    stopping.install_stop_handlers()
    assert is_stopped_by(number)
    clock.now += 0.4
    assert not is_stopped_by(signal.SIGTERM)  # what `timeout` sends to the whole group
    clock.now += 1.5
    assert is_stopped_by(number)  # leave at once


def test_a_command_in_the_background_outlives_its_terminal(clock: Clock) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    stopping.install_stop_handlers()
    assert not is_stopped_by(signal.SIGHUP)


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_inside_a_flow_prefects_handler_gives_way_to_the_commands_own(
    clock: Clock, interrupt: Any
) -> None:
    """In the background, too, where shells have commands ignore SIGINT."""

    def prefects(number: int, frame: Any) -> None:
        raise RuntimeError("at each signal")

    signal.signal(signal.SIGINT, interrupt)
    stopping.install_stop_handlers()
    signal.signal(signal.SIGTERM, prefects)
    with stopping.flow_in_progress():
        assert is_stopped_by(signal.SIGTERM)
        assert not is_stopped_by(signal.SIGTERM)


def test_a_flow_that_no_command_runs_keeps_prefects_handler(clock: Clock) -> None:
    kept = signal.getsignal(signal.SIGTERM)
    with stopping.flow_in_progress():
        pass
    assert signal.getsignal(signal.SIGTERM) is kept


class Answer(BaseModel):
    """A stop comes in while pydantic works: it makes an error of its own of the interrupt."""

    number: int

    @field_serializer("number")
    def interrupted(self, number: int) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return str(number)


def test_an_interrupt_that_a_library_swallows_is_an_interrupt(clock: Clock) -> None:
    stopping.install_stop_handlers()
    with pytest.raises(PydanticSerializationError):
        Answer(number=1).model_dump_json()
    clock.now += 1.5
    with pytest.raises(KeyboardInterrupt), stopping.flow_in_progress():
        Answer(number=1).model_dump_json()
    with pytest.raises(ValueError, match="its own"), stopping.flow_in_progress():
        raise ValueError("its own")


def test_the_command_ends_as_interrupted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed() -> list[str]:
        stopping.install_stop_handlers()
        return [Answer(number=1).model_dump_json()]

    monkeypatch.setattr("pipelines.recipes.files.preset_names", listed)
    assert run(["recipes"]) == INTERRUPTED
    assert "run the same command to resume" in capsys.readouterr().err
