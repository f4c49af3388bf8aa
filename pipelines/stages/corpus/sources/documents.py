"""The text of HTML and PDF files: docs/decisions/0059."""

import codecs
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from pipelines.errors import UserError, redacted
from pipelines.io.files import open_binary
from pipelines.io.text import SAMPLE_BYTES, Tally, check_is_text
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.settings import TextFiles
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span

OTHER_ENCODING: Final = "HTML files that are not in the encoding they declare, or UTF-8"
NO_TEXT_IN_HTML: Final = "HTML files without text"
NO_TEXT_IN_PDF: Final = "PDF files without text, such as scans"
LOCKED_PDF: Final = "PDF files that ask for a password"
DAMAGED_PDF: Final = "PDF files that are damaged"
DAMAGED_PAGES: Final = "PDF pages that are damaged"
_MODULES: Final = {"html": "resiliparse", "pdf": "pypdfium2"}
_NO_PROSE: Final = ("nav", "header", "footer", "aside", "pre", "button", "select", "dialog")
_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_DECLARED_IN_BYTES: Final = 4096
_LATIN: Final = ("iso-8859-1", "latin-1", "latin1", "us-ascii", "ascii")  # browsers' Windows-1252
_PASSWORD_ERROR: Final = 4  # FPDF_ERR_PASSWORD
_HYPHEN: Final = "\x02"  # what PDFium leaves where a word was broken at a line's end
_LINE_ENDS: Final = re.compile(f"(?<={_HYPHEN})|[\r\n]+")
_FULL_SHARE: Final = 0.75  # of a page's width: a longer line continues in the next one
_COMMON_WIDTH: Final = 0.9  # this share of the lines is at most as long as the page is wide


def require_library(kind: str) -> None:
    """Raise UserError where what reads files of this kind is not installed."""
    if find_spec(_MODULES[kind]) is None:
        raise UserError(
            f"{kind.upper()} files need a library that is not installed; install it: "
            "pip install 'bertsmith[documents]'"
        )


def read(settings: TextFiles, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """The documents of one file; one that gives none is counted and named.

    Raises UserError where this node lacks the library.
    """
    require_library(span.file.format)
    with open_binary(span.file.path) as stream:
        data = stream.read()
    if span.file.format == "html":
        return _of_html(data, span.file, tally)
    return _of_pdf(data, span.file, settings.layout == "page", tally)


def _of_html(data: bytes, file: InputFile, tally: Tally) -> Iterator[RawDocument]:
    try:
        page = _decoded(data)
    except (LookupError, UnicodeError):
        tally.drop_file(redacted(file.path), OTHER_ENCODING)
        return
    check_is_text(page[:SAMPLE_BYTES].encode(), file.path)
    text = mend(page_text(page), tally.repaired)
    if not text.strip():
        tally.drop_file(redacted(file.path), NO_TEXT_IN_HTML)
        return
    yield RawDocument(text=text, label=file.label)


def page_text(html: str) -> str:
    """What a page says, a block a line: no menus, headers, footers, forms, scripts or code."""
    from resiliparse.extract.html2text import extract_plain_text

    found: str = extract_plain_text(
        html, main_content=False, list_bullets=False, alt_texts=False, skip_elements=[*_NO_PROSE]
    )
    return found


def _decoded(data: bytes) -> str:
    """A page in the encoding that it declares, else in UTF-8.

    A byte order mark comes first, and a page that can declare UTF-16 in bytes is none, as browsers
    read it. Raises LookupError or UnicodeError where the bytes are in no such encoding.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    declared = _CHARSET.search(data[:_DECLARED_IN_BYTES])
    name = declared.group(1).decode().lower() if declared else "utf-8"
    if name.startswith(("utf-16", "utf-32")) or data.startswith(codecs.BOM_UTF8):
        name = "utf-8"
    return data.decode("cp1252" if name in _LATIN else name).removeprefix("\ufeff")


def _of_pdf(data: bytes, file: InputFile, by_page: bool, tally: Tally) -> Iterator[RawDocument]:
    from pypdfium2 import PdfDocument, PdfiumError

    path = redacted(file.path)
    try:
        document = PdfDocument(data)
    except PdfiumError as error:
        is_locked = error.err_code == _PASSWORD_ERROR
        tally.drop_file(path, LOCKED_PDF if is_locked else DAMAGED_PDF)
        return
    pages: list[str] = []
    num_damaged = 0
    try:
        for index in range(len(document)):
            try:
                page = document[index]
                found = page.get_textpage().get_text_bounded()
            except PdfiumError:
                num_damaged += 1
                continue
            pages.append(mend(joined_lines(found), tally.repaired))
    finally:
        document.close()
    tally.dropped[DAMAGED_PAGES] += num_damaged
    texts = [page for page in pages if page.strip()]
    if not texts:
        tally.drop_file(path, DAMAGED_PDF if num_damaged and not pages else NO_TEXT_IN_PDF)
        return
    for text in texts if by_page else ["\n".join(texts)]:
        yield RawDocument(text=text, label=file.label)


def joined_lines(page: str) -> str:
    """The text of a PDF page, a paragraph a line.

    A page has lines and no paragraphs: a nearly full line continues in the next, and a shorter one
    ends a paragraph, as headings do. A word hyphenated at a line's end is joined.
    """
    lines = [line.strip() for line in _LINE_ENDS.split(page) if line.strip()]
    lengths = sorted(map(len, lines))
    width = lengths[int(_COMMON_WIDTH * (len(lengths) - 1))] if lengths else 0
    paragraphs: list[str] = []
    goes_on = False
    for line in lines:
        if goes_on:
            paragraphs[-1] += line if paragraphs[-1].endswith(_HYPHEN) else f" {line}"
        else:
            paragraphs.append(line)
        goes_on = line.endswith(_HYPHEN) or len(line) >= _FULL_SHARE * width
    return "\n".join(paragraphs).replace(_HYPHEN, "")
