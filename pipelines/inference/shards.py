"""Rows of files in shards: what a model is asked about, their answers as Parquet files, copies."""

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bert_core.inference.tables import Question, is_blank, question_of
from bert_core.model.catalogue import Model
from pipelines.artifacts import Artifact, Draft
from pipelines.artifacts.access import store_errors
from pipelines.cluster.mapping import Shared
from pipelines.config.errors import UserError, first_line
from pipelines.inference.answers import answers_to, asked_of, check_rows, holds_lists, texts_of
from pipelines.inference.tables import FileTable, Table, read_shards
from pipelines.registry.opening import OpenedModel

_ROW: Final = "row"  # column of the row's number in its file, from 0
# Readers of a folder of Parquet files leave names with an underscore out.
LISTING: Final = "_predictions.json"
_PROBE: Final = "_probe"
_TEXTS: Final = ("text", "second_text")  # what --text-column and --second-text-column name
# By what a question says of a column: of a single shard the values do not tell it.
_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(),
    list[str]: pa.list_(pa.string()), list[float]: pa.list_(pa.float64()),
}  # fmt: skip


class Shard(NamedTuple):
    """Rows of one file, and the file that their answers go to."""

    name: str
    numbers: list[int]
    columns: Table

    @property
    def digest(self) -> str:
        """Of the rows: the answers to others, of a file that has changed, are not used."""
        rows = json.dumps([self.numbers, self.columns])
        return hashlib.sha256(rows.encode()).hexdigest()


def asked_shards(
    path: str, columns: Mapping[str, str], question: Question, model: Model, rows_per_shard: int
) -> Iterator[FileTable]:
    """The rows of a file with the columns that a model is asked about, so many at a time.

    `columns` says under which names the file has them: the question's own names, or `text` and
    `second_text` for the first and the second. Raises UserError where it lacks one, for a row
    without a text, and for a cell that is none.
    """
    known = (*question.columns, *question.optional)
    by_place = dict(zip(_TEXTS, texts_of(question), strict=False))
    renamed: dict[str, str] = {}
    for name, theirs in columns.items():
        own = name if name in known else by_place.get(name, name)
        if own not in known or own in renamed:
            raise UserError(
                f"this model is asked about {', '.join(known)}, once each: leave out the column "
                f"{theirs!r}, which was named as {name}"
            )
        renamed[own] = theirs
    for rows in read_shards(path, rows_per_shard):
        if not rows.numbers:
            continue
        table = asked_of(rows, renamed, question).columns
        missing = question.missing(table)
        if missing:
            raise UserError(
                f"{path} has no column {' and no column '.join(missing)}; say with columns what it "
                "calls them"
            )
        check_rows(model, table, rows.numbers, path)
        texts = {name: list(map(_as_text, cells)) for name, cells in table.items()}
        yield FileTable(path, rows.numbers, texts)


def _as_text(cell: Any) -> Any:
    """The cell as a text, or as a list of them; None where it holds nothing."""
    if is_blank(cell):
        return None
    return [str(each) for each in cell] if isinstance(cell, list) else str(cell)


def write_answers(
    draft: Draft,
    opened: Shared[OpenedModel],
    reference: str,
    asked: Sequence[str],
    shard: Shard,
) -> int:
    """Answer the rows of a shard and write them with their answers; returns how many they are.

    All shards have the same columns of the same types: those that are `asked` about in any of them
    are empty where a shard lacks them. One thread computes, because more of them round in another
    order: other bytes.
    """
    torch.set_num_threads(1)
    model, tokenizer = opened.value()
    question, nothing = question_of(model), [None] * len(shard.numbers)
    kinds = {name: list[str] if holds_lists(question, name) else str for name in asked}
    table: dict[str, Any] = {
        _ROW: shard.numbers,
        **{name: _column(shard.columns.get(name, nothing), kinds[name]) for name in asked},
    }
    for name, values in answers_to(model, tokenizer, shard.columns).items():
        table[name] = _column(values, question.answers.get(name))
    table["model"] = [reference] * len(shard.numbers)
    with draft.file(shard.name) as target:
        pq.write_table(pa.table(table), target.path)
        target.figures |= {"rows": len(shard.numbers), "digest": shard.digest}
    return len(shard.numbers)


def _column(values: Sequence[Any], kind: Any) -> pa.Array:
    """An Arrow array; vectors keep their float32."""
    is_vectors = len(values) and isinstance(values[0], np.ndarray)
    return pa.array(values, None if is_vectors else _TYPES.get(kind))


def made_folder(target: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The folder `target`, which exists then and takes files; raises UserError if it does not."""
    try:
        filesystem, folder = fsspec.url_to_fs(target)
        filesystem.makedirs(folder, exist_ok=True)
        filesystem.pipe_file(probe := posixpath.join(folder, _PROBE), b"")
        filesystem.rm_file(probe)
    except _target_errors() as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"answers cannot be copied to {target} ({reason}); name a folder or URL where this "
            "user may write"
        ) from error
    return filesystem, folder


def _target_errors() -> tuple[type[Exception], ...]:
    """A store that fails, a library that is missing, an address that nothing opens."""
    return (*store_errors(), ImportError, ValueError)


def copy_answers(predictions: Artifact, target: str) -> None:
    """Copy every shard to `target`; each appears whole there.

    Shards of an earlier prediction, which are known by the listing there, are removed at the end;
    nothing else is touched. Raises UserError where `target` cannot be written.
    """
    filesystem, folder = made_folder(target)
    listing, names = posixpath.join(folder, LISTING), list(predictions.names())
    try:
        before = _listed(filesystem, listing)
        # If this is killed, the next copy must know of both.
        _list(filesystem, listing, predictions, sorted({*before, *names}))
        for name in names:
            place = posixpath.join(folder, name)
            partial_place = f"{place}.partial"
            filesystem.put_file(str(predictions.local(name)), partial_place)
            filesystem.mv(partial_place, place)
        for name in set(before) - set(names):
            place = posixpath.join(folder, name)
            if filesystem.exists(place):
                filesystem.rm_file(place)
        _list(filesystem, listing, predictions, names)
    except store_errors() as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"the answers cannot be copied to {target} ({reason}); name a folder or URL where this "
            f"user may write. They are kept in {predictions.url}"
        ) from error


def _listed(filesystem: fsspec.AbstractFileSystem, listing: str) -> list[str]:
    if not filesystem.exists(listing):
        return []
    try:
        names = json.loads(filesystem.cat_file(listing))["files"]
    except (ValueError, KeyError, TypeError):
        return []  # not ours
    return [posixpath.basename(str(name)) for name in names]


def _list(
    filesystem: fsspec.AbstractFileSystem, listing: str, predictions: Artifact, names: list[str]
) -> None:
    listed = {"predictions": predictions.fingerprint, "files": names}
    filesystem.pipe_file(listing, json.dumps(listed, indent=2).encode())
