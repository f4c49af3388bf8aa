"""Which artifact is being made where a log line or a figure comes from."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Making(NamedTuple):
    """An artifact in the making."""

    kind: str
    fingerprint: str


_current: ContextVar[Making | None] = ContextVar("in_the_making", default=None)


def in_the_making() -> Making | None:
    """What the caller's work is part of; threads that copy their context know it too."""
    return _current.get()


@contextmanager
def making(kind: str, fingerprint: str) -> Iterator[None]:
    """The block makes this artifact."""
    token = _current.set(Making(kind, fingerprint))
    try:
        yield
    finally:
        _current.reset(token)
