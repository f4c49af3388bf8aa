"""Learning WordPiece from counted words, with the same result in every run.

Words are counted shard by shard, as BERT's tokenizer would see them, and added up over the sources,
which may be languages. The library's trainer numbers `##` characters in the order of a hash map and
settles ties by these numbers, so that plain calls differ from run to run. Here every character, and
its `##` form where it occurs, is numbered before the trainer looks at a word, and words come
sorted: nothing is left to a hash map. The trainer sees each distinct word as often as its (scaled)
count says, so memory and time depend on the number of distinct words and not on the size of the
corpus.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer, WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bert_core.vocabulary import (
    CONTINUATION,
    LONGEST_WORD,
    SPECIAL_TOKENS,
    UNK,
    Normalization,
    WordPieceTokenizer,
    build_normalizer,
)
from pipelines.cluster import map_tasks
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.stages.corpus.shards import read_batches
from pipelines.store import Artifact, Workspace

_MAX_TOTAL: Final = 40_000_000  # words shown to the trainer; larger counts are scaled down
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alphabet:
    """The characters that a vocabulary can spell, sorted, and how many were left out."""

    first: list[str]  # characters that can begin a word
    continuing: list[str]  # their ## forms, where they occur
    num_left_out: int


def choose_alphabet(counts: Mapping[str, int], *, coverage: float, limit: int) -> Alphabet:
    """The most frequent characters that make up `coverage` of the text, at most `limit`.

    Ties go to the lower code point. Words with other characters become [UNK].
    """
    all_characters: Counter[str] = Counter()
    inner_characters: set[str] = set()
    for word, count in counts.items():
        for character in word:
            all_characters[character] += count
        inner_characters.update(word[1:])
    ranked = sorted(all_characters.items(), key=lambda item: (-item[1], item[0]))
    wanted = coverage * sum(all_characters.values())
    kept: list[str] = []
    covered = 0
    for character, count in ranked[:limit]:
        if covered >= wanted:
            break
        kept.append(character)
        covered += count
    kept.sort()
    return Alphabet(
        first=kept,
        continuing=[CONTINUATION + each for each in kept if each in inner_characters],
        num_left_out=len(ranked) - len(kept),
    )


def learn_tokens(
    counts: Mapping[str, int],
    *,
    size: int,
    alphabet: Alphabet,
    num_unused: int,
    min_frequency: int,
) -> list[str]:
    """At most `size` tokens: special, unused, characters, then what was learned, in that order.

    The list is shorter where the words do not support as many tokens.
    """
    fixed = [
        *SPECIAL_TOKENS,
        *(f"[unused{number}]" for number in range(num_unused)),
        *alphabet.first,
        *alphabet.continuing,
    ]
    trainer = WordPieceTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=fixed,
        limit_alphabet=0,  # no character but those given
        show_progress=False,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = Tokenizer(WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.train_from_iterator(_repeated(counts), trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def extended(
    tokenizer: WordPieceTokenizer,
    counts: Mapping[str, int],
    *,
    num_tokens: int,
    min_frequency: int,
) -> WordPieceTokenizer:
    """`tokenizer` with `num_tokens` words of `counts` as further tokens, at the end.

    Chosen are the words that save the most tokens: how often a word occurs, times by how many
    tokens it is more than one; a word that is [UNK] now counts as one token more. Left out is a
    word too long for any tokenizer, which stays [UNK] as a token. Of equal ones the first in the
    alphabet. Raises UserError where fewer words would save any, and for a tokenizer with added
    tokens that tokens cannot follow.
    """
    words = sorted(
        word
        for word, count in counts.items()
        if count >= min_frequency and len(word) <= LONGEST_WORD
    )
    savings: dict[str, int] = {}
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True):
        length = 2 if ids == [tokenizer.unk_id] else len(ids)
        if length > 1:
            savings[word] = counts[word] * (length - 1)
    if len(savings) < num_tokens:
        raise UserError(
            f"vocabulary.added_words={num_tokens:,} is more than the corpus has: the encoder's "
            f"tokenizer cuts up {len(savings):,} words that occur at least {min_frequency} times; "
            "lower added_words"
        )
    added = sorted(savings, key=lambda word: (-savings[word], word))[:num_tokens]
    _check_no_added_words(tokenizer)
    return WordPieceTokenizer(
        [*tokenizer.tokens, *added], tokenizer.normalization, tokenizer.added_tokens
    )


def _check_no_added_words(tokenizer: WordPieceTokenizer) -> None:
    """Return where added tokens keep their meaning when tokens follow them.

    They become tokens of the vocabulary then, which words may be cut into. That changes nothing for
    a token that is no part of a word, nor for one that is always cut out before; others could
    be found where they were not.
    """
    for token in tokenizer.added_tokens:
        is_new = tokenizer.token_to_id(token.content) >= tokenizer.num_words
        is_always_found = token.normalized and not token.single_word
        if is_new and not is_always_found and token.content.isalnum():
            raise UserError(
                "vocabulary.added_words cannot follow the added token "
                f"{token.content!r} of this tokenizer, which is matched only unchanged or as a "
                "whole word; leave added_words at 0"
            )


def _repeated(counts: Mapping[str, int]) -> Iterator[str]:
    scale = min(1.0, _MAX_TOTAL / max(1, sum(counts.values())))
    for word in sorted(counts):
        yield f"{word} " * round(counts[word] * scale)
