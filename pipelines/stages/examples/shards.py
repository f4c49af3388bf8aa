"""Example shards: the Arrow files that training reads, memory-mapped and uncompressed.

One row per example: `input_ids` (unpadded, special tokens included), `segment_b_start` (index of
the second segment's first token; the length where there is one segment) and `is_random_next` (null
without next-sentence prediction). The ids are those of the text. Under static masks two columns say
what a model sees instead: `masked_positions` (where [MASK] is) and `replaced` (positions, and
the ids that are there: random ones and, to be predicted too, unchanged ones). Every file is a
single record batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from bert_core.masking import MaskedTokens
from pipelines.stages.corpus.shards import read_batches
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.store import Artifact

FORMAT_VERSION: Final = "2"
VOCABULARY_FILES: Final = ("vocab.txt", "tokenizer_config.json")  # beside the shards


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examples:
    """Examples one after the other: B examples of T tokens in all."""

    input_ids: NDArray[np.int64]  # [T]
    lengths: NDArray[np.int64]  # [B]
    segment_b_start: NDArray[np.int64]  # [B] the length where there is one segment
    is_random_next: NDArray[np.bool_] | None = None  # [B]


def example_schema(settings: ExampleSettings, split: ExampleSet, vocabulary: Artifact) -> pa.Schema:
    """The Arrow schema of `split`; its metadata names the fingerprint of the `vocabulary`."""
    vocab_size = vocabulary.statistics["size"]
    fields = [
        ("input_ids", pa.list_(id_type(vocab_size))),
        ("segment_b_start", pa.uint16()),
        ("is_random_next", pa.bool_()),
    ]
    max_tokens = settings.max_tokens_of(split)
    if settings.has_static_masks(split):
        position = pa.uint8() if max_tokens <= 256 else pa.uint16()
        replacement = pa.struct([("position", position), ("id", id_type(vocab_size))])
        fields.append(("masked_positions", pa.list_(position)))
        fields.append(("replaced", pa.list_(replacement)))
    metadata = {
        "format_version": FORMAT_VERSION,
        "vocabulary": vocabulary.fingerprint,
        "objective": settings.objective,
        "max_tokens": str(max_tokens),
        "seed": str(settings.seed),
    }
    return pa.schema(fields, metadata=metadata)


def write_examples(
    path: Path, examples: Examples, masked: MaskedTokens | None, schema: pa.Schema, *, mask_id: int
) -> None:
    """Write examples, masked where `masked` is given, as one file."""
    count = examples.lengths.size
    offsets = np.concatenate([[0], np.cumsum(examples.lengths)])
    is_random = (
        pa.nulls(count, pa.bool_())
        if examples.is_random_next is None
        else pa.array(examples.is_random_next)
    )
    columns: list[pa.Array] = [
        _lists(offsets, [examples.input_ids], schema.field("input_ids").type),
        pa.array(examples.segment_b_start.astype(np.uint16)),
        is_random,
    ]
    if masked is not None:
        is_mask = masked.input_ids[masked.positions] == mask_id
        for name, positions in (
            ("masked_positions", masked.positions[is_mask]),
            ("replaced", masked.positions[~is_mask]),
        ):
            edges = np.searchsorted(positions, offsets)
            values = [positions - np.repeat(offsets[:-1], np.diff(edges))]
            if name == "replaced":
                values.append(masked.input_ids[positions])
            columns.append(_lists(edges, values, schema.field(name).type))
    _write_batch(path, pa.record_batch(columns, schema=schema))


def write_slices(path: Path, slices: list[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write successive slices of other files as one file of a single record batch."""
    table = pa.Table.from_batches(slices, schema=slices[0].schema).combine_chunks()
    (batch,) = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    _write_batch(path, batch.replace_schema_metadata(schema.metadata))


def read_example_batch(path: Path) -> pa.RecordBatch:
    """The record batch of a file, memory-mapped."""
    return pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """A column of lists of numbers; its rows are views."""

    values: NDArray[Any]
    offsets: NDArray[np.int32]

    def row(self, number: int) -> NDArray[Any]:
        return self.values[self.offsets[number] : self.offsets[number + 1]]


def lists_in(batch: pa.RecordBatch, name: str) -> list[Lists]:
    """The lists of a column, by field where they hold structs."""
    column = batch.column(name)
    values = column.values
    fields = values.flatten() if pa.types.is_struct(values.type) else [values]
    offsets = column.offsets.to_numpy(zero_copy_only=True)
    return [Lists(field.to_numpy(zero_copy_only=True), offsets) for field in fields]


def _lists(
    offsets: NDArray[np.int64], values: list[NDArray[Any]], kind: pa.ListType
) -> pa.ListArray:
    """Lists of numbers or, of several arrays, of structs."""
    item = kind.value_type
    if pa.types.is_struct(item):
        arrays = [
            pa.array(each.astype(field.type.to_pandas_dtype()))
            for each, field in zip(values, item, strict=True)
        ]
        flat = pa.StructArray.from_arrays(arrays, fields=list(item))
    else:
        flat = pa.array(values[0].astype(item.to_pandas_dtype()))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat)


