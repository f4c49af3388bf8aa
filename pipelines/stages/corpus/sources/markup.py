"""The prose of marked-up text: Markdown files, and the articles of MediaWiki XML dumps.

Dumps are streamed page by page.
"""

import re
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

import mwparserfromhell
from markdown_it import MarkdownIt

from pipelines.io.files import open_binary
from pipelines.io.text import Tally, check_is_text, decode
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.settings import Markdown, MediaWiki
from pipelines.stages.corpus.sources.inputs import RawDocument, Resolved, Span, list_files
from pipelines.stages.corpus.sources.text_files import cut_documents

_FRONT_MATTER: Final = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_PARSER: Final = MarkdownIt("commonmark").enable("table").enable("strikethrough")
_PAGE_BEGINS: Final = re.compile(rb"(?=<page>)")
_PAGE_ENDS: Final = b"</page>"
_LONGEST_PAGE_BYTES: Final = 64 * 2**20
_ARTICLES: Final = "0"  # the name space
# Links to files and categories hold captions and keys, not prose. They may nest one link deep.
_MEDIA_LINK: Final = re.compile(
    r"\[\[\s*(?:File|Image|Category|Datei|Bild|Kategorie|Fichier|Catégorie|Archivo|Categoría)\s*:"
    r"(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*\]\]",
    re.IGNORECASE,
)
_TABLE: Final = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_EMPTY_BRACKETS: Final = re.compile(r" ?\(\s*[,;]?\s*\)")


def resolve(settings: Markdown | MediaWiki) -> Resolved:
    """The files that the source names."""
    is_dump = isinstance(settings, MediaWiki)
    return Resolved(settings, list_files(settings.paths, label=settings.name, splittable=is_dump))


def read(settings: Markdown | MediaWiki, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """A Markdown file as one document, or the articles that begin in `span`.

    Redirects and other name spaces are dropped and counted.
    """
    with open_binary(span.file.path) as stream:
        if isinstance(settings, Markdown):
            data = stream.read()
            check_is_text(data, span.file.path)
            text = mend(prose(decode(data, tally.repaired)), tally.repaired)
            yield RawDocument(text=text, label=span.file.label)
            return
        for data, _ in cut_documents(stream, span, _PAGE_BEGINS, _LONGEST_PAGE_BYTES):
            if not data.startswith(b"<page>"):
                continue  # what comes before the first page
            wikitext = _article(data, tally)
            if wikitext is not None:
                text = mend(plain_text(wikitext), tally.repaired)
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


def plain_text(wikitext: str) -> str:
    """The prose of an article: no templates, tables, references, files or markup."""
    previous = ""
    while previous != wikitext:  # tables nest: the innermost go first
        previous, wikitext = wikitext, _TABLE.sub("", wikitext)
    code = mwparserfromhell.parse(_MEDIA_LINK.sub("", wikitext), skip_style_tags=True)
    for tag in code.filter_tags(
        matches=lambda node: str(node.tag).lower() in {"ref", "math", "gallery", "timeline"}
    ):
        # A tag inside another one that is gone already is gone too.
        if code.contains(tag):
            code.remove(tag)
    stripped = code.strip_code(normalize=True, collapse=True)
    plain = _EMPTY_BRACKETS.sub("", stripped.replace("'''", "").replace("''", ""))
    lines = (line.strip(" *#:;=\t") for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)


def _article(data: bytes, tally: Tally) -> str | None:
    """The wikitext of a page; None, and counted, where it is no article."""
    try:
        page = ElementTree.fromstring(data[: data.rindex(_PAGE_ENDS) + len(_PAGE_ENDS)])
    except (ElementTree.ParseError, ValueError):  # a dump that breaks off
        tally.dropped["pages that are not whole"] += 1
        return None
    if page.findtext("ns") != _ARTICLES:
        tally.dropped["pages of other name spaces"] += 1
        return None
    if page.find("redirect") is not None:
        tally.dropped["redirects"] += 1
        return None
    return decode((page.findtext("revision/text") or "").encode(), tally.repaired)
