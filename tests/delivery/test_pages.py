"""What the pages say: Python that runs, commands and settings that there are, links, words."""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import Exit, TyperException
from typer.main import get_command

from docs._extension.settings import known_paths
from flows.cli.app import app
from flows.cli.run import run
from pipelines.recipes.recipe import Recipe
from tests.delivery.declared import ROOT, is_command
from tests.delivery.pages import DOCS, blocks, mentions, name_of, prose, typed_lines, user_pages

PAGES = user_pages()
GLOSSARY = DOCS / "glossary.md"
PROGRAMS = ("bertsmith", "prefect", "ray")
_LONG = {"docs/stories/own-labels.md"}  # it writes the manuals of four packages


# Python


def with_python() -> list[Path]:
    return [
        page
        for page in PAGES
        if any(each.language == "python" for each in blocks(page.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page, marks=pytest.mark.slow if name_of(page) in _LONG else (), id=name_of(page)
        )
        for page in with_python()
    ],
)
def test_python_runs_or_says_why_not(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a page, one after the other, as a reader pastes them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python" and block.not_run is None:
            exec(compile(block.text, str(page), "exec"), names)


# Commands


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


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_parse_and_their_recipes_are_valid(page: Path) -> None:
    typed, mentioned = list(typed_lines(page)), mentions(page)
    for line in (*typed, *mentioned):
        for words in commands(line):
            assert is_command(words), line
            if words[0] == "bertsmith" and "…" not in line:
                check_command(words[1:], is_mention=line in mentioned)


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


def check_command(words: list[str], *, is_mention: bool = False) -> None:
    """Raise where the command line does not parse, or its preset or settings are none.

    A mention in a sentence may leave out what must be given.
    """
    words = [*takewhile(lambda word: word not in (">", "|", "&&"), words)]
    if words[0].startswith("-"):  # what stands before any command acts while it is parsed
        return
    try:
        given = parsed(get_command(app), words)
    except Exit:  # it prints its version or help
        return
    except TyperException as error:
        assert is_mention, words
        assert error.format_message().startswith(("Missing", "Option", "Usage:")), words
        return
    if words[0] == "run":
        is_file = (given["recipe"] or "").endswith(".yaml")
        run(**{**given, "recipe": "demo" if is_file else given["recipe"], "show_recipe": True})


def parsed(command: Any, words: list[str]) -> dict[str, Any]:
    """The values of the innermost command's parameters."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    return dict(command.make_context(command.name, list(words)).params)


# Settings

_SETTING = re.compile(
    r"(?<![\w./-])(" + "|".join(Recipe.model_fields) + r")((?:\.[a-z_]+)+)(?![\w/(]|\.\w)"
)
_FILES = (".py", ".md", ".yaml", ".json", ".jsonl", ".csv", ".txt")


def settings_in(code: str) -> Iterator[str]:
    for section, rest in _SETTING.findall(code):
        if not f"{section}{rest}".endswith(_FILES):
            yield f"{section}{rest}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_is_one(page: Path) -> None:
    code = [*typed_lines(page), *mentions(page)]
    named = {setting for line in code for setting in settings_in(line)}
    assert sorted(named - known_paths()) == []


# Links out of the site: those of its own pages are followed when it is built

_LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


# Words

_AFTER_A_NOUN = (
    "that|which|is|was|has|had|takes|took|ends|may|might|in|on|with|without|for|by|from|at|"
    "goes|to|can|will|would|waits|begins|starts|of|stops|than|as|alone|itself"
)


def banned() -> tuple[str, ...]:
    """The left column of the glossary's last table."""
    _, last = GLOSSARY.read_text(encoding="utf-8").split("\n## Do not say, say")
    return tuple(re.findall(r"^\| ([^|]+?) \| [^|]+ \|$", last, re.MULTILINE)[1:])


def pattern(phrase: str) -> re.Pattern[str]:
    """`phrase` as words of their own; "a training" only where it is a noun by itself."""
    words = r"\s+".join(map(re.escape, phrase.split()))
    last = rf"(?=\s*[,.;:)]|\s+(?:{_AFTER_A_NOUN})\b|\s*$)" if phrase == "a training" else r"\b"
    return re.compile(rf"\b{words}{last}", re.IGNORECASE | re.MULTILINE)


def banned_words(page: Path) -> list[str]:
    text = prose(page)
    if page == GLOSSARY:
        text = text.partition("\n## Do not say, say")[0]
    text = re.sub(r"`[^`\n]+`", "``", text)
    return [phrase for phrase in banned() if pattern(phrase).search(text)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_words_are_those_of_the_glossary(page: Path) -> None:
    assert banned_words(page) == []
