"""Whatever the front door offers says what it promises and what it raises."""

import ast
import inspect
import sys
import textwrap
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


def raises(function: Any, owner: Any, seen: set[Any]) -> bool:
    """Whether it raises itself or in a private function that it calls."""
    if function in seen or not inspect.isfunction(function):
        return False
    if function.__code__.co_filename == "<string>":
        return False  # a dataclass wrote it
    seen.add(function)
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    if any(isinstance(node, ast.Raise) and node.exc is not None for node in nodes):
        return True
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    module = vars(sys.modules[function.__module__])
    private = [module.get(c.id) for c in called if isinstance(c, ast.Name) and c.id[0] == "_"]
    private += [
        inspect.getattr_static(owner, c.attr, None)
        for c in called
        if isinstance(c, ast.Attribute) and c.attr[0] == "_" and owner is not None
    ]
    return any(raises(each, owner, seen) for each in private)


def says_what_it_raises(function: Any, owner: Any) -> bool:
    """In its own words, or in those of the class for what all its methods raise alike."""
    told = [inspect.getdoc(function) or ""]
    if owner is not None:
        told += [
            inspect.getdoc(owner) or "",
            inspect.getdoc(getattr(owner, function.__name__)) or "",
        ]
    return any("aises" in text or "Raise " in text for text in told)


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


def test_whatever_raises_says_so():
    silent = [
        name for name, function, owner in public_functions()
        if raises(function, owner, set()) and not says_what_it_raises(function, owner)
    ]  # fmt: skip
    for name, offered in OFFERED.items():
        makers = [
            vars(offered)[maker]
            for maker in ("__init__", "__post_init__")
            if inspect.isclass(offered) and maker in vars(offered)
        ]
        if any(raises(maker, offered, set()) for maker in makers) and not says_what_it_raises(
            offered, None
        ):
            silent.append(name)
    assert silent == []


def test_the_search_finds_what_raises_by_itself_and_through_a_private_function():
    assert raises(bc.freeze, None, set())
    assert raises(bc.resize_positions, None, set())  # in `_check`
    assert not raises(bc.count_parameters, None, set())
