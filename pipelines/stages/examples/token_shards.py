"""Token shards: a corpus shard's documents as token ids, the input of every objective.

These are working files of the examples stage: read memory-mapped, never published.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipelines.stages.corpus.selection import group_of
from pipelines.stages.corpus.shards import read_batches
from pipelines.stages.vocabulary.encoding import SentenceEncoder

LARGEST_SMALL_ID: Final = 2**16 - 1


def id_type(vocab_size: int) -> pa.DataType:
    """uint16 where it holds every token id, else uint32."""
    return pa.uint16() if vocab_size - 1 <= LARGEST_SMALL_ID else pa.uint32()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenShard:
    """Ids of all sentences in a row, and where sentences and documents begin."""

    ids: NDArray[np.unsignedinteger]  # [T]
    sentence_starts: NDArray[np.int64]  # one per sentence, and T
    document_starts: NDArray[np.int64]  # in sentences: one per document, and their number
    groups: NDArray[np.uint64]  # one per document; shared by the pieces of a document

    def with_sentences_up_to(self, max_tokens: int) -> "TokenShard":
        """The same tokens, with longer sentences cut into pieces of nearly equal length."""
        lengths = np.diff(self.sentence_starts)
        pieces = np.maximum(1, -(-lengths // max_tokens))
        sentence = np.repeat(np.arange(lengths.size), pieces)
        ends = np.cumsum(pieces)
        number = np.arange(sentence.size) - (ends - pieces)[sentence]
        starts = self.sentence_starts[sentence] + number * lengths[sentence] // pieces[sentence]
        first_piece = np.concatenate([[0], ends])
        return TokenShard(
            ids=self.ids,
            sentence_starts=np.append(starts, self.sentence_starts[-1]),
            document_starts=first_piece[self.document_starts],
            groups=self.groups,
        )


def write_token_shard(corpus_shard: Path, path: Path, encoder: SentenceEncoder) -> dict[str, Any]:
    """Encode a corpus shard; returns its figures.

    Sentences without any token (such as a lone zero-width space) are left out and counted, and so
    are documents that have nothing else.
    """
    value_type = id_type(encoder.tokenizer.vocab_size)
    schema = pa.schema([("group", pa.uint64()), ("sentences", pa.list_(pa.list_(value_type)))])
    figures = {"tokens": 0, "sentences": 0, "documents": 0, "empty_sentences": 0}
    first_group: int | None = None
    has_two_groups = False
    with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, schema) as writer:
        for batch in read_batches(corpus_shard):
            encoded = _encode_batch(batch, encoder, value_type)
            if not encoded.num_rows:
                continue
            writer.write_batch(encoded)
            groups = encoded.column("group").to_numpy()
            first_group = int(groups[0]) if first_group is None else first_group
            has_two_groups |= bool((groups != np.uint64(first_group)).any())
            sentences = encoded.column("sentences").flatten()
            figures["tokens"] += len(sentences.flatten())
            figures["sentences"] += len(sentences)
            figures["documents"] += encoded.num_rows
            figures["empty_sentences"] += len(batch.column("sentences").flatten()) - len(sentences)
    return {**figures, "has_two_groups": has_two_groups, "first_group": first_group}


def read_token_shard(path: Path) -> TokenShard:
    """A token shard; ids stay memory-mapped where the file is a single record batch."""
    batches = list(read_batches(path))
    sentences = [batch.column("sentences") for batch in batches]
    flat = [column.flatten() for column in sentences]
    return TokenShard(
        ids=_joined([column.flatten().to_numpy() for column in flat]),
        sentence_starts=_starts(flat),
        document_starts=_starts(sentences),
        groups=_joined([batch.column("group").to_numpy() for batch in batches]),
    )


def _encode_batch(
    batch: pa.RecordBatch, encoder: SentenceEncoder, value_type: pa.DataType
) -> pa.RecordBatch:
    sentences = batch.column("sentences")
    ids, lengths = encoder.encode(sentences.flatten())
    per_document = pc.list_value_length(sentences).to_numpy(zero_copy_only=False)
    document = np.repeat(np.arange(batch.num_rows), per_document)
    kept = np.bincount(document[lengths > 0], minlength=batch.num_rows)
    groups = [int(group_of(each)[:16], 16) for each in batch.column("id").to_pylist()]
    lists = pa.ListArray.from_arrays(
        _offsets(kept[kept > 0]),
        pa.ListArray.from_arrays(
            _offsets(lengths[lengths > 0]), pa.array(ids.astype(value_type.to_pandas_dtype()))
        ),
    )
    group_column = pa.array(np.array(groups, dtype=np.uint64)[kept > 0])
    return pa.record_batch([group_column, lists], names=["group", "sentences"])


def _offsets(lengths: NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _starts(columns: Sequence[pa.Array]) -> NDArray[np.int64]:
    lengths = [pc.list_value_length(column).to_numpy(zero_copy_only=False) for column in columns]
    return np.concatenate([[0], np.cumsum(_joined(lengths))]).astype(np.int64)


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The integers of all ranges [begin, begin + length), one range after the other."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.arange(total) + np.repeat(begins - (ends - lengths), lengths)
