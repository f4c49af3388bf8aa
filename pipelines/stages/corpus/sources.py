"""Where text comes from: files and what stands for them, divided into spans and parts.

Parts depend on the inputs and the settings alone, never on the number of workers: that is why the
shards made from them are the same for any.
"""

import codecs
import hashlib
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from pipelines.errors import UserError
from pipelines.io.files import (
    compression_of,
    encoding_of,
    expand,
    format_suffix,
    is_local,
    open_binary,
    reached,
    require_answer,
    size_and_digest,
    without_query,
)
from pipelines.io.hugging_face import commit_of, name_of
from pipelines.io.tables import check_column, open_table
from pipelines.stages.corpus.selection import too_few_documents
from pipelines.stages.corpus.settings import (
    FEWEST_DOCUMENTS,
    CorpusSettings,
    HuggingFaceDataset,
    InstalledDocumentation,
    RowSource,
    Source,
    TextFiles,
)

WITHOUT_TEXT: Final = "rows without text"  # why they are dropped
MEGABYTE: Final = 10**6

Format = Literal["text", "html", "pdf", "csv", "tsv", "jsonl", "parquet", "docstrings", "dataset"]
_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".pdf": "pdf", ".html": "html", ".htm": "html", ".xhtml": "html",
}  # fmt: skip
_ONE: Final = ("text", "html", "pdf")  # document a file, unless the layout says otherwise
_TABLES_LOOKED_INTO: Final = 64  # before a run
# What would be read as text and is none; other files without text are noticed by their bytes.
_NO_TEXT: Final = (
    ".doc", ".docx", ".odt", ".rtf", ".xls", ".xlsx", ".ppt", ".pptx", ".epub", ".png", ".jpg",
    ".jpeg", ".gif", ".svg", ".ps", ".eps", ".mp3", ".mp4", ".zip", ".tar", ".tgz", ".7z", ".warc",
    ".xml", ".json",
)  # fmt: skip
# Libraries whose versions decide the documents of a format. Decompression does not: its results
# are defined. Of docstrings it is Python's parser and its `cleandoc`.
_LIBRARIES: Final[dict[Format, tuple[str, ...]]] = {
    "docstrings": ("python",),
    "html": ("resiliparse",),
    "pdf": ("pypdfium2",),  # a version of it brings a version of PDFium
    "dataset": ("datasets", "pandas"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file (or what a source treats as one) before anything of it is read."""

    path: str
    label: str
    num_bytes: int
    digest: str
    format: Format
    splittable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The documents of a file that begin in [begin, end); an `end` of None is the file's."""

    source: int
    file: InputFile
    begin: int = 0
    end: int | None = None

    def owns(self, offset: int) -> bool:
        return self.begin <= offset and (self.end is None or offset < self.end)

    @property
    def num_bytes(self) -> int:
        return (self.file.num_bytes if self.end is None else self.end) - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The input of one task: successive spans, and the number of the shard they become."""

    index: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class RawDocument:
    """A document as its source holds it: text whose line breaks end paragraphs.

    `sentences` is there where the source has divided the text already. Pieces of one document too
    long for one piece share a `group` and count from 0 in `piece`.
    """

    text: str
    label: str
    sentences: tuple[str, ...] | None = None
    group: str | None = None
    piece: int = 0


def resolve(source: Source) -> tuple[Source, list[InputFile]]:
    """The source, with the commit of a data set, and what it reads, in a fixed order.

    Raises UserError where it names nothing that can be read.
    """
    if isinstance(source, InstalledDocumentation):
        from pipelines.stages.corpus.extraction import source_files

        return source, source_files(source)
    if isinstance(source, TextFiles):
        with ThreadPoolExecutor(8) as pool:  # hashing and remote look-ups leave the interpreter
            return source, list(
                pool.map(lambda path: _described(path, source), _expand_all(source.paths))
            )
    revision = commit_of(source.dataset, source.revision)
    digest, num_bytes = name_of(source.dataset, revision)
    file = InputFile(
        path=source.dataset,
        label=_label_of_dataset(source),
        num_bytes=num_bytes,
        digest=digest,
        format="dataset",
    )
    # A worker has to find it, too.
    where = source.dataset if revision else str(Path(source.dataset).absolute())
    return source.model_copy(update={"revision": revision, "dataset": where}), [file]


def read_span(source: Source, span: Span, dropped: Counter[str]) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is dropped is counted.

    Raises UserError for what cannot be read, and for a local file that has changed since the run
    looked at it.
    """
    # Imported here, as some readers import large libraries.
    if isinstance(source, InstalledDocumentation):
        from pipelines.stages.corpus.extraction import read_docstrings

        return read_docstrings(span, dropped)
    if isinstance(source, HuggingFaceDataset):
        from pipelines.stages.corpus.reading import read_dataset

        return read_dataset(source, span, dropped)
    _check_unchanged(span.file)
    if span.file.format in ("html", "pdf"):
        from pipelines.stages.corpus.extraction import read_document

        _require_library(span.file.format)
        return read_document(source, span, dropped)
    from pipelines.stages.corpus.reading import read_table, read_text

    return (read_text if span.file.format == "text" else read_table)(source, span, dropped)


def check_inputs(settings: CorpusSettings) -> frozenset[str]:
    """Raise UserError where the sources cannot be read, or are too few files for a corpus.

    Returns the labels that documents will get; none where only the rows say.
    """
    labels: set[str] = set()
    num_documents = 0  # at least
    for source in settings.sources:
        if isinstance(source, InstalledDocumentation):
            from pipelines.stages.corpus.extraction import installed

            for package in source.packages:
                installed(package)
            labels.update([source.name] if source.name else source.packages)
            num_documents += FEWEST_DOCUMENTS
        elif isinstance(source, HuggingFaceDataset):
            commit_of(source.dataset, source.revision)
            labels.add(_label_of_dataset(source))
            num_documents += FEWEST_DOCUMENTS
        else:
            paths = _checked_files(source)
            labels.update([source.name] if source.name else map(_label_of, paths))
            formats = {_format_of(path, source) for path in paths}
            is_file = source.layout == "file" and formats <= {*_ONE}
            num_documents += len(paths) if is_file else FEWEST_DOCUMENTS
    if num_documents < FEWEST_DOCUMENTS:
        raise too_few_documents(num_documents)
    if any(getattr(source, "label_field", None) is not None for source in settings.sources):
        return frozenset()
    return frozenset(labels)


def _checked_files(source: TextFiles) -> list[str]:
    """The files of the source; raises UserError where one of them cannot be read as it is named."""
    for path in source.paths:
        require_answer(path)
    with reached(*source.paths):
        paths = _expand_all(source.paths)
        for kind in {_format_of(path, source) for path in paths} & {"html", "pdf"}:
            _require_library(kind)
        # Lines of JSON would be read to the last one.
        tables = [path for path in paths if _format_of(path, source) not in (*_ONE, "jsonl")]
        for path in tables[:_TABLES_LOOKED_INTO]:
            check_columns(source, open_table(path, source).columns, path)
    return paths


def check_columns(source: RowSource, columns: Sequence[str], path: str) -> None:
    """Raise UserError where a table lacks a column that the source reads."""
    check_column(source.text_field, columns, path, "text_field of the source (--corpus-column)")
    if source.label_field is not None:
        check_column(source.label_field, columns, path, "label_field of the source")


def _require_library(kind: str) -> None:
    if find_spec({"html": "resiliparse", "pdf": "pypdfium2"}[kind]) is None:
        raise UserError(
            f"{kind.upper()} files need a library that is not installed; install it: "
            "pip install 'bertsmith[documents]'"
        )


def _check_unchanged(file: InputFile) -> None:
    path = Path(file.path)
    if is_local(file.path) and path.is_file() and path.stat().st_size != file.num_bytes:
        raise UserError(
            f"{path} on {socket.gethostname()} has {path.stat().st_size:,} bytes, and had "
            f"{file.num_bytes:,} when the run began; wait until nothing writes it, or copy "
            "the same file to every node, and run again"
        )


def _described(path: str, source: TextFiles) -> InputFile:
    size, digest = size_and_digest(path)
    kind = _format_of(path, source)
    # Quoted line breaks forbid it for CSV files; Parquet files are divided at row groups.
    splittable = kind == "parquet"
    if compression_of(path) is None and (
        kind == "jsonl" or (kind == "text" and source.layout != "file")
    ):
        with open_binary(path) as stream:
            head = stream.read(len(codecs.BOM_UTF8))
            splittable = encoding_of(head, source.encoding) == "utf-8"
    return InputFile(
        path=path,
        label=source.name or _label_of(path),
        num_bytes=size,
        digest=digest,
        format=kind,
        splittable=splittable,
    )


def _format_of(path: str, source: TextFiles) -> Format:
    """What the file is read as, by its name; raises UserError for what nothing here reads."""
    suffix = format_suffix(path)
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    if source.delimiter is not None:
        return "csv"
    # Parts of Wikipedia's dumps end in .xml-p1p41242, with their first and last page.
    if suffix in _NO_TEXT or suffix.startswith(".xml-p"):
        raise UserError(
            f"{path} cannot be read: a corpus takes text, HTML, PDF, CSV, TSV, JSONL and "
            "Parquet files; convert it, or leave it out, as by a glob such as 'folder/*.csv'"
        )
    return "text"


def libraries_of(files: Iterable[InputFile]) -> set[str]:
    """Names, as `versions_of` takes them, of what decides the documents of the files."""
    return {"blingfire"}.union(*(_LIBRARIES.get(file.format, ()) for file in files))


def _expand_all(paths: Sequence[str]) -> list[str]:
    """The files that `paths` name, each once; raises UserError where there are none."""
    if not paths:
        raise UserError(
            "a source of files needs at least one path; name files with --corpus, or set `paths`"
        )
    return list(dict.fromkeys(file for path in paths for file in expand(path)))


def _label_of(path: str) -> str:
    """A file's name without its format and compression."""
    name = PurePosixPath(without_query(path)).name
    return PurePosixPath(PurePosixPath(name).stem if compression_of(name) else name).stem


def _label_of_dataset(source: HuggingFaceDataset) -> str:
    return source.name or source.dataset.rstrip("/").rsplit("/", 1)[-1]


def divide(files: Sequence[tuple[int, InputFile]], part_bytes: int) -> list[Part]:
    """Cut (source, file) pairs into parts of about `part_bytes`, in order.

    A part never mixes sources; a file that cannot be split is read by one task.
    """
    parts: list[Part] = []
    waiting: list[Span] = []
    waiting_bytes = 0
    spans: list[Span] = []
    for source, file in files:
        count = max(1, round(file.num_bytes / part_bytes)) if file.splittable else 1
        edges = [file.num_bytes * index // count for index in range(count)]
        for begin, end in zip(edges, [*edges[1:], None], strict=True):
            spans.append(Span(source=source, file=file, begin=begin, end=end))
    for span in spans:
        # Half of the new span over the mark is as close as half of it under.
        if waiting and (
            waiting[-1].source != span.source or waiting_bytes + span.num_bytes / 2 > part_bytes
        ):
            parts.append(Part(index=len(parts), spans=tuple(waiting)))
            waiting, waiting_bytes = [], 0
        waiting.append(span)
        waiting_bytes += span.num_bytes
    if waiting:
        parts.append(Part(index=len(parts), spans=tuple(waiting)))
    return parts


def inputs_fingerprint(files: Sequence[tuple[int, InputFile]]) -> str:
    """One name for all bytes that will be read, how they are parsed, and the labels they get."""
    digest = hashlib.sha256()
    for source, file in files:
        parsing = f"{compression_of(file.path)} {file.format}"
        line = f"{source}\0{file.label}\0{file.digest}\0{parsing}\n"
        digest.update(line.encode("utf-8", "backslashreplace"))  # a file's name may be no UTF-8
    return digest.hexdigest()[:32]
