"""Whatever the front door offers says what it promises."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import bert_core as bc

OFFERED = {name: getattr(bc, name) for name in bc.__all__ if callable(getattr(bc, name))}


def public_functions() -> Iterator[tuple[str, Any, Any]]:
    """Each public function with its name and the class it was found on, or None."""
    for name, offered in OFFERED.items():
        if inspect.isfunction(offered):
            yield name, offered, None
        elif inspect.isclass(offered):
            for key, member in inspect.getmembers_static(offered):
                function = getattr(member, "__func__", member)
                is_ours = inspect.isfunction(function) and function.__module__.startswith(
                    "bert_core"
                )
                if is_ours and not key.startswith("_") and key != "forward":
                    yield f"{name}.{key}", function, offered


@pytest.mark.parametrize("name", OFFERED)
def test_everything_offered_has_a_promise_in_its_first_line(name):
    if name == "Precision":
        return  # a type of words
    first = (OFFERED[name].__doc__ or "").split("\n")[0]
    assert first.endswith((".", ":"))
    assert len(first) > 15


def test_every_public_function_and_method_is_described():
    undescribed = [
        name for name, function, owner in public_functions()
        if not inspect.getdoc(getattr(owner, function.__name__, function) if owner else function)
    ]  # fmt: skip
    assert undescribed == []
