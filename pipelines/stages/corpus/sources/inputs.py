"""The inputs of a corpus: which module reads each source, and how reading is divided into parts.

Parts depend on the inputs and the settings alone, never on the number of workers: that is why the
shards made from them are the same for any.
"""

import hashlib
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from pipelines.artifacts.manifest import canonical_json
from pipelines.config.errors import UserError
from pipelines.io.files import compression_of, expand, is_local, size_and_digest, without_query
from pipelines.io.records import Dialect
from pipelines.io.text import Tally
from pipelines.stages.corpus.settings import Source

MEGABYTE = 10**6
# Each has resolve(settings) and read(settings, span, tally). They are imported when needed: some
# import large libraries.
_READERS: Final = {
    "installed_documentation": "documentation",
    "text": "text_files",
    "html": "documents",
    "pdf": "documents",
    "markdown": "markup",
    "jsonl": "records",
    "csv": "records",
    "columnar": "records",
    "hugging_face": "records",
    "mediawiki": "markup",
}
# Libraries whose versions decide the documents of a source. Decompression and XML do not: their
# results are defined. Of `installed_documentation` it is Python's parser and its `cleandoc`.
_LIBRARIES: Final = {
    "installed_documentation": ("python",),
    "html": ("resiliparse",),
    "pdf": ("pypdfium2",),  # a version of it brings a version of PDFium
    "markdown": ("markdown-it-py", "python"),  # named entities are Python's
    "hugging_face": ("datasets", "pandas"),
    "mediawiki": ("mwparserfromhell", "python"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file (or what a source treats as one) before anything of it is read."""

    path: str
    label: str
    num_bytes: int
    digest: str
    splittable: bool
    # How the bytes are parsed, where the settings of the source do not say it.
    compression: str | None = None
    hard_wrapped: bool = False  # plain text whose lines were broken to fit a page
    dialect: Dialect | None = None  # of delimited text


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


class Resolved(NamedTuple):
    """A source with all settings decided, its files in a fixed order, and what was found."""

    source: Source
    files: list[InputFile]
    note: str = ""  # a sentence for the log


def resolve(source: Source) -> Resolved:
    """Look at what `source` names: which files, how they are laid out, which commit.

    Raises UserError where it names nothing that can be read.
    """
    resolved: Resolved = _reader(source).resolve(source)
    return resolved


def libraries_of(source: Source) -> tuple[str, ...]:
    """Names, as `versions_of` takes them, of what decides the documents of a resolved source."""
    if source.kind == "text" and source.layout == "sentences":
        return ()
    return ("blingfire", *_LIBRARIES.get(source.kind, ()))


def read_span(source: Source, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`, in order; what is mended or dropped goes to `tally`.

    Raises UserError for a local file that has another size than when the run looked at it.
    """
    path = Path(span.file.path)
    if is_local(span.file.path) and path.is_file() and path.stat().st_size != span.file.num_bytes:
        raise UserError(
            f"{path} on {socket.gethostname()} has {path.stat().st_size:,} bytes, and had "
            f"{span.file.num_bytes:,} when the run began; wait until nothing writes it, or copy "
            "the same file to every node, and run again"
        )
    documents: Iterator[RawDocument] = _reader(source).read(source, span, tally)
    return documents


def _reader(source: Source) -> Any:
    return import_module(f"pipelines.stages.corpus.sources.{_READERS[source.kind]}")


def list_files(paths: Sequence[str], *, label: str | None, splittable: bool) -> list[InputFile]:
    """Every file that `paths` name, in the order of the paths and sorted within each.

    `splittable` says whether the format can be read from the middle; compressed files never can.
    Raises UserError where a path names nothing that can be read.
    """

    def describe(path: str) -> InputFile:
        size, digest = size_and_digest(path)
        compression = compression_of(path)
        return InputFile(
            path=path,
            label=label or label_of(path),
            num_bytes=size,
            digest=digest,
            splittable=splittable and compression is None,
            compression=compression,
        )

    with ThreadPoolExecutor(8) as pool:  # hashing and remote look-ups leave the interpreter
        return list(pool.map(describe, expand_all(paths)))


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
        parsing = {
            "compression": file.compression,
            "hard_wrapped": file.hard_wrapped,
            "dialect": file.dialect and [file.dialect.delimiter, file.dialect.quoted],
        }
        named = {key: value for key, value in parsing.items() if value}
        line = f"{source}\0{file.label}\0{file.digest}\0{canonical_json(named)}\n"
        digest.update(line.encode("utf-8", "backslashreplace"))  # a file's name may be no UTF-8
    return digest.hexdigest()[:32]
