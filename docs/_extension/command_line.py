"""Every command with its arguments and options, read from the Typer application."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from flows.cli.app import app

from . import markdown


def page() -> str:
    """The reference of the command line."""
    parts = [
        "# Command line",
        "Every command of `bertsmith`, as `bertsmith COMMAND --help` tells it. This page is made "
        "from the code.",
        *_command(get_command(app), "bertsmith", depth=1),
    ]
    return "\n\n".join(parts) + "\n"


def _command(command: Any, name: str, depth: int) -> Iterator[str]:
    if depth > 1:
        yield f"{'#' * depth} {name}"
        yield from map(_paragraph, command.help.split("\n\n"))
        usage = command.collect_usage_pieces(_context(command, name))
        yield f"```text\n{' '.join([name, *usage])}\n```"
        yield f"```{{program}} {name}\n```"
        yield from _parameters(command, name)
    for inner, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _command(below, f"{name} {inner}", depth + 1)


def _parameters(command: Any, name: str) -> Iterator[str]:
    context = _context(command, name)
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        said, meaning = record
        if parameter.param_type_name == "argument":
            said = parameter.name.upper()
        yield markdown.directive("option", said.replace(", ", " , "), markdown.text(meaning))


def _context(command: Any, name: str) -> Any:
    return command.make_context(name, [], resilient_parsing=True)


def _paragraph(paragraph: str) -> str:
    words = " ".join(paragraph.split())
    example = words.removeprefix("Example: ")
    return markdown.text(words) if example == words else f"```console\n$ {example}\n```"
