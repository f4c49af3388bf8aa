"""Rows of files in shards: what a model is asked about, and their answers as Parquet files."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bert_core.inference.questions import Question
from bert_core.model.catalogue import Model
from pipelines.artifacts import Draft
from pipelines.cluster.mapping import Shared
from pipelines.config.errors import UserError
from pipelines.inference.answers import answers_to, asked_of, check_gaps
from pipelines.inference.tables import FileTable, Table, read_shards
from pipelines.registry.opening import OpenedModel

_ROW: Final = "row"  # column of the row's number in its file, from 0


class Shard(NamedTuple):
    """Rows of one file, and the file that their answers go to."""

    name: str
    numbers: list[int]
    columns: Table


def asked_shards(
    path: str, columns: Mapping[str, str], question: Question, model: Model, rows_per_shard: int
) -> Iterator[FileTable]:
    """The rows of a file with the columns that a model is asked about, so many at a time.

    `columns` says under which names the file has them. Raises UserError where it lacks one, and
    for a row without a text.
    """
    renamed = {name: theirs for name, theirs in columns.items() if theirs}
    for rows in read_shards(path, rows_per_shard):
        table = asked_of(rows, renamed, question).columns
        missing = question.missing(table)
        if missing:
            raise UserError(
                f"{path} has no column {' and no column '.join(missing)}; say with columns what it "
                "calls them"
            )
        check_gaps(model, table, rows.numbers, path)
        if rows.numbers:
            yield FileTable(path, rows.numbers, table)


def write_answers(draft: Draft, opened: Shared[OpenedModel], reference: str, shard: Shard) -> int:
    """Answer the rows of a shard and write them with their answers; returns how many they are.

    One thread computes, because more of them round in another order: other bytes.
    """
    torch.set_num_threads(1)
    whole: dict[str, Any] = {
        _ROW: shard.numbers,
        **shard.columns,
        **answers_to(*opened.value(), shard.columns),
        "model": [reference] * len(shard.numbers),
    }
    with draft.file(shard.name) as target:
        pq.write_table(pa.table(whole), target.path)
        target.figures["rows"] = len(shard.numbers)
    return len(shard.numbers)
