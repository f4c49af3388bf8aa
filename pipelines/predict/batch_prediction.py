"""Answers to whole files, shard by shard, by one version of a registered model."""

import hashlib
import json
import posixpath
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import Field

from bert_core.inference.tables import Question, is_blank, question_of
from bert_core.model.catalogue import Model
from pipelines.cluster import Shared, map_tasks
from pipelines.errors import Uri, UserError, first_line
from pipelines.io.files import expand, size_and_digest
from pipelines.io.tables import TableSettings
from pipelines.predict.answers import answers_to, asked_of, check_rows, holds_lists, texts_of
from pipelines.predict.tables import FileTable, Table, format_of, read_shards
from pipelines.registry.find import digest_of, find_model, reference_to
from pipelines.registry.package import OpenedModel, open_model
from pipelines.stage import Progress, StageContext
from pipelines.store import Artifact, Built, Draft
from pipelines.store.access import store_errors
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.versions import versions_of

KIND: Final = "predictions"
_VERSION: Final = 6
_ROW, _MODEL = "row", "model"  # columns of the row's number in its file, from 0, and of the version
# Readers of a folder of Parquet files leave names with an underscore out.
LISTING: Final = "_predictions.json"
_TEXTS: Final = ("text", "second_text")  # what --text-column and --second-text-column name
# By what a question says of a column: of a single shard the values do not tell it.
_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(),
    list[str]: pa.list_(pa.string()), list[float]: pa.list_(pa.float64()),
}  # fmt: skip


class BatchSettings(TableSettings):
    """Which model answers the rows of which files."""

    model: str = Field(
        default="bertsmith-classifier@champion",
        min_length=1,
        description="The model: name@alias, name/version or a name. The version that this names "
        "when a run starts answers all of its rows.",
    )
    files: tuple[Uri, ...] = Field(
        default=(),
        description="Files with a text a line (.txt), or .csv, .tsv, .jsonl, .parquet or .arrow "
        "tables: paths, globs, folders or URLs such as s3://bucket/texts/*.parquet.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Under which name the files have what the model is asked about, such as "
        '{"text": "review"}; what is not named has its own name. `text` and `second_text` are '
        "the first and the second text of any model.",
    )
    rows_per_shard: int = Field(
        default=5_000, ge=1, description="Rows of one file of answers; a killed run resumes there."
    )
    out: Uri = Field(
        default="",
        description="Folder or URL that the answers are copied to, too; empty: they stay in the "
        "store.",
    )


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


def build_predictions(settings: BatchSettings, tracker: Tracker, context: StageContext) -> Artifact:
    """The rows of all files with their answers, as Parquet shards of one artifact of the store.

    They are identified by the version that the model's name means now and by the bytes of the
    files: a repeated run looks them up, and a killed one resumes at its shard. Raises UserError for
    a model or a file that cannot be read, and for rows that the model cannot answer.
    """
    if not settings.files:
        raise UserError("batch prediction needs files to answer; name them with files")
    version = find_model(tracker.client(), settings.model)
    reference = reference_to(version)
    paths = [path for each in settings.files for path in expand(each)]
    # A folder of answers lists its files in one that holds no rows.
    paths = [path for path in paths if not path.endswith(f"/{LISTING}")]
    if settings.out:
        _check_target(settings.out, settings.files)
    files = [(path, size_and_digest(path)[1]) for path in paths]
    reading = settings.model_dump(exclude={"model", "files", "out"})
    predictions = context.store.get_or_build(
        KIND,
        version=_VERSION,
        settings=reading,
        inputs={
            "model": version.tags.get(FINGERPRINT_TAG, ""),
            "package": digest_of(version),
            "version": reference,
            "libraries": versions_of("pyarrow", "tokenizers", "torch"),
            **{f"file {n}": digest for n, (_, digest) in enumerate(files)},
            **{f"format {n}": format_of(path, settings) for n, path in enumerate(paths)},
        },
        build=partial(_predict, settings, reference, files, tracker, context),
    )
    if settings.out:
        copy_answers(predictions, settings.out)
    return predictions


def _predict(
    settings: BatchSettings,
    reference: str,
    files: Sequence[tuple[str, str]],
    tracker: Tracker,
    context: StageContext,
    draft: Draft,
) -> Built:
    opened = open_model(tracker, reference)
    # A mistake in the last row ends the run here, not after hours of answers.
    total, asked = _read_through(opened[0], settings, files, context)
    names: list[str] = []
    started, num_before, num_answered = time.monotonic(), 0, 0

    def unanswered() -> Iterator[Shard]:
        """The shards that no earlier run has answered."""
        nonlocal num_before
        for number, (path, digest) in enumerate(files):
            for index, rows in enumerate(asked_shards(path, settings, opened[0])):
                names.append(f"part-{number:05}-{index:05}.parquet")
                shard = Shard(names[-1], rows.numbers, rows.columns)
                if (draft.finished(shard.name) or {}).get("digest") == shard.digest:
                    num_before += len(rows.numbers)
                else:
                    yield shard
            fsspec.url_to_fs(path)[0].invalidate_cache()  # of what a store said before
            if size_and_digest(path)[1] != digest:
                raise UserError(
                    f"{path} changed during the run; wait until nothing writes it, and run again"
                )

    def on_result(_: int, num_rows: int) -> None:
        nonlocal num_answered
        is_first, num_answered = not num_answered, num_answered + num_rows
        rate = num_answered / max(time.monotonic() - started, 1e-9)
        done = num_before + num_answered
        note = f"resumed: {num_before:,} rows were answered before" if num_before else ""
        context.observe(
            Progress(
                stage=KIND, done=done, total=total, unit="rows",
                figures={"rate": f"{rate:,.0f} rows/s"}, note=note if is_first else "",
            )
        )  # fmt: skip

    map_tasks(
        partial(write_answers, draft, Shared(opened), reference, asked),
        unanswered(),
        num_workers=context.runtime.num_workers,
        on_result=on_result,
    )
    return Built(names, {"rows": total, "files": len(files), "model": reference})


