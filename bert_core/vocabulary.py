"""The WordPiece vocabulary and its tokenizer: text to token ids and back, as BERT was published.

Ids equal those of the reference implementation on any text, except that literal "[CLS]" or "[MASK]"
in a text stays text and never becomes a special token.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import NFC, BertNormalizer, Normalizer
from tokenizers.normalizers import Sequence as NormalizerSequence
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from bert_core.masking import MaskableVocabulary
from bert_core.tokenizer_files import (
    SAVED_FILES,
    SPECIAL_ROLES,
    SPECIAL_TOKENS,
    AddedToken,
    Normalization,
    read_tokenizer,
)

__all__ = [
    "CONTINUATION", "LONGEST_WORD", "MASK", "SPECIAL_TOKENS", "AddedToken", "Normalization",
    "WordPieceTokenizer", "build_normalizer",
]  # fmt: skip

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS
CONTINUATION: Final = "##"
LONGEST_WORD: Final = 100  # characters; a longer one is [UNK], as published


class WordPieceTokenizer:
    """A vocabulary and the rules to read and write text with it.

    `tokens[i]` is the token with id i. `added_tokens` are matched whole, before a text is split
    into words; those that the vocabulary lacks get the next ids and are listed in `tokens`. Raises
    ValueError unless all five special tokens are there and no token is there twice.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        normalization: Normalization | None = None,
        added_tokens: Sequence[AddedToken] = (),
    ) -> None:
        known = set(tokens)
        new = [token.content for token in added_tokens if token.content not in known]
        self.tokens = (*tokens, *new)
        self.num_words = len(tokens)  # without added tokens that the vocabulary lacks
        self.added_tokens = tuple(added_tokens)
        self.normalization = normalization or Normalization()
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        _check_tokens(self.tokens, self._ids)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[token] for token in SPECIAL_TOKENS
        )
        words = {token: self._ids[token] for token in tokens}
        self._tokenizer = _build_tokenizer(words, self.normalization, self.added_tokens)
        self._maskable: MaskableVocabulary | None = None

    @classmethod
    def from_directory(
        cls, directory: str | Path, *, lowercase: bool | None = None
    ) -> "WordPieceTokenizer":
        """Load `vocab.txt` or `tokenizer.json`, with the settings and added tokens of the folder.

        `lowercase` decides where no file says it or two contradict each other, and must agree with
        them otherwise. Raises ValueError, naming the file, if it does not, where files
        contradict each other or are broken, and for a tokenizer that is not BERT's.
        """
        folder = Path(directory)
        files = read_tokenizer(folder, lowercase)
        try:
            return cls(files.tokens, files.normalization, files.added_tokens)
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from error

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def lowercase(self) -> bool:
        return self.normalization.lowercase

    def token_to_id(self, token: str) -> int:
        """Id of `token`; [UNK]'s for one that the vocabulary lacks."""
        return self._ids.get(token, self.unk_id)

    def id_to_token(self, index: int) -> str:
        """The token with id `index`; raises ValueError if there is none."""
        if not 0 <= index < self.vocab_size:
            raise ValueError(f"a token id must lie in [0, {self.vocab_size}), got {index}")
        return self.tokens[index]

    def encode(self, text: str) -> list[int]:
        """Ids of the tokens of `text`, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, without special tokens; several times faster than one by one."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of the tokens and, of each, the span [begin, end) of characters of `text`."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """A readable text with these tokens; special tokens are left out unless asked for."""
        special = set() if keep_special else self._special_ids()
        tokens = [self.id_to_token(int(index)) for index in ids if int(index) not in special]
        text: str = self._tokenizer.decoder.decode(tokens) if tokens else ""
        return text

    def check_embedding_rows(self, num_rows: int) -> None:
        """Return where an embedding matrix of `num_rows` has a row for every token.

        It may have more, which no text reads. Raises ValueError if it has fewer.
        """
        if num_rows < self.vocab_size:
            raise ValueError(
                f"the embedding matrix must have a row for each of the {self.vocab_size:,} tokens "
                f"of the vocabulary, found {num_rows:,}; the tokenizer is another model's, or its "
                "embeddings were not resized"
            )

    def maskable(self) -> MaskableVocabulary:
        """What masking has to know of this vocabulary."""
        if self._maskable is None:
            self._maskable = self._build_maskable()
        return self._maskable

    def _build_maskable(self) -> MaskableVocabulary:
        is_maskable = np.ones(self.vocab_size, dtype=np.bool_)
        special = self._special_ids()
        is_maskable[list(special - {self.unk_id, self.mask_id})] = False
        return MaskableVocabulary(
            mask_id=self.mask_id,
            is_maskable=is_maskable,
            continues_word=np.array([token.startswith(CONTINUATION) for token in self.tokens]),
            replacement_ids=np.array(
                [
                    index
                    for index, token in enumerate(self.tokens)
                    if index not in special and not _is_reserved(token)
                ]
            ),
        )

    def _special_ids(self) -> set[int]:
        """The ids of the published special tokens and of special added tokens."""
        added = {self._ids[token.content] for token in self.added_tokens if token.special}
        return added | {self._ids[token] for token in SPECIAL_TOKENS}

    def save(self, directory: str | Path, *, max_tokens: int = 512) -> None:
        """Write `vocab.txt`, `tokenizer.json` and what else `AutoTokenizer` needs.

        `max_tokens` is where `AutoTokenizer` cuts texts: what the model can read.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(max_tokens=max_tokens).items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")

    def files(self, *, max_tokens: int = 512) -> dict[str, str]:
        """The files that `save` writes, by name; equal tokenizers give equal texts."""
        # transformers builds a BertTokenizer's rules anew, without NFC; the other class reads all
        # rules from tokenizer.json.
        by_file = self.normalization.compose
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast" if by_file else "BertTokenizer",
            "do_lower_case": self.normalization.lowercase,
            "strip_accents": self.normalization.strip_accents,
            "tokenize_chinese_chars": self.normalization.split_chinese_characters,
            "model_max_length": max_tokens,
            **SPECIAL_ROLES,
        }
        if by_file:
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        whole = self._tokenizer.to_str(pretty=True)
        if self.added_tokens:
            whole = self._with_true_flags(whole, settings)
        listed = "".join(f"{token}\n" for token in self.tokens[: self.num_words])
        texts = listed, whole + "\n", json.dumps(settings, indent=2) + "\n"
        return dict(zip(SAVED_FILES, texts, strict=True))

    def _with_true_flags(self, whole: str, settings: dict[str, Any]) -> str:
        """`tokenizer.json` and the settings, with the flags of added tokens as they were given."""
        values = json.loads(whole)
        flags = {token.content: token.to_dict() for token in self.added_tokens}
        values["added_tokens"] = [
            {**token, **flags.get(token["content"], {})} for token in values["added_tokens"]
        ]
        settings["added_tokens_decoder"] = {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in values["added_tokens"]
        }
        settings["additional_special_tokens"] = [
            token.content for token in self.added_tokens if token.special
        ]
        return json.dumps(values, indent=2, ensure_ascii=False)


