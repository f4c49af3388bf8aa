"""BERT's rules as the `tokenizers` library applies them: the one module that knows it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from bert_core.files.added_tokens import SPECIAL_TOKENS, AddedToken
from bert_core.files.tokenizer_files import Normalization

CONTINUATION: Final = "##"
LONGEST_WORD: Final = 100  # characters; a longer one is [UNK], as published
_, _UNK, _CLS, _SEP, _ = SPECIAL_TOKENS


def build_tokenizer(
    ids: dict[str, int], normalization: Normalization, added_tokens: Sequence[AddedToken] = ()
) -> Tokenizer:
    """The library's tokenizer for a vocabulary: BERT's normalizer, words, tokens and template."""
    model = WordPiece(
        ids,
        unk_token=_UNK,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = build_normalizer(normalization)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder(prefix=CONTINUATION)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{_CLS} $A {_SEP}",
        pair=f"{_CLS} $A {_SEP} $B:1 {_SEP}:1",
        special_tokens=[(_CLS, ids[_CLS]), (_SEP, ids[_SEP])],
    )
    # In the order of their ids, as the file lists them.
    special = sorted(SPECIAL_TOKENS, key=ids.__getitem__)
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    tokenizer.encode_special_tokens = True  # "[CLS]" in a text is five characters, not a token
    # The library would then pass over all that is special: to it these are not.
    ordinary = [replace(token, special=False).to_dict() for token in added_tokens]
    tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in ordinary])
    return tokenizer


def build_normalizer(normalization: Normalization) -> BertNormalizer:
    """BERT's clean-up, Chinese spacing, accents and case, as the settings say."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalization.split_chinese_characters,
        strip_accents=normalization.strip_accents,
        lowercase=normalization.lowercase,
    )
