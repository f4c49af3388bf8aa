"""What the process that runs a version says of an error: of the model, or of this machine."""

import errno
import io
import json
from collections.abc import Callable

import pytest
import torch

from pipelines.registry import proof_process
from pipelines.store.access import full_disk_explained


def full_disk() -> None:
    with full_disk_explained("an artifact", "/tmp"):
        raise OSError(errno.ENOSPC, "No space left on device")


def quota() -> None:
    raise OSError(errno.EDQUOT, "Disk quota exceeded")


def no_memory() -> None:
    raise MemoryError


def no_memory_of_torch() -> None:
    torch.empty(1 << 50)


def no_memory_beneath() -> None:
    try:
        no_memory_of_torch()
    except RuntimeError as error:
        raise ValueError("the model cannot be loaded") from error


def no_answer() -> None:
    raise ConnectionError


def no_model() -> None:
    raise RuntimeError("size mismatch")


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], object]:
    """The exit status where the package cannot be fetched for the given reason."""

    def status(fail: Callable[[], None]) -> object:
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({})))
        monkeypatch.setattr(proof_process, "_fetched", lambda request, scratch: fail())
        with pytest.raises(SystemExit) as raised:
            proof_process.main()
        return raised.value.code

    return status


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        (full_disk, "no room for an artifact"),
        (quota, "Disk quota exceeded"),
        (no_memory, "MemoryError"),
        (no_memory_of_torch, "can't allocate memory"),
        (no_memory_beneath, "the model cannot be loaded"),
        (no_answer, "ConnectionError"),
    ],
)
def test_a_full_disk_or_memory_and_a_lost_answer_are_tried_again(
    ending: Callable[[Callable[[], None]], object],
    capsys: pytest.CaptureFixture[str],
    fail: Callable[[], None],
    sentence: str,
) -> None:
    assert ending(fail) == proof_process.TRY_AGAIN
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_a_model_that_cannot_be_loaded_is_not_tried_again(
    ending: Callable[[Callable[[], None]], object],
) -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        ending(no_model)
