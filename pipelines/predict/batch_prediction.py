"""Answers to whole files, shard by shard, by one version of a registered model."""

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Annotated, Any, Final, NamedTuple, Self

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import Field, model_validator

from bert_core.inference.tables import Question, is_blank, is_nothing, question_of
from pipelines.cluster import map_tasks
from pipelines.errors import Uri, UserError, first_line
from pipelines.io.files import expand, format_suffix, size_and_digest
from pipelines.io.tables import TableSettings
from pipelines.predict.answers import answers_to, asked_of, check_rows, holds_lists
from pipelines.predict.tables import Table, parsing_of, read_shards
from pipelines.registry.find import REGISTERED, digest_of, find_model, reference_to
from pipelines.registry.package import Confidence, OpenedModel, open_model
from pipelines.stage import Progress, StageContext
from pipelines.store import Artifact, Built, Draft
from pipelines.store.access import store_errors
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.versions import versions_of

KIND: Final = "predictions"
VERSION: Final = 9  # of the answers to the same rows by the same model
_ROW, _MODEL = "row", "model"  # columns of the row's number in its file, from 0, and of the version
# By what a question says of a column: of a single shard the values do not tell it.
_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(),
    list[str]: pa.list_(pa.string()), list[float]: pa.list_(pa.float64()),
    list[dict]: pa.list_(
        pa.struct({"start": pa.int64(), "end": pa.int64(), "label": pa.string()})
    ),
}  # fmt: skip


Share = Annotated[float, Field(ge=0, lt=1)]


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
        description="Files with a text a line (.txt), or .csv, .tsv, .jsonl or .parquet "
        "tables: paths, globs, folders or URLs such as s3://bucket/texts/*.parquet.",
    )
    text_column: str | None = Field(
        default=None, description="Column with the text, or the question, if it has another name."
    )
    second_text_column: str | None = Field(
        default=None, description="Column with a pair's second text, or the context."
    )
    min_confidence: Share = Field(
        default=0.0,
        description="Classes and choices with a lower probability are left empty; the column "
        "`guess` has all of them.",
    )
    min_precision: Share = Field(
        default=0.0,
        description="In place of min_confidence: the share of answers that should be right. The "
        "model knows from which probability on that was so on its held-out items.",
    )
    rows_per_shard: int = Field(
        default=5_000, ge=1, description="Rows of one file of answers; a killed run resumes there."
    )
    out: Uri = Field(
        default="",
        description="Folder or URL in which the answers get a folder of their own; empty: they "
        "stay in the store.",
    )

    @model_validator(mode="after")
    def _one_says_how_sure(self) -> Self:
        if self.min_confidence and self.min_precision:
            raise ValueError("give min_confidence or min_precision, not both")
        return self


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
    named = [_tables(each) for each in settings.files]
    if settings.out:
        _check_target(settings.out, settings.files)
    for tables in named:
        _check_suffixes(tables)
    paths = list(dict.fromkeys(chain(*named)))  # a file that two patterns name is answered once
    files = [(path, size_and_digest(path)[1]) for path in paths]
    predictions = context.store.get_or_build(
        KIND,
        version=VERSION,
        settings=settings.model_dump(exclude={"model", "files", "out"}),
        inputs={
            "model": version.tags.get(FINGERPRINT_TAG, ""),
            "package": digest_of(version),
            "version": reference,
            "libraries": versions_of("pyarrow", "tokenizers", "torch"),
            **{f"file {n}": digest for n, (_, digest) in enumerate(files)},
            **{f"format {n}": parsing_of(path, settings) for n, path in enumerate(paths)},
        },
        build=partial(_predict, settings, reference, files, tracker, context),
    )
    if settings.out:
        copy_answers(predictions, settings.out)
    return predictions


