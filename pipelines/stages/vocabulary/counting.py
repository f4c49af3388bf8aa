"""How often each word occurs in a corpus, as BERT's tokenizer would see the words.

Counted shard by shard, and added up over the sources, which may be languages.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_core.vocabulary import LONGEST_WORD, Normalization, build_normalizer
from pipelines.artifacts import Artifact, Workspace
from pipelines.cluster.mapping import map_tasks
from pipelines.stage import StageContext
from pipelines.stages.corpus.shards import read_batches

MAX_WORDS: Final = 4_000_000  # kept at once; about 0.6 GB
_CHUNKS_AT_ONCE: Final = 1_000_000
_RECORD_SEPARATOR: Final = "\u241e"  # a symbol that normalization leaves alone
_ASCII_WORD: Final = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z ]")
_SCHEMA: Final = pa.schema([("source", pa.string()), ("word", pa.string()), ("count", pa.int64())])

WordCounts = dict[str, Counter[str]]  # by source


def counted_words(
    normalization: Normalization,
    smoothing: float,
    corpus: Artifact,
    context: StageContext,
    work: Workspace,
) -> tuple[dict[str, int], int]:
    """Word counts of the training part, and how many rare words were dropped.

    With a `smoothing` below 1 they are smoothed over languages: see `smoothed`.
    """
    names = corpus.names("train-")
    files = map_tasks(
        partial(_count_shard, corpus, normalization, smoothing < 1, work),
        names,
        num_workers=context.runtime.num_workers,
        on_result=context.watch("vocabulary", "shards", len(names) + 1),
    )
    by_source: WordCounts = {}
    num_forgotten = 0
    for file in files:  # in the order of the shards: what is forgotten is the same in any run
        with work.local(file) as path:
            for source, counts in read_counts(path).items():
                into = by_source.setdefault(source, Counter())
                into.update(counts)
                num_forgotten += prune(into)
    return smoothed(by_source, smoothing), num_forgotten


def _count_shard(
    corpus: Artifact, normalization: Normalization, by_source: bool, work: Workspace, name: str
) -> str:
    """Count the words of the corpus shard `name`; returns the file of counts."""
    counts_name = f"{name}.counts"
    if work.finished(counts_name) is None:
        counts = count_words(corpus.local(name), normalization, by_source=by_source)
        with work.file(counts_name) as file:
            write_counts(file.path, counts)
    return counts_name


def smoothed(by_source: WordCounts, exponent: float) -> dict[str, int]:
    """Counts over all sources, each source weighted so that its share p becomes p**exponent.

    Shares are normalized again (Devlin et al., multilingual BERT); the largest source keeps its
    counts and smaller ones gain.
    """
    totals = {source: sum(counts.values()) for source, counts in by_source.items()}
    largest = max(totals.values(), default=1)
    combined: Counter[str] = Counter()
    for source in sorted(by_source):
        factor = (totals[source] / largest) ** (exponent - 1)
        for word, count in by_source[source].items():
            combined[word] += round(count * factor)
    return combined


def count_words(shard: Path, normalization: Normalization, *, by_source: bool) -> WordCounts:
    """Counts of the words of a corpus shard, under one key "" unless `by_source`."""
    chunks: WordCounts = {}
    words: WordCounts = {}
    for batch in read_batches(shard):
        if by_source:
            names = pc.unique(batch.column("source")).to_pylist()
            groups = [
                (name, batch.filter(pc.equal(batch.column("source"), name))) for name in names
            ]
        else:
            groups = [("", batch)]
        for name, rows in groups:
            text = " ".join(rows.column("sentences").flatten().to_pylist())
            chunks.setdefault(name, Counter()).update(text.split(" "))
        if sum(map(len, chunks.values())) > _CHUNKS_AT_ONCE:
            _move_words(chunks, words, normalization)
    _move_words(chunks, words, normalization)
    return words


def prune(counts: Counter[str]) -> int:
    """Forget the rarest of more than `MAX_WORDS` words; returns how many.

    Ties go from the end of the alphabet. Half the room is freed at once, so that the rule costs
    little however many words follow.
    """
    if len(counts) <= MAX_WORDS:
        return 0
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    for word in ranked[MAX_WORDS // 2 :]:
        del counts[word]
    return len(ranked) - MAX_WORDS // 2


def write_counts(path: Path, counts: WordCounts) -> None:
    """Save counts as an Arrow file, sorted."""
    rows = [(name, word) for name in sorted(counts) for word in sorted(counts[name])]
    table = pa.table(
        [
            pa.array([name for name, _ in rows], pa.string()),
            pa.array([word for _, word in rows], pa.string()),
            pa.array([counts[name][word] for name, word in rows], pa.int64()),
        ],
        schema=_SCHEMA,
    )
    with pa.ipc.new_file(str(path), _SCHEMA) as writer:
        writer.write_table(table)


def read_counts(path: Path) -> WordCounts:
    counts: WordCounts = {}
    for batch in read_batches(path):
        columns = (batch.column(name).to_pylist() for name in ("source", "word", "count"))
        for name, word, count in zip(*columns, strict=True):
            counts.setdefault(name, Counter())[word] = count
    return counts


def _move_words(chunks: WordCounts, words: WordCounts, normalization: Normalization) -> None:
    """Turn counts of what is between blanks into counts of words."""
    for name, counts in chunks.items():
        into = words.setdefault(name, Counter())
        for chunk_words, count in zip(
            _words_of(list(counts), normalization), counts.values(), strict=True
        ):
            for word in chunk_words:
                if len(word) <= LONGEST_WORD:  # longer ones become [UNK]
                    into[word] += count
        prune(into)
    chunks.clear()


def _words_of(chunks: list[str], normalization: Normalization) -> Iterable[list[str]]:
    """The words of each chunk; all chunks are normalized in a single call."""
    plain = [chunk.replace(_RECORD_SEPARATOR, "") for chunk in chunks]
    normalized = build_normalizer(normalization).normalize_str(_RECORD_SEPARATOR.join(plain))
    pre_tokenizer = BertPreTokenizer()
    for chunk in normalized.split(_RECORD_SEPARATOR):
        if chunk.isascii():
            yield _ASCII_WORD.findall(chunk)
        else:
            yield [word for word, _ in pre_tokenizer.pre_tokenize_str(chunk)]
