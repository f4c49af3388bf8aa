"""The prose of Markdown files."""

import re
from collections.abc import Iterator
from typing import Final

from markdown_it import MarkdownIt

from pipelines.core.reading.files import open_binary
from pipelines.core.reading.text import decode, refuse_binary
from pipelines.stages.corpus.cleaning.repair import mend
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import Markdown
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span, list_files

_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PARSER: Final = MarkdownIt("commonmark").enable("table").enable("strikethrough")


def list_inputs(settings: Markdown) -> list[InputFile]:
    """The files that the source names."""
    return list_files(settings.paths, label=settings.name, splittable=False)


def read(settings: Markdown, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """The file as one document."""
    with open_binary(span.file.path) as stream:
        data = stream.read()
    refuse_binary(data, span.file.path)
    text = mend(prose(decode(data, tally.repaired)), tally.repaired)
    yield RawDocument(text=text, label=span.file.label)


def prose(markdown: str) -> str:
    """Text of headings, paragraphs, lists and tables, a line each; no code, markup or HTML."""
    lines: list[str] = []
    for token in _PARSER.parse(_FRONT_MATTER.sub("", markdown.replace("\r\n", "\n"))):
        if token.type != "inline":
            continue
        parts = [
            " " if child.type in ("softbreak", "hardbreak") else child.content
            for child in token.children or ()
            if child.type in ("text", "code_inline", "softbreak", "hardbreak")
        ]
        lines.append("".join(parts))
    return "\n".join(lines)
