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


def record_batch(documents: list[Document]) -> pa.RecordBatch:
    columns = zip(*((row.id, row.source, row.sentences) for row in documents), strict=True)
    arrays = [pa.array(each, kind) for each, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


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
