"""What a corpus is read from: files, divided into spans and parts.

Parts depend on the inputs and the settings alone, never on the number of workers: that is why the
shards made from them are the same for any.
"""

import hashlib
import socket
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, Literal

from pipelines.errors import UserError
from pipelines.io.files import (
    compression_of,
    expand,
    format_suffix,
    is_local,
    read_head,
    size_and_digest,
    without_query,
)
from pipelines.io.text import check_suffix, encoding_of
from pipelines.stages.corpus.settings import TextFiles

MEGABYTE = 10**6


Format = Literal[
    "text", "html", "pdf", "csv", "tsv", "jsonl", "parquet", "arrow", "docstrings", "dataset"
]
_FORMATS: Final[dict[str, Format]] = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet",
    ".arrow": "arrow", ".pdf": "pdf", ".html": "html", ".htm": "html", ".xhtml": "html",
}  # fmt: skip
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
    splittable: bool


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


def check_unchanged(file: InputFile) -> None:
    """Raise UserError for a local file that has another size than when the run looked at it."""
    path = Path(file.path)
    if is_local(file.path) and path.is_file() and path.stat().st_size != file.num_bytes:
        raise UserError(
            f"{path} on {socket.gethostname()} has {path.stat().st_size:,} bytes, and had "
            f"{file.num_bytes:,} when the run began; wait until nothing writes it, or copy "
            "the same file to every node, and run again"
        )


def list_files(source: TextFiles) -> list[InputFile]:
    """Every file that the source names, in the order of its paths and sorted within each.

    Raises UserError where a path names nothing that can be read.
    """

    def describe(path: str) -> InputFile:
        size, digest = size_and_digest(path)
        form = format_of(path, source)
        # Quoted line breaks forbid it for CSV files; Parquet files are divided at row groups.
        is_text = form == "jsonl" or (form == "text" and source.layout != "file")
        splittable = form == "parquet" or (
            is_text
            and compression_of(path) is None
            and encoding_of(read_head(path, 2)[0], source.encoding) == "utf-8"
        )
        return InputFile(
            path=path,
            label=source.name or label_of(path),
            num_bytes=size,
            digest=digest,
            format=form,
            splittable=splittable,
        )

    with ThreadPoolExecutor(8) as pool:  # hashing and remote look-ups leave the interpreter
        return list(pool.map(describe, expand_all(source.paths)))


def format_of(path: str, source: TextFiles) -> Format:
    """What the file is read as, by its name; raises UserError for what nothing here reads."""
    suffix = format_suffix(path)
    if suffix in _FORMATS:
        return _FORMATS[suffix]
    if source.delimiter is not None:
        return "csv"
    check_suffix(path, "a corpus takes text, HTML, PDF, CSV, TSV, JSONL and Parquet files")
    return "text"


def libraries_of(files: Iterable[InputFile]) -> set[str]:
    """Names, as `versions_of` takes them, of what decides the documents of the files."""
    return {"blingfire"}.union(*(_LIBRARIES.get(file.format, ()) for file in files))


def expand_all(paths: Sequence[str]) -> list[str]:
    """The files that `paths` name, each once; raises UserError where there are none."""
    if not paths:
        raise UserError("a source of files needs at least one path; set `paths`")
    return list(dict.fromkeys(file for path in paths for file in expand(path)))


def label_of(path: str) -> str:
    """A file's name without its format and compression."""
    name = PurePosixPath(without_query(path)).name
    stem = PurePosixPath(name).stem if compression_of(name) else name
    return PurePosixPath(stem).stem


def shard_bytes(total_bytes: int, shard_megabytes: float | None) -> int:
    """Bytes of input per shard: what was asked for, or a 64th of all from 1 to 64 MB."""
    if shard_megabytes is not None:
        return int(shard_megabytes * MEGABYTE)
    return min(max(total_bytes // 64, MEGABYTE), 64 * MEGABYTE)


def divide(files: Sequence[tuple[int, InputFile]], part_bytes: int) -> list[Part]:
    """Cut (source, file) pairs into parts of about `part_bytes`, in order.

    A part never mixes sources; a file that cannot be split is read by one task.
    """
    parts: list[Part] = []
    waiting: list[Span] = []
    for span in _spans(files, part_bytes):
        total = sum(each.num_bytes for each in waiting)
        # Half of the new span over the mark is as close as half of it under.
        if waiting and (
            waiting[-1].source != span.source or total + span.num_bytes / 2 > part_bytes
        ):
            parts.append(Part(index=len(parts), spans=tuple(waiting)))
            waiting = []
        waiting.append(span)
    if waiting:
        parts.append(Part(index=len(parts), spans=tuple(waiting)))
    return parts


def _spans(files: Sequence[tuple[int, InputFile]], part_bytes: int) -> Iterator[Span]:
    for source, file in files:
        count = max(1, round(file.num_bytes / part_bytes)) if file.splittable else 1
        edges = [file.num_bytes * index // count for index in range(count)]
        for begin, end in zip(edges, [*edges[1:], None], strict=True):
            yield Span(source=source, file=file, begin=begin, end=end)


def inputs_fingerprint(files: Sequence[tuple[int, InputFile]]) -> str:
    """One name for all bytes that will be read, how they are parsed, and the labels they get."""
    digest = hashlib.sha256()
    for source, file in files:
        parsing = f"{compression_of(file.path)} {file.format}"
        line = f"{source}\0{file.label}\0{file.digest}\0{parsing}\n"
        digest.update(line.encode("utf-8", "backslashreplace"))  # a file's name may be no UTF-8
    return digest.hexdigest()[:32]
