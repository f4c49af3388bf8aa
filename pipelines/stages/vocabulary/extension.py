"""New whole-word pieces for a vocabulary that is there: the words that it cuts up at most cost."""

from collections.abc import Mapping

from bert_core.vocabulary import LONGEST_WORD, WordPieceTokenizer
from pipelines.core.errors import UserError


def extended(
    tokenizer: WordPieceTokenizer,
    counts: Mapping[str, int],
    *,
    num_pieces: int,
    min_frequency: int,
) -> WordPieceTokenizer:
    """`tokenizer` with `num_pieces` words of `counts` as further pieces, at the end.

    Chosen are the words that save the most pieces: how often a word occurs, times by how many
    pieces it is more than one; a word that is [UNK] now counts as one piece more. Left out is a
    word too long for any tokenizer, which stays [UNK] as a piece. Of equal ones the first in the
    alphabet. Raises UserError where fewer words would save any, and for a tokenizer with added
    tokens that pieces cannot follow.
    """
    words = sorted(
        word
        for word, count in counts.items()
        if count >= min_frequency and len(word) <= LONGEST_WORD
    )
    savings: dict[str, int] = {}
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True):
        pieces = 2 if ids == [tokenizer.unk_id] else len(ids)
        if pieces > 1:
            savings[word] = counts[word] * (pieces - 1)
    if len(savings) < num_pieces:
        raise UserError(
            f"the corpus must have {num_pieces:,} words for vocabulary.added_pieces that the "
            f"encoder's tokenizer cuts up, found {len(savings):,} that occur at least "
            f"{min_frequency} times; lower added_pieces"
        )
    added = sorted(savings, key=lambda word: (-savings[word], word))[:num_pieces]
    _refuse_added_words(tokenizer)
    return WordPieceTokenizer(
        [*tokenizer.pieces, *added], tokenizer.normalization, tokenizer.added_tokens
    )


def _refuse_added_words(tokenizer: WordPieceTokenizer) -> None:
    """Return where added tokens keep their meaning when pieces follow them.

    They become pieces of the vocabulary then, which words may be cut into. That changes nothing for
    a token that is no part of a word, nor for one that is always cut out before; others could
    be found where they were not.
    """
    for token in tokenizer.added_tokens[:]:
        is_new = tokenizer.piece_to_id(token.content) >= tokenizer.num_words
        is_always_found = token.normalized and not token.single_word
        if is_new and not is_always_found and token.content.isalnum():
            raise UserError(
                "vocabulary.added_pieces cannot go after the added token "
                f"{token.content!r} of this tokenizer, which is found only where it stands "
                "unchanged or as a word alone; leave added_pieces at 0"
            )
