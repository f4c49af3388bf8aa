"""Stage: from text of any origin to a clean, divided corpus.

Parts are read and screened in parallel, duplicates are found across all of them, and every part
then becomes a shard. Each step is kept file by file, so that an interrupted stage resumes.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.cluster import map_tasks
from pipelines.errors import UserError, redacted
from pipelines.stage import StageContext
from pipelines.stages import CORPUS
from pipelines.stages.corpus.cleaning import split_sentences
from pipelines.stages.corpus.extraction import UNREADABLE
from pipelines.stages.corpus.selection import (
    KEY_TYPE,
    NUM_HASHES,
    Signature,
    check_division,
    content_hash,
    copies,
    find_near,
    find_repeated,
    heldout_draws,
    heldout_threshold,
    signature,
    too_few_documents,
)
from pipelines.stages.corpus.settings import CleaningSettings, CorpusSettings
from pipelines.stages.corpus.shards import BATCH_BYTES, SCHEMA, Document, read_batches, record_batch
from pipelines.stages.corpus.sources import (
    MEGABYTE,
    WITHOUT_TEXT,
    InputFile,
    Part,
    RawDocument,
    divide,
    inputs_fingerprint,
    libraries_of,
    read_span,
    resolve,
)
from pipelines.store import Artifact, Built, Draft, Workspace
from pipelines.versions import versions_of

# Where the text lies does not matter. Its bytes or commit and its labels are in the input's name.
_IN_THE_INPUTS: Final = {"paths", "dataset", "revision"}
_TOO_SHORT: Final = "too few characters"  # why documents are dropped
_MANY_SHORT: Final = 0.1  # of the documents of a source
_READ: Final = "documents read"  # counted beside those that are dropped

logger = logging.getLogger(__name__)


def build_corpus(settings: CorpusSettings, context: StageContext) -> Artifact:
    """Read, clean, deduplicate and divide the text that `settings` name.

    Files `train-*.arrow` and `heldout-*.arrow` hold one row per document: `id` (a hash of its
    content), `source`, `sentences`. The statistics hold the input, and what was
    dropped, and why. Raises UserError if a source cannot be read, or its documents cannot be
    divided as `heldout_fraction` asks.
    """
    paths = [path for source in settings.sources for path in getattr(source, "paths", ())]
    resolved = list(map(resolve, settings.sources))
    settings = settings.model_copy(update={"sources": tuple(source for source, _ in resolved)})
    files = [(index, file) for index, (_, of_source) in enumerate(resolved) for file in of_source]
    # Arrow writes and compresses the shards. numpy does not count: its integers, stable sorts and
    # products of 64 bits are defined.
    libraries = {"pyarrow", "unicode"} | libraries_of(file for _, file in files)
    return context.store.get_or_build(
        CORPUS.kind,
        version=CORPUS.version,
        settings=settings.model_dump(mode="json", exclude={"sources": {"__all__": _IN_THE_INPUTS}}),
        inputs={"text": inputs_fingerprint(files), "libraries": versions_of(*libraries)},
        build=partial(_build, settings, files, paths, context),
    )


def _build(
    settings: CorpusSettings,
    files: list[tuple[int, InputFile]],
    paths: list[str],
    context: StageContext,
    draft: Draft,
) -> Built:
    num_bytes = sum(file.num_bytes for _, file in files)
    target = min(max(num_bytes // 64, MEGABYTE), 64 * MEGABYTE)
    if settings.shard_megabytes is not None:
        target = int(settings.shard_megabytes * MEGABYTE)
    parts = divide(files, target)
    work = draft.workspace()
    names = map_tasks(
        partial(_screen, settings, work, target),
        parts,
        num_workers=context.runtime.num_workers,
        on_result=context.watch(CORPUS.name, "parts", 2 * len(parts), step="read"),
    )
    read, too_short, dropped = Counter[int](), Counter[int](), Counter[str]()
    for part in parts:
        figures = work.finished(_listing(part))
        assert figures is not None, "a part that was just screened is finished"
        source = part.spans[0].source
        read[source] += figures["documents"]
        too_short[source] += figures["dropped"].get(_TOO_SHORT, 0)
        dropped.update(figures["dropped"])
    _check_rows(dropped, read.total())
    _warn_of_short(read, too_short, settings.cleaning.min_characters)
    screened = _decide(settings, work, parts, names, dropped)
    threshold = heldout_threshold(
        (_kept_groups(work, file, settings.seed) for file in screened),
        settings.heldout_fraction,
        settings.seed,
    )
    published = map_tasks(
        partial(_publish, work, draft, threshold, settings.seed),
        screened,
        num_workers=context.runtime.num_workers,
        on_result=context.watch(
            CORPUS.name, "parts", 2 * len(screened), done=len(screened), step="write"
        ),
    )
    statistics: dict[str, Any] = {"train": {}, "heldout": {}}
    for of_shard in published:
        _add_up(statistics, of_shard)
    check_division(statistics, settings.heldout_fraction)
    shards = [
        _shard_name(split, file.index)
        for file, of_shard in zip(screened, published, strict=True)
        for split in of_shard
    ]
    statistics = {
        **statistics,
        "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
        "input": {
            "files": len(files),
            "bytes": num_bytes,
            "paths": [redacted(path) for path in paths],
        },
    }
    return Built(shards, statistics)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScreenedFile:
    """A screened file, the number of the shard it becomes, and what of it stays."""

    index: int
    name: str
    weight: float
    is_kept: NDArray[np.bool_]


def _check_rows(dropped: Mapping[str, int], documents: int) -> None:
    """Raise UserError where most rows of tables had no text; warn of files and rows without."""
    for reason, count in dropped.items():
        is_of_rows = reason.startswith(WITHOUT_TEXT)
        if not is_of_rows and reason not in UNREADABLE:
            continue
        if is_of_rows and count > documents:
            raise UserError(
                f"{count:,} {reason}, beside {documents:,} documents; name the column with the "
                "text as text_field (--corpus-column), or leave these rows out"
            )
        logger.warning("left out of the corpus: %s %s", f"{count:,}", reason)


def _warn_of_short(read: Counter[int], too_short: Counter[int], min_characters: int) -> None:
    """Warn of each source many of whose documents are too short, as sentences of Chinese are."""
    for source, count in too_short.items():
        if count and count >= _MANY_SHORT * read[source]:
            logger.warning(
                "left out of the corpus: %s of the %s documents of corpus.sources.%d have fewer "
                "than %d characters; lower corpus.cleaning.min_characters to keep them",
                f"{count:,}", f"{read[source]:,}", source, min_characters,
            )  # fmt: skip


def _screen(settings: CorpusSettings, work: Workspace, shard_bytes: int, part: Part) -> list[str]:
    """Write the part's documents as one file or several of `shard_bytes`; their names."""
    listing = _listing(part)
    done = work.finished(listing)
    if done is not None:
        names: list[str] = done["names"]
        return names
    counts = Counter[str]()
    documents = _documents(settings, part, counts)
    has_signatures = settings.cleaning.near_duplicates
    names = []
    first = next(documents, None)
    while first is not None:
        names.append(f"{listing}-{len(names):04d}.arrow")
        first = _write_file(work, names[-1], first, documents, shard_bytes, has_signatures)
    work.mark(listing, names=names, documents=counts.pop(_READ, 0), dropped=counts)
    return names


