"""The code that an attempt is made with: an attempt of other code starts over.

It consists of the modules of Bertsmith that the building function's module imports, directly or
not. What `pipelines.stage` imports (store, ranks, observer) is left out: it changes no byte.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from fsspec import AbstractFileSystem

from pipelines.config.versions import source_folders

CODE_NAME: Final = ".code.json"  # in an attempt's working folder
_SURROUNDINGS: Final = "pipelines.stage"
_DIGITS: Final = 16

Code = Mapping[str, str]
"""Modules by name, and a digest of each."""


def code_of(build: Callable[..., Any]) -> Code:
    """The code that decides what `build` makes, wherever the sources lie.

    Comments, docstrings and layout do not count.
    """
    while isinstance(build, partial):
        build = build.func
    return _own_code(build.__module__)


def code_in(filesystem: AbstractFileSystem, folder: str) -> Code | None:
    """The code that the attempt in `folder` is made with; None if that was not recorded."""
    try:
        found = json.loads(filesystem.cat_file(f"{folder}/{CODE_NAME}"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def difference(before: Code | None, now: Code) -> str:
    """The first module that differs, and how many more do."""
    if before is None:
        return "it is not known which"
    first, *others = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return f"{first} and {len(others)} more" if others else first


@cache
def _own_code(module: str) -> Code:
    around = _reached(_SURROUNDINGS)
    return {name: digest for name, digest in _reached(module).items() if name not in around}


@cache
def _reached(start: str) -> Code:
    """`start` and all modules of Bertsmith that it imports, directly or not, in functions too.

    A module that imports by a computed name counts with its whole package.
    """
    sources = dict(_sources())
    file = getattr(sys.modules.get(start), "__file__", None)
    if start not in sources and file is not None:  # a notebook's or a program's own function
        sources[start] = Path(file)
    found: dict[str, str] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in found or name not in sources:
            continue
        found[name], imported = _read(sources[name])
        for other in imported:
            if other is None:
                package = name if sources[name].name == "__init__.py" else name.rpartition(".")[0]
                waiting.extend(each for each in sources if each.startswith(f"{package}."))
            else:
                waiting.append(other)
    return found


@cache
def _read(file: Path) -> tuple[str, tuple[str | None, ...]]:
    """The digest of a module, and what it imports."""
    tree = ast.parse(file.read_bytes())
    imported = tuple(dict.fromkeys(_imports(tree)))
    return _digest(tree), imported


@cache
def _sources() -> Mapping[str, Path]:
    found = {}
    for folder in source_folders():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def _imports(tree: ast.AST) -> Iterator[str | None]:
    """Names that may be modules; None for a computed one."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_named(node.test, "TYPE_CHECKING"):
            waiting.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _is_named(node.func, "import_module"):
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value)
            elif isinstance(name, ast.JoinedStr):
                yield None
        waiting.extend(ast.iter_child_nodes(node))


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _digest(tree: ast.AST) -> str:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text_alone(each)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:_DIGITS]


def _is_text_alone(node: ast.AST) -> bool:
    """Whether it is a docstring or another unused string."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)
