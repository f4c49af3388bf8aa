"""Small parts of MyST Markdown that the generated pages are made of."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import yaml


def text(words: str) -> str:
    """Plain words of a description, so that Markdown leaves them as they are."""
    parts = re.split(r"(`[^`]*`)", words)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*<>{}\[\]|\\])", r"\\\1", part)
        for part in parts
    )


def code(value: str) -> str:
    """`value` as code in a line."""
    fence = "``" if "`" in value else "`"
    return f"{fence}{value}{fence}"


def value(of_a_setting: Any) -> str:
    """A value as a recipe writes it, in one line."""
    if of_a_setting in (None, ""):
        return "empty"
    dumped = yaml.safe_dump(
        of_a_setting, default_flow_style=True, allow_unicode=True, sort_keys=False, width=10_000
    )
    return code(dumped.removesuffix("...\n").strip())


def directive(
    name: str, argument: str = "", content: str = "", options: Sequence[tuple[str, str]] = ()
) -> str:
    """A directive with its options, one a line, and its content."""
    head = [
        f":::{{{name}}} {argument}".rstrip(),
        *(f":{key}: {said}".rstrip() for key, said in options),
    ]
    return "\n".join([*head, *(["", content] if content else []), ":::", ""])


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; its cells are Markdown already."""
    lines = [columns, ["---"] * len(columns), *rows]
    cells = (" | ".join(cell.replace("|", r"\|") for cell in line) for line in lines)
    return "\n".join(f"| {line} |" for line in cells) + "\n"
