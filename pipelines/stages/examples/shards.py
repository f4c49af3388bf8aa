"""Example shards: the Arrow files that training reads, memory-mapped and uncompressed.

One row per example: `input_ids` (unpadded, special tokens included), `segment_b_start` (index of
the second segment's first token; the length where there is one segment) and `is_random_next` (null
without next-sentence prediction). The ids are those of the text. Under static masks two columns say
what a model sees instead: `masked_positions` (where [MASK] is) and `replaced` (positions, and
the ids that are there: random ones and, to be predicted too, unchanged ones). Every file is a
single record batch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_core.masking import MaskedTokens
from pipelines.stages.examples.objectives import Examples
from pipelines.stages.examples.settings import ExampleSet, ExampleSettings
from pipelines.stages.examples.token_shards import id_type

FORMAT_VERSION: Final = "2"
VOCABULARY_FILES: Final = ("vocab.txt", "tokenizer_config.json")  # beside the shards


def example_schema(
    settings: ExampleSettings, split: ExampleSet, vocabulary: str, vocab_size: int
) -> pa.Schema:
    """The Arrow schema of `split`; its metadata names the fingerprint of the `vocabulary`."""
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
        "vocabulary": vocabulary,
        "objective": settings.objective,
        "max_tokens": str(max_tokens),
        "seed": str(settings.seed),
    }
    return pa.schema(fields, metadata=metadata)


def write_examples(
    path: Path,
    examples: Examples,
    masked: MaskedTokens | None,
    schema: pa.Schema,
    *,
    mask_id: int,
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
