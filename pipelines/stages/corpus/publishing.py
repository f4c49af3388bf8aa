"""From a screened part to the corpus's own shards: without duplicates, divided, counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.artifacts import Draft, Workspace
from pipelines.stages.corpus.division import copies, heldout_draws
from pipelines.stages.corpus.screening import read_keys
from pipelines.stages.corpus.shards import SCHEMA, read_batches

NUM_SAMPLES: Final = 10
_SAMPLE_CHARACTERS: Final = 200
_COUNTS: Final = ("documents", "sentences", "words", "bytes")


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
    """Counts of some documents, in all and by source, their lengths and a few samples.

    Words lie between white space; bytes are those of the sentences in UTF-8.
    """
    sentences = batch.column("sentences")
    flat = sentences.flatten()
    num_sentences = pc.list_value_length(sentences).to_numpy(zero_copy_only=False)
    document = np.repeat(np.arange(batch.num_rows), num_sentences)
    words = np.bincount(
        document,
        weights=pc.count_substring(flat, " ").to_numpy(zero_copy_only=False) + 1.0,
        minlength=batch.num_rows,
    )
    num_bytes = np.bincount(
        document,
        weights=pc.binary_length(flat).to_numpy(zero_copy_only=False),
        minlength=batch.num_rows,
    )
    counts = np.stack([np.ones(batch.num_rows), num_sentences, words, num_bytes])
    encoded = batch.column("source").dictionary_encode()
    source = encoded.indices.to_numpy(zero_copy_only=False)
    by_source = {
        name.as_py(): _named(counts[:, source == index].sum(axis=1))
        for index, name in enumerate(encoded.dictionary)
    }
    histogram = np.bincount(np.log2(np.maximum(words, 1)).astype(np.int64))
    return {
        **_named(counts.sum(axis=1)),
        "by_source": by_source,
        # Keys are the lower bounds in words; each bin reaches to the next power of two.
        "documents_by_words": {
            str(2**power): int(count) for power, count in enumerate(histogram) if count
        },
        "samples": _samples(batch),
    }


def add_up(total: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the statistics `more` to `total` in place."""
    for key, value in more.items():
        if key == "samples":
            total[key] = sorted([*total.get(key, []), *value])[:NUM_SAMPLES]
        elif isinstance(value, dict):
            add_up(total.setdefault(key, {}), value)
        else:
            total[key] = total.get(key, 0) + value


def _named(counts: np.ndarray) -> dict[str, int]:
    return {name: int(count) for name, count in zip(_COUNTS, counts, strict=True)}


def _samples(batch: pa.RecordBatch) -> list[list[str]]:
    """Those with the lowest ids: ids are hashes, so they are random, and the same in any run."""
    lowest = pc.select_k_unstable(batch.column("id"), NUM_SAMPLES, [("", "ascending")])
    rows = batch.select(["id", "source", "sentences"]).take(lowest).to_pylist()
    return [
        [row["id"], row["source"], " ".join(row["sentences"])[:_SAMPLE_CHARACTERS]] for row in rows
    ]