def _write_batch(path: Path, batch: pa.RecordBatch) -> None:
    options = pa.ipc.IpcWriteOptions(compression=None, use_threads=False)
    with (
        pa.OSFile(str(path), "wb") as stream,
        pa.ipc.new_file(stream, batch.schema, options=options) as writer,
    ):
        writer.write_batch(batch)


LARGEST_SMALL_ID: Final = 2**16 - 1


def id_type(vocab_size: int) -> pa.DataType:
    """uint16 where it holds every token id, else uint32."""
    return pa.uint16() if vocab_size - 1 <= LARGEST_SMALL_ID else pa.uint32()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenShard:
    """Ids of all sentences in a row, and where sentences and documents begin."""

    ids: NDArray[np.unsignedinteger]  # [T]
    sentence_starts: NDArray[np.int64]  # one per sentence, and T
    document_starts: NDArray[np.int64]  # in sentences: one per document, and their number
    groups: NDArray[np.uint64]  # one per document; shared by the pieces of a document

    def with_sentences_up_to(self, max_tokens: int) -> "TokenShard":
        """The same tokens, with longer sentences cut into pieces of nearly equal length."""
        lengths = np.diff(self.sentence_starts)
        pieces = np.maximum(1, -(-lengths // max_tokens))
        sentence = np.repeat(np.arange(lengths.size), pieces)
        ends = np.cumsum(pieces)
        number = np.arange(sentence.size) - (ends - pieces)[sentence]
        starts = self.sentence_starts[sentence] + number * lengths[sentence] // pieces[sentence]
        first_piece = np.concatenate([[0], ends])
        return TokenShard(
            ids=self.ids,
            sentence_starts=np.append(starts, self.sentence_starts[-1]),
            document_starts=first_piece[self.document_starts],
            groups=self.groups,
        )


def write_token_shard(corpus_shard: Path, path: Path, encoder: SentenceEncoder) -> dict[str, Any]:
    """Encode a corpus shard; returns its figures.

    Sentences without any token (such as a lone zero-width space) are left out, and so are documents
    that have nothing else.
    """
    value_type = id_type(encoder.tokenizer.vocab_size)
    schema = pa.schema([("group", pa.uint64()), ("sentences", pa.list_(pa.list_(value_type)))])
    figures = {"tokens": 0, "sentences": 0, "documents": 0}
    groups: set[int] = set()
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        for batch in read_batches(corpus_shard):
            encoded = _encode_batch(batch, encoder, value_type)
            if not encoded.num_rows:
                continue
            writer.write_batch(encoded)
            groups.update(encoded.column("group").unique().to_pylist())
            sentences = encoded.column("sentences").flatten()
            figures["tokens"] += len(sentences.flatten())
            figures["sentences"] += len(sentences)
            figures["documents"] += encoded.num_rows
    return {**figures, "groups": sorted(groups)[:2]}  # whether there is a choice of them


def read_token_shard(path: Path) -> TokenShard:
    """A token shard; ids stay memory-mapped where the file is a single record batch."""
    batches = list(read_batches(path))
    sentences = [batch.column("sentences") for batch in batches]
    flat = [column.flatten() for column in sentences]
    return TokenShard(
        ids=_joined([column.flatten().to_numpy() for column in flat]),
        sentence_starts=_starts(flat),
        document_starts=_starts(sentences),
        groups=_joined([batch.column("group").to_numpy() for batch in batches]),
    )


def _encode_batch(
    batch: pa.RecordBatch, encoder: SentenceEncoder, value_type: pa.DataType
) -> pa.RecordBatch:
    sentences = batch.column("sentences")
    ids, lengths = encoder.encode(sentences.flatten())
    per_document = pc.list_value_length(sentences).to_numpy(zero_copy_only=False)
    document = np.repeat(np.arange(batch.num_rows), per_document)
    kept = np.bincount(document[lengths > 0], minlength=batch.num_rows)
    # An id begins with the hash that the pieces of a document share.
    groups = [int(each[:16], 16) for each in batch.column("id").to_pylist()]
    lists = pa.ListArray.from_arrays(
        _offsets(kept[kept > 0]),
        pa.ListArray.from_arrays(
            _offsets(lengths[lengths > 0]), pa.array(ids.astype(value_type.to_pandas_dtype()))
        ),
    )
    group_column = pa.array(np.array(groups, dtype=np.uint64)[kept > 0])
    return pa.record_batch([group_column, lists], names=["group", "sentences"])


def _offsets(lengths: NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _starts(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    lengths = [pc.list_value_length(column).to_numpy(zero_copy_only=False) for column in columns]
    return np.concatenate([[0], np.cumsum(_joined(lengths))]).astype(np.int64)


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The integers of all ranges [begin, begin + length), one range after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) + np.repeat(begins - (ends - lengths), lengths)