def _listing(part: Part) -> str:
    return f"part-{part.index:06d}"


def _documents(
    settings: CorpusSettings, part: Part, counts: Counter[str]
) -> Iterator[tuple[Document, str]]:
    """Documents that pass, each with the hash of its content; all that are read are counted."""
    for span in part.spans:
        for raw in read_span(settings.sources[span.source], span, counts):
            counts[_READ] += 1
            reason = _objection(raw, settings.cleaning)
            if reason is not None:
                counts[reason] += 1
                continue
            content = content_hash(raw.text)
            sentences = raw.sentences or split_sentences(raw.text)
            identifier = content if raw.group is None else f"{raw.group}.{raw.piece:06d}"
            yield Document(identifier, raw.label, list(sentences)), content


def _write_file(
    work: Workspace,
    name: str,
    first: tuple[Document, str],
    rest: Iterator[tuple[Document, str]],
    shard_bytes: int,
    has_signatures: bool,
) -> tuple[Document, str] | None:
    """Fill one file; returns the document that begins the next one."""
    keys: list[str] = []
    signatures: list[Signature] = []
    waiting: list[Document] = []
    following: tuple[Document, str] | None = first
    num_bytes = waiting_bytes = 0
    options = pa.ipc.IpcWriteOptions(compression=None, use_threads=False)
    with (
        work.file(name) as shard,
        pa.OSFile(str(shard.path), "wb") as stream,
        pa.ipc.new_file(stream, SCHEMA, options=options) as writer,
    ):
        while following is not None and num_bytes < shard_bytes:
            document, content = following
            keys.append(content + document.id[:16])
            if has_signatures:
                signatures.append(signature(document.text))
            waiting.append(document)
            size = len(document.text.encode())
            num_bytes += size
            waiting_bytes += size
            following = next(rest, None)
            if waiting_bytes >= BATCH_BYTES or following is None or num_bytes >= shard_bytes:
                writer.write_batch(record_batch(waiting))
                waiting, waiting_bytes = [], 0
    work.write(f"{name}.keys", bytes.fromhex("".join(keys)))
    if signatures:
        work.write(f"{name}.minhash", np.stack(signatures).tobytes())
    return following


def _objection(raw: RawDocument, cleaning: CleaningSettings) -> str | None:
    """Why a document is left out, or None where it may stay."""
    if not raw.text or raw.text.isspace():
        return "empty"
    if len(raw.text) < cleaning.min_characters:
        return _TOO_SHORT
    return None


