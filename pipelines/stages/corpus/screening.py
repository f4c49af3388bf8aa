"""From a part of the input to shards: read, mended and screened; then, of what stays, published.

What is screened are working files: duplicates are removed once all parts are known.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.io.text import Tally
from pipelines.stages.corpus.cleaning import language_of, split_sentences
from pipelines.stages.corpus.selection import (
    Signature,
    content_hash,
    copies,
    document_id,
    heldout_draws,
    signature,
)
from pipelines.stages.corpus.settings import CleaningSettings, CorpusSettings
from pipelines.stages.corpus.shards import SCHEMA, Document, ShardWriter, read_batches
from pipelines.stages.corpus.sources import read_span
from pipelines.stages.corpus.sources.inputs import Part, RawDocument
from pipelines.store import Draft, Workspace

_COUNTS: Final = ("documents", "sentences", "words", "bytes")
# A row's content hash, in two halves, and the beginning of its group's.
KEY_TYPE: Final = np.dtype([("high", ">u8"), ("low", ">u8"), ("group", ">u8")])


def screen(settings: CorpusSettings, work: Workspace, shard_bytes: int, part: Part) -> list[str]:
    """Write the part's documents as one file or several of `shard_bytes`; their names."""
    listing = f"part-{part.index:06d}"
    done = work.finished(listing)
    if done is not None:
        names: list[str] = done["names"]
        return names
    tally = Tally()
    documents = _documents(settings, part, tally)
    has_signatures = settings.cleaning.near_duplicates
    names = []
    first = next(documents, None)
    while first is not None:
        names.append(f"{listing}-{len(names):04d}.arrow")
        first = _write_file(work, names[-1], first, documents, shard_bytes, has_signatures)
    work.mark(listing, names=names, tally=tally.to_json())
    return names


def _documents(
    settings: CorpusSettings, part: Part, tally: Tally
) -> Iterator[tuple[Document, str]]:
    """Documents that pass, each with the hash of its content."""
    for span in part.spans:
        for raw in read_span(settings.sources[span.source], span, tally):
            reason = objection(raw, settings.cleaning)
            if reason is not None:
                tally.dropped[reason] += 1
                continue
            content = content_hash(raw.text)
            sentences = raw.sentences or split_sentences(raw.text)
            identifier = document_id(content, raw.group, raw.piece)
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
    following: tuple[Document, str] | None = first
    with work.file(name) as shard:
        writer = ShardWriter(shard.path, compression=None)
        while following is not None and writer.num_bytes < shard_bytes:
            document, content = following
            writer.write(document, len(document.text.encode()))
            keys.append(content + document.id[:16])
            if has_signatures:
                signatures.append(signature(document.text))
            following = next(rest, None)
        writer.close()
    work.write(keys_of(name), bytes.fromhex("".join(keys)))
    if signatures:
        work.write(signatures_of(name), np.stack(signatures).tobytes())
    return following


def objection(raw: RawDocument, cleaning: CleaningSettings) -> str | None:
    """Why a document is left out, or None where it may stay."""
    if not raw.text or raw.text.isspace():
        return "empty"
    if len(raw.text) < cleaning.min_characters:
        return "too few characters"
    if cleaning.languages and language_of(raw.text) not in cleaning.languages:
        return "other language"
    return None


def keys_of(name: str) -> str:
    """The file beside the documents that holds their keys, `KEY_TYPE` each."""
    return f"{name}.keys"


def signatures_of(name: str) -> str:
    """The file beside the documents that holds their signatures, where near duplicates count."""
    return f"{name}.minhash"


def read_keys(work: Workspace, name: str) -> NDArray[np.void]:
    """Keys of the documents in the file `name`, in order."""
    return np.frombuffer(work.read(keys_of(name)), dtype=KEY_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedFile:
    """A screened file, the number of the shard it becomes, and what of it stays."""

    index: int
    name: str
    weight: float
    is_kept: NDArray[np.bool_]


def publish(
    work: Workspace, draft: Draft, heldout_threshold: float, seed: int, file: ScreenedFile
) -> dict[str, Any]:
    """Write `train-` and `heldout-` shards of a screened file; their statistics by split."""
    marker = f"published-{file.index:06d}"
    done = work.finished(marker)
    if done is not None and all(
        draft.finished(shard_name(split, file.index)) is not None for split in done
    ):
        return done
    groups = read_keys(work, file.name)["group"].astype(np.uint64)
    is_heldout = heldout_draws(groups, seed) <= heldout_threshold
    times = copies(groups, file.weight, seed) * file.is_kept
    with work.local(file.name) as path:
        statistics = {
            split: _write(draft, shard_name(split, file.index), path, repeats)
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
                add_up(statistics, describe(selected))
        shard.figures.update(documents=statistics["documents"], words=statistics["words"])
    return statistics


def shard_name(split: str, index: int) -> str:
    return f"{split}-{index:06d}.arrow"


def describe(batch: pa.RecordBatch) -> dict[str, Any]:
    """Counts of some documents, in all and by source.

    Words lie between white space; bytes are those of the sentences in UTF-8.
    """
    sentences = batch.column("sentences")
    flat = sentences.flatten()
    num_sentences = pc.list_value_length(sentences).to_numpy(zero_copy_only=False)
    document = np.repeat(np.arange(batch.num_rows), num_sentences)
    words, num_bytes = (
        np.bincount(document, each.to_numpy(zero_copy_only=False), minlength=batch.num_rows)
        for each in (pc.add(pc.count_substring(flat, " "), 1), pc.binary_length(flat))
    )
    counts = np.stack([np.ones(batch.num_rows), num_sentences, words, num_bytes])
    encoded = batch.column("source").dictionary_encode()
    source = encoded.indices.to_numpy(zero_copy_only=False)
    by_source = {
        name.as_py(): _named(counts[:, source == index].sum(axis=1))
        for index, name in enumerate(encoded.dictionary)
    }
    return {**_named(counts.sum(axis=1)), "by_source": by_source}


def add_up(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the statistics `more` to `total` in place."""
    for key, value in more.items():
        if isinstance(value, dict):
            add_up(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


def _named(counts: NDArray[np.float64]) -> dict[str, int]:
    return {name: int(count) for name, count in zip(_COUNTS, counts, strict=True)}
