"""Kinds of tokens, for any language, which the number of right answers alone does not tell apart.

An encoder that only ever says "." and "the" is right surprisingly often. So each masked token is
also counted by its kind, and a person who looks at gaps sees the content words:

- punctuation: tokens of nothing but characters that Unicode calls punctuation or symbols, and
  [CLS] and [SEP], between which a left-to-right model reads a text;
- frequent: of all other tokens that can begin a word, the most frequent that together are half of
  what such tokens are of the training examples (in English, about the function words); and
  [UNK], which hides what stood there;
- content: everything else, and so every token that continues a word.
"""

import unicodedata
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bert_core.vocabulary import CONTINUATION, WordPieceTokenizer

CONTENT, FREQUENT, PUNCTUATION = KINDS = ("content", "frequent", "punctuation")

_FREQUENT_SHARE: Final = 0.5  # in running words


def token_kinds(
    tokenizer: WordPieceTokenizer, counts: NDArray[np.int64]
) -> dict[str, NDArray[np.bool_]]:
    """Which tokens are of each of `KINDS`, [V] each; what is never asked for is of none.

    `counts` [V] says how often each token occurs in the training examples. Of equally frequent
    tokens the one with the lower id comes first.
    """
    size = tokenizer.vocab_size
    is_asked = np.ones(size, dtype=np.bool_)
    is_asked[[tokenizer.pad_id, tokenizer.mask_id]] = False
    continues = np.array([token.startswith(CONTINUATION) for token in tokenizer.tokens])
    is_punctuation = np.array([_is_punctuation(token) for token in tokenizer.tokens])
    is_punctuation &= is_asked & ~continues
    is_punctuation[[tokenizer.cls_id, tokenizer.sep_id]] = True
    begins = is_asked & ~continues & ~is_punctuation
    begins[tokenizer.unk_id] = False
    ids = np.flatnonzero(begins)
    ranked = ids[np.argsort(-counts[ids], kind="stable")]
    before = np.cumsum(counts[ranked]) - counts[ranked]
    is_frequent = np.zeros(size, dtype=np.bool_)
    is_frequent[ranked[before < _FREQUENT_SHARE * counts[ids].sum()]] = True
    is_frequent[tokenizer.unk_id] = True
    return {
        CONTENT: is_asked & ~is_frequent & ~is_punctuation,
        FREQUENT: is_frequent,
        PUNCTUATION: is_punctuation,
    }


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(character)[0] in "PS" for character in token)
