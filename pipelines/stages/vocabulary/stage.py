"""Stage: from the training part of a corpus to its WordPiece vocabulary, the same in every run.

Words are counted shard by shard, as BERT's tokenizer would see them, and added up. The library's
trainer numbers `##` characters in the order of a hash map and settles ties by these numbers, so
that plain calls differ from run to run. Here every character, and its `##` form where it occurs, is
numbered before the trainer looks at a word, and words come sorted. The trainer sees each distinct
word as often as its (scaled) count says, so memory and time depend on the number of distinct words
and not on the size of the corpus.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

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
    read_tokens,
)
from pipelines.cluster import map_tasks
from pipelines.errors import UserError, redacted
from pipelines.stage import StageContext
from pipelines.stages import VOCABULARY
from pipelines.stages.corpus.shards import read_batches, read_tables
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.store import Artifact, Built, Draft, Workspace
from pipelines.store.artifact import is_fingerprint
from pipelines.train.imported import existing_encoder
from pipelines.versions import versions_of

_MAX_TOTAL: Final = 40_000_000  # words shown to the trainer; larger counts are scaled down
MAX_WORDS: Final = 4_000_000  # kept at once; about 0.6 GB
_CHUNKS_AT_ONCE: Final = 1_000_000
_RECORD_SEPARATOR: Final = "\u241e"  # a symbol that normalization leaves alone
_ASCII_WORD: Final = re.compile("[0-9A-Za-z]+|[^0-9A-Za-z ]")


def counted_words(
    settings: VocabularySettings, corpus: Artifact, context: StageContext, work: Workspace
) -> tuple[dict[str, int], int]:
    """Word counts of the training part, and how many rare words were left out."""
    names = corpus.names("train-")
    map_tasks(
        partial(_count_shard, corpus, settings, work),
        names,
        num_workers=context.runtime.num_workers,
        on_result=context.watch(VOCABULARY.name, "shards", len(names) + 1),
    )
    whole: Counter[str] = Counter()
    num_forgotten = 0
    for name in names:  # in the order of the shards: what is forgotten is the same in any run
        with work.local(f"{name}.counts") as path:
            whole.update(json.loads(path.read_text("utf-8")))
        num_forgotten += prune(whole)
    return whole, num_forgotten


def _count_shard(
    corpus: Artifact, settings: VocabularySettings, work: Workspace, name: str
) -> None:
    """Count the words of the corpus shard `name`, as a working file."""

    def write(path: Path) -> dict[str, Any]:
        counts = count_words(corpus.local(name), settings.normalization)
        path.write_text(json.dumps(counts, sort_keys=True), "utf-8")
        return {}

    work.once(f"{name}.counts", write)


def count_words(shard: Path, normalization: Normalization) -> Counter[str]:
    """Counts of the words of a corpus shard."""
    chunks: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for batch in read_batches(shard):
        chunks.update(" ".join(batch.column("sentences").flatten().to_pylist()).split(" "))
        if len(chunks) > _CHUNKS_AT_ONCE:
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


def _move_words(chunks: Counter[str], words: Counter[str], normalization: Normalization) -> None:
    """Turn counts of what is between blanks into counts of words."""
    split = _words_of(list(chunks), normalization)
    for chunk_words, count in zip(split, chunks.values(), strict=True):
        for word in chunk_words:
            if len(word) <= LONGEST_WORD:  # longer ones become [UNK]
                words[word] += count
    prune(words)
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
    covered_total = coverage * sum(all_characters.values())
    kept: list[str] = []
    covered = 0
    for character, count in ranked[:limit]:
        if covered >= covered_total:
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
    counts: Mapping[str, int], settings: VocabularySettings, fixed: list[str]
) -> list[str]:
    """At most `settings.size` tokens: the `fixed` ones, then what was learned, in that order.

    The list is shorter where the words do not support as many tokens.
    """
    trainer = WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.min_frequency,
        special_tokens=fixed,
        limit_alphabet=0,  # no character but those given
        show_progress=False,
        continuing_subword_prefix=CONTINUATION,
    )
    tokenizer = Tokenizer(WordPiece(unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    scale = min(1.0, _MAX_TOTAL / max(1, sum(counts.values())))
    words = (f"{word} " * round(counts[word] * scale) for word in sorted(counts))
    tokenizer.train_from_iterator(words, trainer)
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


Inputs = dict[str, Artifact | str]

_HELDOUT_BYTES = 64 * 2**20  # of held-out text that the figures are taken from


def build_vocabulary(
    settings: VocabularySettings, corpus: Artifact, context: StageContext
) -> Artifact:
    """Learn a vocabulary from the training part of `corpus`, or take over another's.

    Files: `vocab.txt`, `tokenizer.json`, `tokenizer_config.json`. The same corpus and settings give
    the same bytes in any run on any number of workers. Raises UserError where the corpus does not
    support as many tokens, and where there is no such encoder or tokenizer.
    """
    if settings.encoder is not None:
        return _of_encoder(existing_encoder(settings.encoder, context), context)
    if settings.tokenizer is not None:
        return _taken_over(settings.tokenizer, context)
    # The trainer, the normalizer's tables and the spelling of the files are the library's.
    inputs: Inputs = {"corpus": corpus, "libraries": versions_of("tokenizers")}
    return _artifact(context, settings.named(), inputs, partial(_build, settings, corpus, context))


def import_vocabulary(
    path: str | Path, context: StageContext, *, lowercase: bool | None = None
) -> Artifact:
    """Take over a published vocabulary: a vocab.txt, or a folder with that or `tokenizer.json`.

    `lowercase` is needed where no settings lie beside the vocabulary. Raises UserError, naming the
    file, where it cannot be read or follows other rules than BERT's.
    """
    path = Path(path)
    try:
        if path.is_dir():
            tokenizer = WordPieceTokenizer.from_directory(path, lowercase=lowercase)
        else:
            tokens = read_tokens(path)
            if lowercase is None:
                raise ValueError(
                    f"{path} does not say whether it is uncased; say it with --uncased or --cased"
                )
            tokenizer = WordPieceTokenizer(tokens, Normalization(lowercase=lowercase))
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is no vocabulary of BERT's kind: {error}") from error
    files = tokenizer.files()
    digest = hashlib.sha256("".join(files[name] for name in sorted(files)).encode()).hexdigest()

    def build(draft: Draft) -> Built:
        return Built(
            _write(tokenizer, draft), {**_figures(tokenizer), "source": redacted(str(path))}
        )

    return _artifact(context, {}, {"files": digest}, build)


def _taken_over(reference: str, context: StageContext) -> Artifact:
    """The vocabulary that `reference` names: a fingerprint of the store, or a folder.

    Raises UserError where there is none.
    """
    if is_fingerprint(reference):
        vocabulary = context.store.find(VOCABULARY.kind, reference)
        if vocabulary is not None:
            return vocabulary
    elif reference.strip() and Path(reference).is_dir():
        return import_vocabulary(reference, context)
    elif reference.endswith(".json") and Path(reference).is_file():
        raise UserError(
            f"vocabulary.tokenizer={reference} is one file of a tokenizer; name its folder"
        )
    elif Path(reference).is_file():
        raise UserError(
            f"{reference} does not say whether it is uncased; type `bertsmith import {reference} "
            "--uncased` (or --cased), and set vocabulary.tokenizer to the fingerprint it prints"
        )
    raise UserError(
        f"vocabulary.tokenizer={reference} does not exist; name a folder with a tokenizer or the "
        f"fingerprint of a vocabulary in the store {context.store.url}"
    )


def _of_encoder(encoder: Artifact, context: StageContext) -> Artifact:
    """The vocabulary of an encoder in the store."""

    def build(draft: Draft) -> Built:
        tokenizer = WordPieceTokenizer.from_directory(encoder.local_folder())
        return Built(_write(tokenizer, draft), _figures(tokenizer))

    inputs: Inputs = {"encoder": encoder, "libraries": versions_of("tokenizers")}
    return _artifact(context, {}, inputs, build)


def _artifact(
    context: StageContext, settings: dict[str, Any], inputs: Inputs, build: Callable[[Draft], Built]
) -> Artifact:
    return context.store.get_or_build(
        VOCABULARY.kind, version=VOCABULARY.version, settings=settings, inputs=inputs, build=build
    )


def load_tokenizer(vocabulary: Artifact) -> WordPieceTokenizer:
    return WordPieceTokenizer.from_directory(vocabulary.local_folder())


def _build(
    settings: VocabularySettings, corpus: Artifact, context: StageContext, draft: Draft
) -> Built:
    counts, num_forgotten = counted_words(settings, corpus, context, draft.workspace())
    limit = settings.max_characters or settings.size // 4
    alphabet = choose_alphabet(counts, coverage=settings.character_coverage, limit=limit)
    fixed = [
        *SPECIAL_TOKENS,
        *(f"[unused{number}]" for number in range(settings.num_unused)),
        *alphabet.first,
        *alphabet.continuing,
    ]
    if settings.size < len(fixed):
        raise UserError(
            f"vocabulary.size={settings.size:,} is less than the {len(fixed):,} special tokens and "
            "characters of this corpus; raise `size` or lower `max_characters`"
        )
    tokens = learn_tokens(counts, settings, fixed)
    if len(tokens) < settings.size:
        raise UserError(
            f"the corpus is too small for a vocabulary of {settings.size:,} tokens: its "
            f"{len(counts):,} distinct words give {len(tokens):,}; set `size` to at most that and "
            f"`max_characters` to {limit}, or add text"
        )
    tokenizer = WordPieceTokenizer(tokens, settings.normalization)
    statistics = {
        **_figures(tokenizer),
        "characters": len(alphabet.first),
        "characters_left_out": alphabet.num_left_out,
        "distinct_words": len(counts),
        "rare_words_forgotten": num_forgotten,
        "heldout": _heldout_figures(tokenizer, corpus),
    }
    return Built(_write(tokenizer, draft), statistics)


def _write(tokenizer: WordPieceTokenizer, draft: Draft) -> list[str]:
    files = tokenizer.files()
    for name, content in files.items():
        draft.write(name, content.encode())
    return list(files)


def _figures(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    return {
        "size": tokenizer.vocab_size,
        "lowercase": tokenizer.normalization.lowercase,
        "strips_accents": tokenizer.normalization.strips_accents,
        "special_ids": {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS},
    }


def _heldout_figures(tokenizer: WordPieceTokenizer, corpus: Artifact) -> dict[str, Any]:
    """Tokens per word, and the shares of [UNK] and of lost words, on held-out text."""
    encoder = SentenceEncoder(tokenizer)
    chunks: Counter[str] = Counter()
    num_words = num_tokens = num_unknown = num_bytes = 0
    for batch in read_tables(corpus, "heldout"):
        sentences = batch.column("sentences").flatten()
        ids, _ = encoder.encode(sentences)
        num_words += pc.sum(pc.count_substring(sentences, " ")).as_py() + len(sentences)
        num_tokens += ids.size
        num_unknown += int((ids == tokenizer.unk_id).sum())
        num_bytes += batch.nbytes
        chunks.update(" ".join(sentences.to_pylist()).split(" "))
        if num_bytes > _HELDOUT_BYTES:
            break
    merged = 0.0
    if tokenizer.normalization.strips_accents:
        merged = merged_share(set(chunks), tokenizer.normalization)
    return {
        "words": num_words,
        "tokens_per_word": round(num_tokens / max(1, num_words), 4),
        "unknown_share": round(num_unknown / max(1, num_tokens), 6),
        **unknown_characters(chunks, tokenizer),
        "merged_share": round(merged, 6),
    }


def unknown_characters(
    chunks: Mapping[str, int], tokenizer: WordPieceTokenizer
) -> dict[str, float]:
    """Shares of the characters of a text that are in words that become [UNK], and in too long ones.

    A word is one [UNK] however long it is, so that a share of the tokens hides what is lost where
    no blanks part words. `chunks` counts what is between blanks.
    """
    characters: Counter[str] = Counter()
    split = _words_of(list(chunks), tokenizer.normalization)
    for words, count in zip(split, chunks.values(), strict=True):
        for word in words:
            characters[word] += count * len(word)
    encoded = tokenizer.encode_batch(list(characters))
    unknown = long = 0
    for (word, count), ids in zip(characters.items(), encoded, strict=True):
        unknown += count if tokenizer.unk_id in ids else 0
        long += count if len(word) > LONGEST_WORD else 0
    total = max(1, characters.total())
    return {
        "unknown_character_share": round(unknown / total, 6),
        "long_word_character_share": round(long / total, 6),
    }


def merged_share(words: set[str], normalization: Normalization) -> float:
    """By how much of themselves different words become fewer when their marks are removed."""
    forms = [
        {rules.normalize_str(word) for word in words}
        for rules in (
            build_normalizer(replace(normalization, strip_accents=False, compose=True)),
            build_normalizer(normalization),
        )
    ]
    return 1 - len(forms[1]) / len(forms[0]) if words else 0.0
