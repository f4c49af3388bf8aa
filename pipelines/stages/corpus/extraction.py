"""The text of HTML and PDF files, and of the docstrings of installed Python packages.

Why these libraries read HTML and PDF: docs/decisions/0059.
"""

import ast
import codecs
import hashlib
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from pipelines.errors import UserError
from pipelines.io.files import SAMPLE_BYTES, check_is_no_pointer, check_is_text, open_binary
from pipelines.stages.corpus.cleaning import mend, unwrap
from pipelines.stages.corpus.settings import InstalledDocumentation, TextFiles
from pipelines.stages.corpus.sources import MEGABYTE, InputFile, RawDocument, Span

OTHER_ENCODING: Final = "HTML files that are not in the encoding they declare, or UTF-8"
NO_TEXT: Final = "HTML and PDF files without text, such as scans"
UNREADABLE_PDF: Final = "PDF files that are damaged or ask for a password"
DAMAGED_PAGES: Final = "PDF pages that are damaged"
UNREADABLE: Final = (OTHER_ENCODING, NO_TEXT, UNREADABLE_PDF, DAMAGED_PAGES)
_NO_PROSE: Final = ("nav", "header", "footer", "aside", "pre", "button", "select", "dialog")
_CHARSET: Final = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML_ENCODING: Final = re.compile(rb"\s*<\?xml[^>]{0,200}encoding\s*=\s*[\"']([\w.:-]+)")
_DECLARED_IN_BYTES: Final = 4096
# What browsers read under an encoding's name, as Python calls it: the larger encoding that pages
# under it are written in.
_READ_AS: Final = {
    **dict.fromkeys(("iso8859-1", "ascii"), "cp1252"),
    "iso8859-9": "cp1254",
    **dict.fromkeys(("gb2312", "gbk"), "gb18030"),
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    **dict.fromkeys(("tis-620", "iso8859-11"), "cp874"),
}
# Labels of the WHATWG's encoding standard that Python does not know.
_OTHER_LABELS: Final = {
    "iso88591": "cp1252",
    **dict.fromkeys(("x-gbk", "gb_2312", "gb_2312-80", "csgb2312"), "gb18030"),
    **dict.fromkeys(("x-sjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("ks_c_5601-1987", "ks_c_5601-1989"), "cp949"),
    "windows-874": "cp874",
}
_HYPHEN: Final = "\x02"  # what PDFium leaves where a word was broken at a line's end
_LINE_ENDS: Final = re.compile(f"(?<={_HYPHEN})|[\r\n]+")
_FULL_SHARE: Final = 0.75  # of a page's width: a longer line continues in the next one
_COMMON_WIDTH: Final = 0.9  # this share of the lines is at most as long as the page is wide
# Tests and vendored copies hold other people's prose, or none.
_SKIPPED_FOLDERS: Final = {"tests", "test", "testing", "_vendor", "vendor", "externals"}
_ORNAMENT: Final = re.compile(r"[\W_]+")  # underlines and the frames of tables
_CODE_LINE: Final = re.compile(r"\s*(>>>|\.\.\. |\.\.\.$|\.\. |:orphan:)")
_NEW_ITEM: Final = re.compile(r"[-*+•] |\d+[.)] |:\w|@\w|\w[\w*, ]* ?: ?\S*$")


def read_document(settings: TextFiles, span: Span, dropped: Counter[str]) -> Iterator[RawDocument]:
    """The documents of an HTML or PDF file; one that gives none is counted."""
    with open_binary(span.file.path) as stream:
        data = stream.read()
    check_is_no_pointer(data[:SAMPLE_BYTES], span.file.path)
    if span.file.format == "html":
        texts = _texts_of_html(data, span.file.path, dropped)
    else:
        texts = _texts_of_pdf(data, settings.layout == "page", dropped)
    for text in texts:
        yield RawDocument(text=text, label=span.file.label)


def _texts_of_html(data: bytes, path: str, dropped: Counter[str]) -> list[str]:
    from resiliparse.extract.html2text import extract_plain_text

    try:
        page = _decoded(data)
    except (LookupError, UnicodeError):
        dropped[OTHER_ENCODING] += 1
        return []
    check_is_text(page[:SAMPLE_BYTES].encode(), path)
    # No menus, headers, footers, forms, scripts or code.
    prose: str = extract_plain_text(
        page, main_content=False, list_bullets=False, alt_texts=False, skip_elements=[*_NO_PROSE]
    )
    text = mend(prose)
    if not text.strip():
        dropped[NO_TEXT] += 1
        return []
    return [text]


def _decoded(data: bytes) -> str:
    """A page in the encoding that it declares, else in UTF-8.

    A byte order mark comes first, and a page that can declare UTF-16 in bytes is none, as browsers
    read it. Raises LookupError or UnicodeError where the bytes are in no such encoding.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16")
    head = data[:_DECLARED_IN_BYTES]
    declared = _CHARSET.search(head) or _XML_ENCODING.match(head)
    name = declared.group(1).decode().lower() if declared else "utf-8"
    if name.startswith(("utf-16", "utf-32")) or data.startswith(codecs.BOM_UTF8):
        name = "utf-8"
    encoding = codecs.lookup(_OTHER_LABELS.get(name, name)).name
    return data.decode(_READ_AS.get(encoding, encoding)).removeprefix("\ufeff")


def _texts_of_pdf(data: bytes, by_page: bool, dropped: Counter[str]) -> list[str]:
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        document = PdfDocument(data)
    except PdfiumError:
        dropped[UNREADABLE_PDF] += 1
        return []
    pages: list[str] = []
    try:
        for index in range(len(document)):
            try:
                text = document[index].get_textpage().get_text_bounded()
            except PdfiumError:
                dropped[DAMAGED_PAGES] += 1
                continue
            pages.append(mend(joined_lines(text)))
    finally:
        document.close()
    texts = [page for page in pages if page.strip()]
    if not texts:
        dropped[NO_TEXT] += 1
    return texts if by_page or not texts else ["\n".join(texts)]


def joined_lines(page: str) -> str:
    """The text of a PDF page, a paragraph a line.

    A page has lines and no paragraphs: a nearly full line continues in the next, and a shorter one
    ends a paragraph, as headings do. A word hyphenated at a line's end is joined.
    """
    lines = [line.strip() for line in _LINE_ENDS.split(page) if line.strip()]
    lengths = sorted(map(len, lines))
    width = lengths[int(_COMMON_WIDTH * (len(lengths) - 1))] if lengths else 0
    wrapped = ""
    for line in lines:
        wrapped += line
        if not line.endswith(_HYPHEN):
            wrapped += "\n" if len(line) >= _FULL_SHARE * width else "\n\n"
    return unwrap(wrapped).replace(_HYPHEN, "")


def source_files(settings: InstalledDocumentation) -> list[InputFile]:
    """The source files to read: of each package a random choice up to its share."""
    files: list[InputFile] = []
    for package in settings.packages:
        room = settings.max_source_megabytes * MEGABYTE
        installation = installed(package)  # looked for once: a package has hundreds of files
        sizes = {
            f"{package}:{file}": file.size or 0
            for file in installation.files or ()
            if file.suffix == ".py" and file.hash and _SKIPPED_FOLDERS.isdisjoint(file.parts)
        }
        if not sizes:
            raise UserError(
                f"the RECORD of the package {package} lists no Python files; leave it out of "
                "`packages`"
            )
        for path in sorted(sizes, key=lambda path: hashlib.sha256(path.encode()).digest()):
            room -= sizes[path]
            if room < 0:
                break
            files.append(
                InputFile(
                    path=path,
                    label=settings.name or package,
                    num_bytes=sizes[path],
                    digest=hashlib.sha256(_read(path, installation)).hexdigest(),
                    format="docstrings",
                )
            )
    return files


def read_docstrings(span: Span, dropped: Counter[str]) -> Iterator[RawDocument]:
    """The docstrings of one source file, in the order of the code."""
    package, _, _ = span.file.path.partition(":")
    source = _read(span.file.path, installed(package))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the package's own affair
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates, and code for other versions of Python
        dropped["source files that do not parse"] += 1
        return
    for docstring in _docstrings(tree):
        text = mend(paragraphs(docstring))
        yield RawDocument(text=text, label=span.file.label)


def paragraphs(docstring: str) -> str:
    """The prose of a docstring, a paragraph or list item per line.

    Lines that were broken to fit are joined; underlines and interpreter sessions are left out.
    """
    lines: list[str] = []
    joins = False
    indent = 0
    for line in inspect.cleandoc(docstring).split("\n"):
        if not line.strip() or _ORNAMENT.fullmatch(line) or _CODE_LINE.match(line):
            joins = False
            continue
        bare = line.lstrip()
        line_indent = len(line) - len(bare)
        if joins and line_indent == indent and not _NEW_ITEM.match(bare):
            lines[-1] += " " + bare
        else:
            lines.append(bare)
            indent = line_indent
        joins = True
    return "\n".join(lines)


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Docstrings of the module, its classes and functions; only statements are visited."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield docstring
        statements = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.ExceptHandler)
        ]
        waiting.extend(reversed(statements))


def installed(package: str) -> Distribution:
    """The package as it is installed here; raises UserError, naming it, where it is not."""
    try:
        return distribution(package)
    except PackageNotFoundError as error:
        raise UserError(
            f"the package {package} is not installed; install it or leave it out of `packages`"
        ) from error


def _read(path: str, installation: Distribution) -> bytes:
    """The bytes of `package:file`; raises UserError where an installation has lost the file."""
    package, _, relative = path.partition(":")
    file = Path(str(installation.locate_file(relative)))
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file} of {package} cannot be read ({error.strerror}); install the package again "
            "or leave it out of `packages`"
        ) from error
