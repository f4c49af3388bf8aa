"""What a corpus holds, in numbers: the statistics of its manifest."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NUM_SAMPLES: Final = 10
_SAMPLE_CHARACTERS: Final = 200
_COUNTS: Final = ("documents", "sentences", "words", "bytes")


def describe(batch: pa.RecordBatch) -> dict[str, Any]:
    """Counts of some documents, in all and by source, their lengths and a few samples.

    Words stand between white space; bytes are those of the sentences in UTF-8.
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