def _tables(named: str) -> list[str]:
    """The files to answer of a path, a folder or a glob.

    Without the marker files of a writer, such as Spark's `_SUCCESS`.
    """
    files = expand(named)
    are_markers = [
        PurePosixPath(path).name.startswith("_") and not format_suffix(path) for path in files
    ]
    tables = [path for path, is_marker in zip(files, are_markers, strict=True) if not is_marker]
    return tables or files


def _check_suffixes(tables: Sequence[str]) -> None:
    """Raise UserError for a file without a suffix among tables: it may be none."""
    suffixes = {path: format_suffix(path) for path in tables}
    for path, suffix in suffixes.items():
        if not suffix and any(suffixes.values()):
            raise UserError(
                f"{path} has no suffix that says how to read it; give it one, such as .txt for a "
                "text a line, name it alone, or move it elsewhere"
            )


def _predict(
    settings: BatchSettings,
    reference: str,
    files: Sequence[tuple[str, str]],
    tracker: Tracker,
    context: StageContext,
    draft: Draft,
) -> Built:
    confidence = Confidence(settings.min_confidence, settings.min_precision)
    opened = open_model(tracker, f"{REGISTERED}{reference}", confidence)
    question = question_of(opened[0])
    asked = columns_asked(question, settings, [path for path, _ in files])
    names: list[str] = []
    num_rows = 0

    def tell(more: int) -> None:
        nonlocal num_rows
        num_rows += more
        context.observe(Progress(stage=KIND, done=num_rows, total=0, unit="rows"))

    def unanswered() -> Iterator[Shard]:
        """The shards that no earlier run has answered."""
        for number, (path, digest) in enumerate(files):
            for index, shard in enumerate(asked_shards(path, settings, opened)):
                names.append(_name_of(number, index))
                shard = shard._replace(name=names[-1])
                if (draft.finished(shard.name) or {}).get("digest") == shard.digest:
                    tell(len(shard.numbers))
                else:
                    yield shard
            fsspec.url_to_fs(path)[0].invalidate_cache()  # of what a store said before
            if size_and_digest(path)[1] != digest:
                raise UserError(
                    f"{path} changed during the run; wait until nothing writes it, and run again"
                )

    map_tasks(
        partial(write_answers, draft, opened, reference, asked),
        unanswered(),
        num_workers=context.runtime.num_workers,
        on_result=lambda _, count: tell(count),
    )
    if not num_rows:
        raise UserError(f"there is no row to answer in {len(files)} files")
    return Built(names, {"rows": num_rows, "files": len(files), "model": reference})


def _name_of(file: int, shard: int) -> str:
    return f"part-{file:05}-{shard:05}.parquet"


def columns_asked(question: Question, settings: BatchSettings, paths: Sequence[str]) -> list[str]:
    """The columns of any file that the question has: each shard of answers has all of them.

    Raises UserError where a file lacks one that is needed, where some files have pairs and others
    texts, and where the answers would have two columns of one name.
    """
    asked = dict[str, None]()
    for path in paths:
        first = next(read_shards(path, 1, settings))
        if not first.columns:  # an empty part, as Spark writes them
            continue
        names = asked_of(first, question, settings.text_column, settings.second_text_column).columns
        if asked and question.is_of_pairs and names.keys() != asked.keys():
            raise UserError(
                f"some files have a second text and others have none ({path}): pairs are answered "
                "with a number and texts with a vector; answer them in two runs"
            )
        asked.update(dict.fromkeys(names))
    if question.in_place:
        asked |= dict.fromkeys((question.columns[0], question.in_place))
    twice = {_ROW, _MODEL} & {*asked, *question.answers} | {*question.columns} & {*question.answers}
    if twice:
        raise UserError(
            f"the answers would have two columns {min(twice)!r}; answer the files with `predict "
            "--file`, which gives one of them another name"
        )
    return list(asked)