def _is_reserved(token: str) -> bool:
    return token in SPECIAL_TOKENS or (token.startswith("[unused") and token.endswith("]"))


def _check_tokens(tokens: tuple[str, ...], ids: dict[str, int]) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(
            f"a vocabulary must hold {', '.join(SPECIAL_TOKENS)}; {', '.join(missing)} not found "
            f"among {len(tokens)} tokens; check that the file is a BERT vocabulary"
        )
    if len(ids) != len(tokens):
        twice = next(token for index, token in enumerate(tokens) if ids[token] != index)
        raise ValueError(f"every token must be listed once, but {twice!r} is there twice")


def _build_tokenizer(
    ids: dict[str, int], normalization: Normalization, added_tokens: Sequence[AddedToken] = ()
) -> Tokenizer:
    """The library's tokenizer for a vocabulary: BERT's normalizer, words, tokens and template."""
    model = WordPiece(
        ids,
        unk_token=UNK,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = build_normalizer(normalization)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder(prefix=CONTINUATION)
    tokenizer.post_processor = TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )
    # In the order of their ids, as the file lists them.
    special = sorted(SPECIAL_TOKENS, key=ids.__getitem__)
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in special])
    tokenizer.encode_special_tokens = True  # "[CLS]" in a text is five characters, not a token
    # The library would then pass over all that is special: to it these are not.
    ordinary = [replace(token, special=False).to_dict() for token in added_tokens]
    tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in ordinary])
    return tokenizer


def build_normalizer(normalization: Normalization) -> Normalizer:
    """BERT's clean-up, Chinese spacing, accents and case, as the settings say, after NFC if so."""
    rules = BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalization.split_chinese_characters,
        strip_accents=normalization.strip_accents,
        lowercase=normalization.lowercase,
    )
    return NormalizerSequence([NFC(), rules]) if normalization.compose else rules
