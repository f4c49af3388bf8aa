"""Module attributes replaced for a while: weights in another format, traced methods."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

Replacement = tuple[nn.Module, str, Any]  # a module, the name of an attribute, its value


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """A block in which modules have other attributes, for every thread.

    The replaced parameters and methods stay where they are: an instance's own attribute hides them.
    """
    for module, name, value in replacements:
        module.__dict__[name] = value
    try:
        yield
    finally:
        for module, name, _ in replacements:
            del module.__dict__[name]
