"""Learning WordPiece from word counts, with the same result in every run.

The library's trainer numbers `##` characters in the order of a hash map and settles ties by these
numbers, so that plain calls differ from run to run. Here every character, and its `##` form where
it occurs, is numbered before the trainer looks at a word, and words come sorted: nothing is left to
a hash map. The trainer sees each distinct word as often as its (scaled) count says, so memory and
time depend on the number of distinct words and not on the size of the corpus.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from bert_core.vocabulary import (
    CONTINUATION,
    LONGEST_WORD,
    SPECIAL_TOKENS,
    UNK,
    WordPieceTokenizer,
)
from pipelines.config.errors import UserError

_MAX_TOTAL: Final = 40_000_000  # words shown to the trainer; larger counts are scaled down


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
