"""What the documents tell people to type: programs, commands and options that there are."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delivery.declared import ROOT, is_command
from tests.delivery.pages import blocks, mentions, name_of, typed_lines, user_pages

PROGRAMS = ("bertsmith", "prefect", "ray")


def lines(page: Path) -> Iterator[str]:
    """What stands in blocks of commands, and between backticks in a sentence."""
    yield from typed_lines(page)
    yield from mentions(page)


def commands(line: str) -> Iterator[list[str]]:
    """The words of each command of ours in a line, also in what it hands to a shell."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # a quote that a later line closes
        return
    for n, word in enumerate(words):
        before = words[n - 1] if n else ""
        if word in PROGRAMS and (n == 0 or before == "--rm" or "=" in before):
            if words[n + 1 :] and not words[n + 1].startswith("…"):
                yield words[n:]
        elif before == "-c" and n > 1:
            for part in word.split(";"):
                yield from commands(part.strip())


@pytest.mark.parametrize("page", user_pages(), ids=name_of)
def test_every_command_is_one(page: Path) -> None:
    for line in lines(page):
        for words in commands(line):
            assert is_command(words), line


@pytest.mark.parametrize(
    "words",
    [
        "bertsmith doctr",
        "bertsmith doctor --hoem x",
        "bertsmith recipes --lost",
        "prefect worker begin",
        "prefect worker start --pool a --no-create-pool",
        "ray start --headless",
        "ray stat",
        "mlflow server --hots=0.0.0.0",
        "python -m flows.local.helth",
    ],
)  # fmt: skip
def test_a_command_or_option_that_is_none_is_noticed(words: str) -> None:
    assert not is_command(words.split())


def installation() -> list[str]:
    """The lines that the runbook has typed for a platform's servers and workers."""
    runbook = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## First installation$(.*?)^## ", runbook, re.MULTILINE | re.DOTALL)
    return [line for block in blocks(section) for line in block.text.splitlines()]


def exported(typed: list[str]) -> dict[str, str]:
    words = [shlex.split(line, comments=True) for line in typed if line.startswith("export ")]
    pairs = [word.partition("=") for each in words for word in each[1:]]
    return {name: value for name, _, value in pairs}