def _read_keys(work: Workspace, name: str) -> NDArray[np.void]:
    return np.frombuffer(work.read(f"{name}.keys"), dtype=KEY_TYPE)


def _kept_groups(work: Workspace, file: _ScreenedFile, seed: int) -> NDArray[np.uint64]:
    groups = _read_keys(work, file.name)["group"]
    return groups[file.is_kept & (copies(groups, file.weight, seed) > 0)]


def _decide(
    settings: CorpusSettings,
    work: Workspace,
    parts: list[Part],
    names: list[list[str]],
    dropped: Counter[str],
) -> list[_ScreenedFile]:
    """Every screened file with what of it stays, once all are known."""
    flat = [(part, name) for part, of_part in zip(parts, names, strict=True) for name in of_part]
    if not flat:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise too_few_documents(0, f" (dropped: {reasons})" if reasons else "")
    counts = [len(_read_keys(work, name)) for _, name in flat]
    is_repeated = [np.zeros(count, dtype=np.bool_) for count in counts]
    if settings.cleaning.exact_duplicates:
        is_repeated = find_repeated(lambda index: _read_keys(work, flat[index][1]), counts)
        dropped["duplicate"] += sum(int(flags.sum()) for flags in is_repeated)
    is_near = [np.zeros(count, dtype=np.bool_) for count in counts]
    if settings.cleaning.near_duplicates:
        is_near = _find_near(settings, work, [name for _, name in flat], is_repeated)
        dropped["near duplicate"] += sum(int(flags.sum()) for flags in is_near)
    return [
        _ScreenedFile(
            index=index,
            name=name,
            weight=settings.sources[part.spans[0].source].weight,
            is_kept=~(is_repeated[index] | is_near[index]),
        )
        for index, (part, name) in enumerate(flat)
    ]


def _find_near(
    settings: CorpusSettings, work: Workspace, names: list[str], is_dropped: list[NDArray[np.bool_]]
) -> list[NDArray[np.bool_]]:
    with ExitStack() as stack:
        paths = [stack.enter_context(work.local(f"{name}.minhash")) for name in names]

        def load(index: int) -> NDArray[np.uint32]:
            return np.memmap(paths[index], np.uint32, "r").reshape(-1, NUM_HASHES)

        return find_near(load, is_dropped, settings.cleaning.near_duplicate_similarity)


def _publish(
    work: Workspace, draft: Draft, heldout_threshold: float, seed: int, file: _ScreenedFile
) -> dict[str, Any]:
    """Write `train-` and `heldout-` shards of a screened file; their statistics by split."""
    marker = f"published-{file.index:06d}"
    done = work.finished(marker)
    if done is not None and all(
        draft.finished(_shard_name(split, file.index)) is not None for split in done
    ):
        return done
    groups = _read_keys(work, file.name)["group"].astype(np.uint64)
    is_heldout = heldout_draws(groups, seed) <= heldout_threshold
    times = copies(groups, file.weight, seed) * file.is_kept
    with work.local(file.name) as path:
        statistics = {
            split: _write(draft, _shard_name(split, file.index), path, repeats)
            for split, repeats in (
                ("train", np.where(is_heldout, 0, times)),
                ("heldout", np.where(is_heldout, np.minimum(times, 1), 0)),
            )
            if repeats.any()
        }
    work.mark(marker, **statistics)
    return statistics


def _write(draft: Draft, name: str, screened: Path, repeats: NDArray[np.int64]) -> dict[str, Any]:
    """Write each document `repeats` times; returns the statistics."""
    statistics: dict[str, Any] = {}
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with (
        draft.file(name) as shard,
        pa.OSFile(str(shard.path), "wb") as stream,
        pa.ipc.new_file(stream, SCHEMA, options=options) as writer,
    ):
        first = 0
        for batch in read_batches(screened):
            rows = np.arange(batch.num_rows)
            chosen = np.repeat(rows, repeats[first : first + batch.num_rows])
            first += batch.num_rows
            if chosen.size:
                selected = batch.take(pa.array(chosen))
                writer.write_batch(selected)
                _add_up(statistics, _describe(selected))
        shard.figures.update(documents=statistics["documents"], words=statistics["words"])
    return statistics


def _shard_name(split: str, index: int) -> str:
    return f"{split}-{index:06d}.arrow"


def _describe(batch: pa.RecordBatch) -> dict[str, int]:
    """Counts of some documents: words lie between white space, bytes are those of UTF-8."""
    sentences = batch.column("sentences").flatten()
    spaces = pc.sum(pc.count_substring(sentences, " ")).as_py() or 0
    return {
        "documents": batch.num_rows,
        "sentences": len(sentences),
        "words": spaces + len(sentences),
        "bytes": pc.sum(pc.binary_length(sentences)).as_py() or 0,
    }


def _add_up(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the statistics `more` to `total` in place."""
    for key, value in more.items():
        if isinstance(value, dict):
            _add_up(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value
