"""The documentation of installed Python packages: a document per docstring."""

import ast
import hashlib
import inspect
import re
import warnings
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from pipelines.errors import UserError
from pipelines.io.text import Tally
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.settings import InstalledDocumentation
from pipelines.stages.corpus.sources.inputs import MEGABYTE, InputFile, RawDocument, Span

# Tests and vendored copies hold other people's prose, or none.
_SKIPPED_FOLDERS: Final = {"tests", "test", "testing", "_vendor", "vendor", "externals"}
_ORNAMENT: Final = re.compile(r"[\W_]+")  # underlines and the frames of tables
_CODE_LINE: Final = re.compile(r"\s*(>>>|\.\.\. |\.\.\.$|\.\. |:orphan:)")
_NEW_ITEM: Final = re.compile(r"[-*+•] |\d+[.)] |:\w|@\w|\w[\w*, ]* ?: ?\S*$")


def source_files(settings: InstalledDocumentation) -> list[InputFile]:
    """The source files to read: of each package a random choice up to its share."""
    files: list[InputFile] = []
    for package in settings.packages:
        room = settings.max_source_megabytes * MEGABYTE
        found = installed(package)  # looked for once: a package has hundreds of files
        for path, num_bytes in _python_files(package, found):
            room -= num_bytes
            if room < 0:
                break
            files.append(
                InputFile(
                    path=path,
                    label=settings.name or package,
                    num_bytes=num_bytes,
                    digest=hashlib.sha256(_read(path, found)).hexdigest(),
                    format="docstrings",
                    splittable=False,
                )
            )
    return files


def read(span: Span, tally: Tally) -> Iterator[RawDocument]:
    """The docstrings of one source file, in the order of the code."""
    package, _, _ = span.file.path.partition(":")
    source = _read(span.file.path, installed(package))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are the package's own affair
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates, and code for other versions of Python
        tally.dropped["source files that do not parse"] += 1
        return
    for docstring in _docstrings(tree):
        text = mend(paragraphs(docstring), tally.repaired)
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
        for field in ("finalbody", "orelse", "handlers", "body"):
            waiting.extend(reversed(_statements(node, field)))


def _statements(node: ast.AST, field: str) -> list[ast.AST]:
    children = node.__dict__.get(field)
    if not isinstance(children, list):
        return []
    return [child for child in children if isinstance(child, ast.stmt | ast.ExceptHandler)]


def installed(package: str) -> Distribution:
    """The package as it is installed here; raises UserError, naming it, where it is not."""
    try:
        return distribution(package)
    except PackageNotFoundError as error:
        raise UserError(
            f"the package {package} is not installed; install it or leave it out of `packages`"
        ) from error


def _read(path: str, found: Distribution) -> bytes:
    """The bytes of `package:file`; raises UserError where an installation has lost the file."""
    package, _, relative = path.partition(":")
    file = Path(str(found.locate_file(relative)))
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"{file} of {package} cannot be read ({error.strerror}); install the package again "
            "or leave it out of `packages`"
        ) from error


def _python_files(package: str, found: Distribution) -> list[tuple[str, int]]:
    """`package:file` and size of its Python files, as its RECORD has them; shuffled."""
    files = [
        (f"{package}:{file}", file.size or 0)
        for file in found.files or ()
        if file.suffix == ".py" and file.hash and _SKIPPED_FOLDERS.isdisjoint(file.parts)
    ]
    if not files:
        raise UserError(
            f"the RECORD of the package {package} lists no Python files; leave it out of `packages`"
        )
    return sorted(files, key=lambda file: hashlib.sha256(file[0].encode()).digest())
