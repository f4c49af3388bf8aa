"""Answers to whole files, shard by shard, by one version of a registered model."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from threading import Event

import fsspec
from pydantic import Field

from bert_core.inference.tables import question_of
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.access import store_errors
from pipelines.cluster.mapping import Shared, map_tasks
from pipelines.config.errors import Uri, UserError
from pipelines.config.settings import Settings
from pipelines.config.versions import versions_of
from pipelines.inference.shards import (
    LISTING,
    Shard,
    asked_shards,
    copy_answers,
    made_folder,
    write_answers,
)
from pipelines.inference.tables import FileTable, format_of
from pipelines.io.files import expand, size_and_digest
from pipelines.registry.find import digest_of, find_model, reference_to
from pipelines.registry.opening import open_model
from pipelines.stage import Observer, Progress, StageContext
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

logger = logging.getLogger(__name__)

KIND = "predictions"
_VERSION = 5


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
    found = (path for each in settings.files for path in expand(each))
    # A folder of answers lists its files in one that holds no rows.
    paths = [path for path in found if not path.endswith(f"/{LISTING}")]
    if settings.out:
        made_folder(settings.out)  # a mistake ends the run here, not after hours of answers
    files = [(path, size_and_digest(path)[1]) for path in paths]
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
            **{f"file {n}": digest for n, (_, digest) in enumerate(files)},
            **formats,
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
    question = question_of(opened[0])
    shards = partial(
        asked_shards, columns=settings.columns, question=question, model=opened[0],
        rows_per_shard=settings.rows_per_shard,
    )  # fmt: skip
    paths = [path for path, _ in files]
    # A mistake in the last row ends the run here, not after hours of answers.
    given_up = Event()
    with ThreadPoolExecutor(1, "reading") as thread:
        reading = thread.submit(
            _read_through, map(shards, paths), question.is_of_pairs, given_up, context.observe
        )
        try:
            # Starts Ray meanwhile, on this thread: Ray ends with the thread that starts it.
            shared = Shared(opened)
            total, asked = reading.result()
        finally:
            given_up.set()
    if not total:
        raise UserError(f"there is no row to answer in {len(paths)} files")
    names: list[str] = []
    follow = _Following(total, context.observe)
    map_tasks(
        partial(write_answers, draft, shared, reference, asked),
        _unanswered(files, shards, draft, names, follow),
        num_workers=context.runtime.num_workers,
        on_result=follow.answered,
    )
    return Built(names, {"rows": total, "files": len(paths), "model": reference})


def _read_through(
    files: Iterable[Iterator[FileTable]], is_of_pairs: bool, given_up: Event, observe: Observer
) -> tuple[int, list[str]]:
    """How many rows all files have, and what they are asked about; each row is checked.

    Ends early once `given_up` is set.
    """
    num_rows, asked = 0, dict[str, None]()
    for rows in chain.from_iterable(files):
        if given_up.is_set():
            break
        num_rows += len(rows.numbers)
        others = asked.keys() ^ rows.columns.keys()
        if num_rows > len(rows.numbers) and is_of_pairs and others:
            raise UserError(
                f"some files have a column {', '.join(sorted(others))} and others have none "
                f"({rows.path}): pairs are answered with a number and texts with a vector; answer "
                "them in two runs"
            )
        asked.update(dict.fromkeys(rows.columns))
        observe(Progress(stage="reading", done=num_rows, total=0, unit="rows"))
    return num_rows, list(asked)


def _unanswered(
    files: Sequence[tuple[str, str]],
    shards: Callable[[str], Iterator[FileTable]],
    draft: Draft,
    names: list[str],
    follow: "_Following",
) -> Iterator[Shard]:
    """The shards that no earlier run has answered; the names of all are added to `names`.

    Raises UserError for a file that has no longer the bytes of its digest, once it is read.
    """
    for number, (path, digest) in enumerate(files):
        for index, rows in enumerate(shards(path)):
            names.append(f"part-{number:05}-{index:05}.parquet")
            shard = Shard(names[-1], rows.numbers, rows.columns)
            found = draft.finished(shard.name) or {}
            if found.get("digest") == shard.digest:
                follow.found(len(rows.numbers))
            else:
                yield shard
        if _digest_now(path, otherwise=digest) != digest:
            raise UserError(
                f"{path} changed during the run; wait until nothing writes it, and run again"
            )


def _digest_now(path: str, otherwise: str) -> str:
    """The digest of its bytes; `otherwise`, with a warning, if it can no longer be read."""
    reason: Exception
    try:
        fsspec.url_to_fs(path)[0].invalidate_cache()  # of what the store said before
        return size_and_digest(path)[1]
    except UserError as error:
        reason = error
    except store_errors() as error:  # it was moved away, or its address has expired
        reason = error
    logger.warning("%s was not checked for changes after it was read: %s", path, reason)
    return otherwise


class _Following:
    """Reports how many rows are answered, how fast, and the time left."""

    def __init__(self, total: int, observe: Observer) -> None:
        self.total = total
        self._observe = observe
        self._num_found = self._num_answered = 0
        self._started = time.monotonic()

    def found(self, num_rows: int) -> None:
        """An earlier run has answered these rows."""
        self._num_found += num_rows

    def answered(self, _: int, num_rows: int) -> None:
        """These rows are answered now."""
        is_first = not self._num_answered
        self._num_answered += num_rows
        rate = self._num_answered / max(time.monotonic() - self._started, 1e-9)
        done = self._num_found + self._num_answered
        self._observe(
            Progress(
                stage=KIND,
                done=done,
                total=self.total,
                unit="rows",
                figures={"rate": f"{rate:,.0f} rows/s"},
                note=f"resumed: {self._num_found:,} rows were answered before"
                if is_first and self._num_found
                else "",
                seconds_left=(self.total - done) / rate,
            )
        )