def _read_through(
    model: Model, settings: BatchSettings, files: Sequence[tuple[str, str]], context: StageContext
) -> tuple[int, list[str]]:
    """How many rows all files have, and what they are asked about; each row is checked."""
    question = question_of(model)
    num_rows, asked = 0, dict[str, None]()
    for path, _ in files:
        for rows in asked_shards(path, settings, model):
            others = asked.keys() ^ rows.columns.keys()
            if num_rows and question.is_of_pairs and others:
                raise UserError(
                    f"some files have a column {', '.join(sorted(others))} and others have none "
                    f"({path}): pairs are answered with a number and texts with a vector; answer "
                    "them in two runs"
                )
            num_rows += len(rows.numbers)
            asked.update(dict.fromkeys(rows.columns))
            context.observe(Progress(stage="reading", done=num_rows, total=0, unit="rows"))
    if not num_rows:
        raise UserError(f"there is no row to answer in {len(files)} files")
    taken = {_ROW, _MODEL} & {*asked, *question.answers}
    if taken:
        raise UserError(
            f"the answers have columns {_ROW} and {_MODEL} of their own, and this model has "
            f"{min(taken)} too; answer the files with `predict --file`"
        )
    return num_rows, list(asked)


def asked_shards(path: str, settings: BatchSettings, model: Model) -> Iterator[FileTable]:
    """The rows of a file with the columns that a model is asked about, so many at a time.

    Raises UserError where the file lacks a column, for a row without a text, and for a cell that is
    none.
    """
    question = question_of(model)
    renamed = _renamed(settings.columns, question)
    for rows in read_shards(path, settings.rows_per_shard, settings):
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


def _renamed(columns: Mapping[str, str], question: Question) -> dict[str, str]:
    """By the question's name of a column, the one that the files have."""
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
    return renamed


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
    table[_MODEL] = [reference] * len(shard.numbers)
    with draft.file(shard.name) as target:
        pq.write_table(pa.table(table), target.path)
        target.figures |= {"rows": len(shard.numbers), "digest": shard.digest}
    return len(shard.numbers)


def _column(values: Sequence[Any], kind: Any) -> pa.Array:
    """An Arrow array; vectors keep their float32."""
    is_vectors = len(values) and isinstance(values[0], np.ndarray)
    return pa.array(values, None if is_vectors else _TYPES.get(kind))


def _check_target(target: str, files: Sequence[str]) -> None:
    """Raise UserError where answers could not be copied to `target`, or would be asked next time.

    A mistake ends the run here, not after hours of answers.
    """
    try:
        filesystem, folder = fsspec.url_to_fs(target)
        for asked in files:
            source, plain = fsspec.url_to_fs(asked)
            if source.isdir(plain) and f"{folder}/".startswith(f"{plain.rstrip('/')}/"):
                raise UserError(
                    f"answers in {target} would be asked at the next run, as all of {asked} is; "
                    "name a folder beside it"
                )
        filesystem.makedirs(folder, exist_ok=True)
        filesystem.pipe_file(probe := posixpath.join(folder, "_probe"), b"")
        filesystem.rm_file(probe)
    except UserError:
        raise
    except _target_errors() as error:
        raise _not_copied(target, error) from error


def _target_errors() -> tuple[type[Exception], ...]:
    """A store that fails, a library that is missing, an address that nothing opens."""
    return (*store_errors(), ImportError, ValueError)


def copy_answers(predictions: Artifact, target: str) -> None:
    """Copy every shard to `target`; each appears whole there.

    Shards of an earlier prediction, which are known by the listing there, are removed at the end;
    nothing else is touched. Raises UserError where `target` cannot be written.
    """
    filesystem, folder = fsspec.url_to_fs(target)
    listing, names = posixpath.join(folder, LISTING), list(predictions.names())

    def list_files(files: Sequence[str]) -> None:
        listed = {"predictions": predictions.fingerprint, "files": files}
        filesystem.pipe_file(listing, json.dumps(listed, indent=2).encode())

    try:
        before: list[str] = []
        if filesystem.exists(listing):
            before = json.loads(filesystem.cat_file(listing))["files"]
        list_files(sorted({*before, *names}))  # if this is killed, the next copy must know of both
        for name in names:
            place = posixpath.join(folder, name)
            filesystem.put_file(str(predictions.local(name)), f"{place}.partial")
            filesystem.mv(f"{place}.partial", place)
        for name in {*map(posixpath.basename, before)} - set(names):
            if filesystem.exists(posixpath.join(folder, name)):
                filesystem.rm_file(posixpath.join(folder, name))
        list_files(names)
    except store_errors() as error:
        raise _not_copied(target, error, f". They are kept in {predictions.url}") from error


def _not_copied(target: str, error: Exception, kept: str = "") -> UserError:
    reason = getattr(error, "strerror", None) or first_line(error)
    return UserError(
        f"answers cannot be copied to {target} ({reason}); name a folder or URL where this user "
        f"may write{kept}"
    )
