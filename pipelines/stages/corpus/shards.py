"""Corpus shards: documents in Arrow files, and reading them back."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow as pa

from pipelines.store import Artifact

Split = Literal["train", "heldout"]
SCHEMA: Final = pa.schema(
    [("id", pa.string()), ("source", pa.string()), ("sentences", pa.list_(pa.string()))]
)
# A record batch holds whole documents of about this many bytes: what a reader needs at a time.
BATCH_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """A clean document, cut into sentences."""

    id: str
    source: str
    sentences: list[str]

    @property
    def text(self) -> str:
        """The sentences, joined."""
        return " ".join(self.sentences)


class ShardWriter:
    """Documents one by one into an Arrow file, a record batch at a time."""

    def __init__(self, path: Path, *, compression: str | None) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._stream = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._stream, SCHEMA, options=options)
        self._rows: list[Document] = []
        self._waiting_bytes = 0
        self.num_bytes = 0

    def write(self, document: Document, num_bytes: int) -> None:
        """Take a document whose sentences hold `num_bytes`."""
        self._rows.append(document)
        self._waiting_bytes += num_bytes
        self.num_bytes += num_bytes
        if self._waiting_bytes >= BATCH_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what waits and the file's footer."""
        self._flush()
        self._writer.close()
        self._stream.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = zip(*((row.id, row.source, row.sentences) for row in self._rows), strict=True)
        arrays = [pa.array(each, kind) for each, kind in zip(columns, SCHEMA.types, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=SCHEMA))
        self._rows, self._waiting_bytes = [], 0


def read_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Record batches of a shard file, memory-mapped, one at a time."""
    with pa.memory_map(str(path)) as stream:
        reader = pa.ipc.open_file(stream)
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def read_tables(corpus: Artifact, split: Split) -> Iterator[pa.RecordBatch]:
    """Columns `id`, `source` and `sentences` of a split, some megabytes at a time."""
    for name in corpus.names(f"{split}-"):
        yield from read_batches(corpus.local(name))


def read_documents(corpus: Artifact, split: Split) -> Iterator[Document]:
    """Documents of a split, in the order of the shards."""
    for batch in read_tables(corpus, split):
        columns = (batch.column(name).to_pylist() for name in SCHEMA.names)
        for identifier, source, sentences in zip(*columns, strict=True):
            yield Document(identifier, source, sentences)
