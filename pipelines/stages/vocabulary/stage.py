"""Stage: from the training part of a corpus to its WordPiece vocabulary."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from bert_core.vocabulary import SPECIAL_PIECES, WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.artifacts.attempts.workspace import Workspace
from pipelines.core.cluster.connection import map_tasks
from pipelines.core.errors import UserError
from pipelines.core.stage import Progress, StageContext
from pipelines.core.versions import versions_of
from pipelines.stages.corpus.shards import read_tables
from pipelines.stages.vocabulary import VOCABULARY
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.word_counts import (
    WordCounts,
    count_words,
    prune,
    read_counts,
    write_counts,
)
from pipelines.stages.vocabulary.wordpiece import choose_alphabet, learn_pieces

STAGE = "vocabulary"
_HELDOUT_BYTES = 64 * 2**20  # of held-out text that the figures are taken from


def build_vocabulary(
    settings: VocabularySettings, corpus: Artifact, context: StageContext
) -> Artifact:
    """Learn a vocabulary from the training part of `corpus`.

    Files: `vocab.txt`, `tokenizer.json`, `tokenizer_config.json`. The same corpus and settings give
    the same bytes in any run on any number of workers. Raises UserError where the corpus does not
    support as many pieces.
    """
    return context.store.get_or_build(
        VOCABULARY.kind,
        version=VOCABULARY.version,
        settings=settings,
        # The trainer, the normalizer's tables and the spelling of the files are the library's.
        inputs={"corpus": corpus, "libraries": versions_of("tokenizers")},
        build=partial(_build, settings, corpus, context),
    )


def import_vocabulary(
    directory: str | Path, context: StageContext, *, lowercase: bool | None = None
) -> Artifact:
    """Take over a published vocabulary: a folder with `vocab.txt` or `tokenizer.json`.

    `lowercase` is needed where no settings lie beside the vocabulary.
    """
    tokenizer = WordPieceTokenizer.from_directory(directory, lowercase=lowercase)
    files = tokenizer.files()
    digest = hashlib.sha256("".join(files[name] for name in sorted(files)).encode()).hexdigest()

    def build(draft: Draft) -> Built:
        return Built(_write(tokenizer, draft), _figures(tokenizer))

    return context.store.get_or_build(
        VOCABULARY.kind,
        version=VOCABULARY.version,
        settings={},
        inputs={"files": digest},
        build=build,
    )


def load_tokenizer(vocabulary: Artifact) -> WordPieceTokenizer:
    """The tokenizer of a vocabulary artifact."""
    return WordPieceTokenizer.from_directory(vocabulary.local_folder())


@dataclass(frozen=True, slots=True, kw_only=True)
class _CountingTask:
    settings: VocabularySettings
    corpus: Artifact
    work: Workspace

    def __call__(self, name: str) -> str:
        """Count the words of the corpus shard `name`; returns the file of counts."""
        counts_name = f"{name}.counts"
        if self.work.finished(counts_name) is None:
            counts = count_words(
                self.corpus.local(name),
                self.settings.normalization,
                by_source=self.settings.language_smoothing < 1,
            )
            with self.work.file(counts_name) as file:
                write_counts(file.path, counts)
        return counts_name


def _build(
    settings: VocabularySettings, corpus: Artifact, context: StageContext, draft: Draft
) -> Built:
    counts, num_forgotten = _count(settings, corpus, context, Workspace.of(draft))
    alphabet = choose_alphabet(
        counts,
        coverage=settings.character_coverage,
        limit=settings.max_characters or settings.size // 4,
    )
    least = (
        len(SPECIAL_PIECES) + settings.num_unused + len(alphabet.first) + len(alphabet.continuing)
    )
    if settings.size < least:
        raise UserError(
            f"a vocabulary for this corpus must hold at least {least:,} pieces, its special ones "
            f"and characters, but {settings.size:,} were asked for; raise `size` or lower "
            "`max_characters`"
        )
    pieces = learn_pieces(
        counts,
        size=settings.size,
        alphabet=alphabet,
        num_unused=settings.num_unused,
        min_frequency=settings.min_frequency,
    )
    if len(pieces) < settings.size:
        raise UserError(
            f"the corpus must support a vocabulary of {settings.size:,} pieces, but its "
            f"{len(counts):,} distinct words give {len(pieces):,}; set `size` to at most that, or "
            "add text"
        )
    tokenizer = WordPieceTokenizer(pieces, settings.normalization)
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
        with draft.file(name) as file:
            file.path.write_text(content, encoding="utf-8", newline="\n")
    return list(files)


def _figures(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    return {
        "size": tokenizer.vocab_size,
        "lowercase": tokenizer.lowercase,
        "special_ids": {piece: tokenizer.piece_to_id(piece) for piece in SPECIAL_PIECES},
    }


def _count(
    settings: VocabularySettings, corpus: Artifact, context: StageContext, work: Workspace
) -> tuple[dict[str, int], int]:
    """Word counts of the training part, smoothed over languages where asked for."""
    names = corpus.names("train-")
    counter = iter(range(1, len(names) + 1))
    files = map_tasks(
        _CountingTask(settings=settings, corpus=corpus, work=work),
        names,
        num_workers=context.num_workers,
        on_result=lambda index, result: context.observe(
            Progress(stage=STAGE, done=next(counter), total=len(names) + 1, unit="shards")
        ),
    )
    by_source: WordCounts = {}
    num_forgotten = 0
    for file in files:  # in the order of the shards: what is forgotten is the same in any run
        with work.local(file) as path:
            for source, counts in read_counts(path).items():
                into = by_source.setdefault(source, Counter())
                into.update(counts)
                num_forgotten += prune(into)
    return smoothed(by_source, settings.language_smoothing), num_forgotten


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


def _heldout_figures(tokenizer: WordPieceTokenizer, corpus: Artifact) -> dict[str, Any]:
    """Pieces per word and the share of [UNK] on held-out text."""
    encoder = SentenceEncoder(tokenizer)
    num_words = num_pieces = num_unknown = num_bytes = 0
    for batch in read_tables(corpus, "heldout"):
        sentences = batch.column("sentences").flatten()
        ids, _ = encoder.encode(sentences)
        num_words += pc.sum(pc.count_substring(sentences, " ")).as_py() + len(sentences)
        num_pieces += ids.size
        num_unknown += int((ids == tokenizer.unk_id).sum())
        num_bytes += batch.nbytes
        if num_bytes > _HELDOUT_BYTES:
            break
    return {
        "words": num_words,
        "pieces_per_word": round(num_pieces / max(1, num_words), 4),
        "unknown_share": round(num_unknown / max(1, num_pieces), 6),
    }
