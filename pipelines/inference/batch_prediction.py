"""Answers to whole files, shard by shard, by one version of a registered model."""

import json
import posixpath
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from bert_core.inference.tables import question_of
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.config.errors import UserError
from pipelines.config.redaction import Uri
from pipelines.config.settings import Settings
from pipelines.config.versions import versions_of
from pipelines.inference.answers import answers_to, asked_of, check_gaps
from pipelines.inference.tables import FileTable, format_of, read_table
from pipelines.io.files import expand, size_and_digest
from pipelines.registry.finding import find_model
from pipelines.registry.opening import OpenedModel, open_model
from pipelines.registry.tags import digest_of
from pipelines.stage import Progress, StageContext
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

KIND = "predictions"
_VERSION = 3
_ROW = "row"  # column of the row's number in its file, from 0
# Readers of a folder of Parquet files leave names with an underscore out.
LISTING: Final = "_predictions.json"


class BatchSettings(Settings):
    """Which model answers the rows of which files."""

    model: str = Field(
        default="bertsmith-classifier@champion",
        min_length=1,
        description="The model: name@alias, name/version or a name. The version that this names "
        "when a run starts answers all of its rows.",
    )
    files: tuple[Uri, ...] = Field(
        default=(),
        description="Files with a text a line, or .csv, .tsv, .jsonl or .parquet tables: paths, "
        "globs, folders or URLs such as s3://bucket/texts/*.parquet.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Under which name the files have what the model is asked about, such as "
        '{"text": "review"}; what is not named has its own name.',
    )
    rows_per_shard: int = Field(
        default=10_000, ge=1, description="Rows of one file of answers; a killed run resumes there."
    )
    out: Uri = Field(
        default="",
        description="Folder or URL that the answers are copied to, too; empty: they stay in the "
        "store.",
    )


def build_predictions(settings: BatchSettings, tracker: Tracker, context: StageContext) -> Artifact:
    """The rows of all files with their answers, as Parquet shards of one artifact of the store.

    What makes them is the version that the model's name stands for now, by its bytes, and the
    bytes of the files: asked again, what is there is looked up, and what was killed goes on at the
    shard. Raises UserError for a model or a file that cannot be read, and for rows that it cannot
    answer.
    """
    if not settings.files:
        raise UserError("batch prediction needs files to answer; name them with files")
    version = find_model(tracker.client(), settings.model)
    reference = f"{version.name}/{version.version}"
    paths = [path for each in settings.files for path in expand(each)]
    digests = {f"file {n}": size_and_digest(path)[1] for n, path in enumerate(paths)}
    formats = {f"format {n}": format_of(path) for n, path in enumerate(paths)}
    predictions = context.store.get_or_build(
        KIND,
        version=_VERSION,
        settings={"columns": settings.columns, "rows_per_shard": settings.rows_per_shard},
        inputs={
            "model": version.tags.get(FINGERPRINT_TAG, ""),
            "package": digest_of(version),
            "version": reference,
            "libraries": versions_of("pyarrow", "tokenizers", "torch"),
            **digests,
            **formats,
        },
        build=partial(_predict, settings, reference, paths, tracker, context),
    )
    if settings.out:
        _copy_answers(predictions, settings.out)
    return predictions


def _predict(
    settings: BatchSettings,
    reference: str,
    paths: Sequence[str],
    tracker: Tracker,
    context: StageContext,
    draft: Draft,
) -> Built:
    opened = open_model(tracker, reference)
    names, num_rows, reused = [], 0, 0
    for number, path in enumerate(paths):
        for shard, rows in enumerate(_shards(settings, path, opened)):
            name = f"part-{number:05}-{shard:05}.parquet"
            if draft.finished(name) is None:
                _write(draft, name, rows, opened, reference)
            else:
                reused += 1
            names.append(name)
            num_rows += len(rows.numbers)
        note = f"{path}: {num_rows:,} rows so far" + (f", {reused} shards found" if reused else "")
        context.observe(
            Progress(stage=KIND, done=number + 1, total=len(paths), unit="files", note=note)
        )
    if not names:
        raise UserError(f"there is no row to answer in {len(paths)} files")
    return Built(names, {"rows": num_rows, "files": len(paths), "model": reference})


def _shards(settings: BatchSettings, path: str, opened: OpenedModel) -> Iterator[FileTable]:
    """The rows of each shard of a file, with their numbers in it."""
    question = question_of(opened[0])
    renamed = {name: theirs for name, theirs in settings.columns.items() if theirs}
    whole = read_table(path)
    table = asked_of(whole, renamed, question).columns
    missing = question.missing(table)
    if missing:
        raise UserError(
            f"{path} has no column {' and no column '.join(missing)}; say with columns what it "
            "calls them"
        )
    check_gaps(opened[0], table, whole.numbers, path)
    for first in range(0, len(whole.numbers), settings.rows_per_shard):
        shard = slice(first, first + settings.rows_per_shard)
        columns = {name: values[shard] for name, values in table.items()}
        yield FileTable(path, whole.numbers[shard], columns)


def _write(draft: Draft, name: str, rows: FileTable, opened: OpenedModel, reference: str) -> None:
    whole: dict[str, Any] = {
        _ROW: rows.numbers,
        **rows.columns,
        **answers_to(*opened, rows.columns),
        "model": [reference] * len(rows.numbers),
    }
    with draft.file(name) as target:
        pq.write_table(pa.table(whole), target.path)
        target.figures["rows"] = len(rows.numbers)


def _copy_answers(predictions: Artifact, target: str) -> None:
    """Every shard under its name in `target`; each appears whole there.

    Shards that an earlier prediction wrote there and this one has not are removed at the end, by
    the list that lies beside them; nothing else is touched. Raises UserError where nobody can write
    there.
    """
    filesystem, folder = fsspec.url_to_fs(target)
    listing, names = posixpath.join(folder, LISTING), list(predictions.names())
    try:
        filesystem.makedirs(folder, exist_ok=True)
        before = _listed(filesystem, listing)
        # Whoever goes on after a kill must know of both.
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
    except OSError as error:
        raise UserError(
            f"the answers cannot be copied to {target} ({error.strerror or error}); name a folder "
            f"or URL where this user may write. They are kept in {predictions.url}"
        ) from error


def _listed(filesystem: fsspec.AbstractFileSystem, listing: str) -> list[str]:
    if not filesystem.exists(listing):
        return []
    try:
        names = json.loads(filesystem.cat_file(listing))["files"]
    except (ValueError, KeyError, TypeError):
        return []  # somebody else's file
    return [posixpath.basename(str(name)) for name in names]


def _list(
    filesystem: fsspec.AbstractFileSystem, listing: str, predictions: Artifact, names: list[str]
) -> None:
    listed = {"predictions": predictions.fingerprint, "files": names}
    filesystem.pipe_file(listing, json.dumps(listed, indent=2).encode())