def asked_shards(path: str, settings: BatchSettings, opened: OpenedModel) -> Iterator[Shard]:
    """The rows of a file with the columns that a model is asked about, so many at a time.

    Raises UserError for a row without a text, and for a cell that is none.
    """
    question = question_of(opened[0])
    for rows in read_shards(path, settings.rows_per_shard, settings):
        if rows.numbers:
            asked = asked_of(rows, question, settings.text_column, settings.second_text_column)
            check_rows(opened[0], asked.columns, rows.numbers, path)
            texts = {
                name: [_as_text(cell, name) for cell in cells]
                for name, cells in asked.columns.items()
            }
            yield Shard("", rows.numbers, texts)


def _as_text(cell: Any, name: str) -> Any:
    """The cell as a text, or as a list of them; None where it holds nothing.

    An empty context is one: it has no answer.
    """
    if is_nothing(cell) or (is_blank(cell) and name != "context"):
        return None
    return [str(each) for each in cell] if isinstance(cell, list) else str(cell)


def write_answers(
    draft: Draft, opened: OpenedModel, reference: str, asked: Sequence[str], shard: Shard
) -> int:
    """Answer the rows of a shard and write them with their answers; returns how many they are.

    All shards have the same columns of the same types: those that are `asked` about in any of them
    are empty where a shard lacks them. One thread computes, because more of them round in another
    order: other bytes.
    """
    torch.set_num_threads(1)
    model, tokenizer = opened
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


def place_of(predictions: Artifact, out: str) -> str:
    """Where people find the answers: in a folder of their own, which no others are written to."""
    return posixpath.join(out, predictions.fingerprint[:16]) if out else predictions.url


def _check_target(target: str, files: Sequence[str]) -> None:
    """Raise UserError where answers cannot be written to `target`, or would be asked next time."""
    unusable: tuple[type[Exception], ...] = (*store_errors(), ImportError, ValueError)
    try:
        filesystem, folder = fsspec.url_to_fs(target)
        for each in files:
            if _names_answers(each, folder):
                raise UserError(
                    f"answers in {target} would be asked at the next run, as all of {each} is; "
                    "name a folder beside it"
                )
        filesystem.makedirs(folder, exist_ok=True)
    except UserError:
        raise
    except unusable as error:
        raise _not_copied(target, error) from error


def _names_answers(files: str, folder: str) -> bool:
    """Whether the path, folder or pattern `files` names what is answered in `folder`."""
    source, plain = fsspec.url_to_fs(files)
    above, is_recursive, _ = plain.partition("**")
    if f"{folder}/".startswith(f"{above.rstrip('/')}/"):
        return bool(is_recursive) or source.isdir(plain)
    # In folders that are named by digits of a fingerprint, which is not known yet.
    answers = (
        f"/{folder.lstrip('/')}/{digit * 16}/{_name_of(0, 0)}" for digit in "0123456789abcdef"
    )
    return any(PurePosixPath(each).match(f"/{plain.lstrip('/')}") for each in answers)


def copy_answers(predictions: Artifact, target: str) -> None:
    """Copy every shard to its folder in `target`; each appears whole there."""
    place = place_of(predictions, target)
    try:
        filesystem, folder = fsspec.url_to_fs(place)
        filesystem.makedirs(folder, exist_ok=True)
        for name in predictions.names():
            # Two users may copy the same answers. What begins with a dot no reader takes for one.
            draft = posixpath.join(folder, f".{name}.{token_hex(8)}.partial")
            try:
                filesystem.put_file(str(predictions.local(name)), draft)
                filesystem.mv(draft, posixpath.join(folder, name))
            except BaseException:
                with suppress(*store_errors()):
                    filesystem.rm_file(draft)
                raise
    except store_errors() as error:
        raise _not_copied(place, error, f". They are kept in {predictions.url}") from error


def _not_copied(target: str, error: Exception, kept: str = "") -> UserError:
    return UserError(
        f"answers cannot be copied to {target} ({first_line(error)}); name a folder or URL where "
        f"this user may write{kept}"
    )
