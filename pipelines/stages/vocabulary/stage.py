"""Stage: from the training part of a corpus to its WordPiece vocabulary."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from bert_core.tokenizer_files import read_tokens
from bert_core.vocabulary import (
    SPECIAL_TOKENS,
    Normalization,
    WordPieceTokenizer,
    build_normalizer,
)
from pipelines.errors import UserError, redacted
from pipelines.stage import StageContext
from pipelines.stages.corpus.shards import read_tables
from pipelines.stages.vocabulary import VOCABULARY
from pipelines.stages.vocabulary.encoding import SentenceEncoder
from pipelines.stages.vocabulary.learning import (
    choose_alphabet,
    counted_words,
    extended,
    learn_tokens,
)
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.store import Artifact, Built, Draft
from pipelines.store.artifact import is_fingerprint
from pipelines.train.imported_models import existing_encoder
from pipelines.versions import versions_of

Inputs = dict[str, Artifact | str]

_HELDOUT_BYTES = 64 * 2**20  # of held-out text that the figures are taken from


def build_vocabulary(
    settings: VocabularySettings, corpus: Artifact, context: StageContext
) -> Artifact:
    """Learn a vocabulary from the training part of `corpus`, or take over another's.

    Files: `vocab.txt`, `tokenizer.json`, `tokenizer_config.json`. The same corpus and settings give
    the same bytes in any run on any number of workers. Raises UserError where the corpus does not
    support as many tokens, where there is no such encoder, and where tokens are added to none.
    """
    fault = settings.fault_with(settings.encoder)
    if fault:
        raise UserError(fault)
    if settings.encoder is not None:
        encoder = existing_encoder(settings.encoder, context)
        return _of_another(settings, {"encoder": encoder}, corpus, context)
    if settings.tokenizer is not None:
        tokenizer = taken_over(settings.tokenizer, context)
        if not settings.added_words:
            return tokenizer
        return _of_another(settings, {"tokenizer": tokenizer}, corpus, context)
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
    tokenizer = _tokenizer_at(Path(path), lowercase)
    files = tokenizer.files()
    digest = hashlib.sha256("".join(files[name] for name in sorted(files)).encode()).hexdigest()

    def build(draft: Draft) -> Built:
        return Built(
            _write(tokenizer, draft), {**_figures(tokenizer), "source": redacted(str(path))}
        )

    return _artifact(context, {}, {"files": digest}, build)


def _tokenizer_at(path: Path, lowercase: bool | None) -> WordPieceTokenizer:
    try:
        if path.is_dir():
            return WordPieceTokenizer.from_directory(path, lowercase=lowercase)
        tokens = read_tokens(path)
        if lowercase is None:
            raise ValueError(
                f"{path} does not say whether it is uncased; say it with --uncased or --cased"
            )
        return WordPieceTokenizer(tokens, Normalization(lowercase=lowercase))
    except (ValueError, OSError) as error:
        said = " ".join(str(error).split())
        if str(path) not in said:
            said = f"{path} is no vocabulary of BERT's kind: {said}"
        raise UserError(said) from error


def taken_over(reference: str, context: StageContext) -> Artifact:
    """The vocabulary that `reference` names: a fingerprint of the store, a folder or a vocab.txt.

    Raises UserError where there is none.
    """
    if is_fingerprint(reference):
        found = context.store.find(VOCABULARY.kind, reference)
        if found is not None:
            return found
    elif reference.strip() and Path(reference).exists():
        return import_vocabulary(reference, context)
    raise UserError(
        f"vocabulary.tokenizer={reference} does not exist; name a folder with a tokenizer, a "
        f"vocab.txt or the fingerprint of a vocabulary in the store {context.store.url}"
    )


def _of_another(
    settings: VocabularySettings, source: dict[str, Artifact], corpus: Artifact,
    context: StageContext,
) -> Artifact:  # fmt: skip
    """The vocabulary of `source`, with words of the corpus as further tokens where asked for."""
    before = next(iter(source.values()))
    inputs: Inputs = {**source, "libraries": versions_of("tokenizers")}
    decides = {}
    if settings.added_words:
        inputs["corpus"] = corpus
        names = ("added_words", "min_frequency", "language_smoothing")
        decides = {name: getattr(settings, name) for name in names}

    def build(draft: Draft) -> Built:
        tokenizer = WordPieceTokenizer.from_directory(before.local_folder())
        statistics = {}
        if settings.added_words:
            work, smoothing = draft.workspace(), settings.language_smoothing
            figures = _heldout_figures(tokenizer, corpus)
            counts, _ = counted_words(tokenizer.normalization, smoothing, corpus, context, work)
            tokenizer = extended(
                tokenizer,
                counts,
                num_tokens=settings.added_words,
                min_frequency=settings.min_frequency,
            )
            statistics = {"heldout": _heldout_figures(tokenizer, corpus), "heldout_before": figures}
        return Built(_write(tokenizer, draft), {**_figures(tokenizer), **statistics})

    return _artifact(context, decides, inputs, build)


def _artifact(
    context: StageContext,
    settings: dict[str, Any],
    inputs: Inputs,
    build: Callable[[Draft], Built],
) -> Artifact:
    return context.store.get_or_build(
        VOCABULARY.kind, version=VOCABULARY.version, settings=settings, inputs=inputs, build=build
    )


def load_tokenizer(vocabulary: Artifact) -> WordPieceTokenizer:
    return WordPieceTokenizer.from_directory(vocabulary.local_folder())


def _build(
    settings: VocabularySettings, corpus: Artifact, context: StageContext, draft: Draft
) -> Built:
    counts, num_forgotten = counted_words(
        settings.normalization, settings.language_smoothing, corpus, context, draft.workspace()
    )
    alphabet = choose_alphabet(
        counts,
        coverage=settings.character_coverage,
        limit=settings.max_characters or settings.size // 4,
    )
    least = (
        len(SPECIAL_TOKENS) + settings.num_unused + len(alphabet.first) + len(alphabet.continuing)
    )
    if settings.size < least:
        raise UserError(
            f"vocabulary.size={settings.size:,} is less than the {least:,} special tokens and "
            "characters of this corpus; raise `size` or lower `max_characters`"
        )
    tokens = learn_tokens(
        counts,
        size=settings.size,
        alphabet=alphabet,
        num_unused=settings.num_unused,
        min_frequency=settings.min_frequency,
    )
    if len(tokens) < settings.size:
        raise UserError(
            f"the corpus is too small for a vocabulary of {settings.size:,} tokens: its "
            f"{len(counts):,} distinct words give {len(tokens):,}; set `size` to at most that, or "
            "add text"
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
        "lowercase": tokenizer.lowercase,
        "special_ids": {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS},
    }


def _heldout_figures(tokenizer: WordPieceTokenizer, corpus: Artifact) -> dict[str, Any]:
    """Tokens per word, and the shares of [UNK] and of lost words, on held-out text."""
    encoder = SentenceEncoder(tokenizer)
    words: set[str] = set()
    num_words = num_tokens = num_unknown = num_bytes = 0
    for batch in read_tables(corpus, "heldout"):
        sentences = batch.column("sentences").flatten()
        ids, _ = encoder.encode(sentences)
        num_words += pc.sum(pc.count_substring(sentences, " ")).as_py() + len(sentences)
        num_tokens += ids.size
        num_unknown += int((ids == tokenizer.unk_id).sum())
        num_bytes += batch.nbytes
        if tokenizer.normalization.strips_accents:
            words.update(" ".join(sentences.to_pylist()).split(" "))
        if num_bytes > _HELDOUT_BYTES:
            break
    return {
        "words": num_words,
        "tokens_per_word": round(num_tokens / max(1, num_words), 4),
        "unknown_share": round(num_unknown / max(1, num_tokens), 6),
        "merged_share": round(_merged_share(words, tokenizer.normalization), 6),
    }


def _merged_share(words: set[str], normalization: Normalization) -> float:
    """By how much of themselves different words become fewer when their marks are removed."""
    forms = [
        {rules.normalize_str(word) for word in words}
        for rules in (
            build_normalizer(replace(normalization, strip_accents=False, compose=True)),
            build_normalizer(normalization),
        )
    ]
    return 1 - len(forms[1]) / max(1, len(forms[0]))
