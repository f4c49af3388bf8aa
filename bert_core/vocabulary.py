"""The WordPiece vocabulary and its tokenizer: text to piece ids and back, as BERT was published.

The one module that knows the `tokenizers` library. Ids equal those of the reference implementation
on any text, except that literal "[CLS]" or "[MASK]" in a text stays text and never becomes a
special token.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from bert_core.files.tokenizer_files import Normalization, read_normalization, read_pieces
from bert_core.masking import MaskableVocabulary

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES: Final = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION: Final = "##"
LONGEST_WORD: Final = 100  # characters; a longer one is [UNK], as published


class WordPieceTokenizer:
    """A vocabulary and the rules to read and write text with it.

    `pieces[i]` is the piece with id i. Raises ValueError unless all five special pieces are there
    and no piece twice.
    """

    def __init__(self, pieces: Sequence[str], normalization: Normalization | None = None) -> None:
        self.pieces = tuple(pieces)
        self.normalization = normalization or Normalization()
        self._ids = {piece: index for index, piece in enumerate(self.pieces)}
        _check_pieces(self.pieces, self._ids)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[piece] for piece in SPECIAL_PIECES
        )
        self._tokenizer = build_tokenizer(self._ids, self.normalization)
        self._maskable: MaskableVocabulary | None = None

    @classmethod
    def from_directory(
        cls, directory: str | Path, *, lowercase: bool | None = None
    ) -> "WordPieceTokenizer":
        """Load `vocab.txt` (or `tokenizer.json` alone), with the settings that lie beside it.

        Settings come from `tokenizer_config.json`, else from `tokenizer.json`; `lowercase` decides
        where both are missing and must agree where they are not. Raises ValueError where it does
        not, or where the folder holds no WordPiece vocabulary.
        """
        folder = Path(directory)
        pieces, normalization = read_pieces(folder), read_normalization(folder)
        if normalization is None:
            if lowercase is None:
                raise ValueError(
                    f"{folder} holds a vocabulary but neither tokenizer_config.json nor "
                    "tokenizer.json; say with lowercase=True or False whether it is uncased"
                )
            normalization = Normalization(lowercase=lowercase)
        elif lowercase is not None and lowercase != normalization.lowercase:
            raise ValueError(
                f"the tokenizer in {folder} says lowercase={normalization.lowercase}, "
                f"but lowercase={lowercase} was asked for; leave it out or mend the files"
            )
        return cls(pieces, normalization)

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    @property
    def lowercase(self) -> bool:
        return self.normalization.lowercase

    def piece_to_id(self, piece: str) -> int:
        """Id of `piece`; [UNK]'s for one that the vocabulary lacks."""
        return self._ids.get(piece, self.unk_id)

    def id_to_piece(self, index: int) -> str:
        """The piece with id `index`; raises ValueError where there is none."""
        if not 0 <= index < self.vocab_size:
            raise ValueError(f"a piece id must lie in [0, {self.vocab_size}), got {index}")
        return self.pieces[index]

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of every text, without special tokens; several times faster than one by one."""
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of the pieces and, of each, the span [begin, end) of characters of `text`."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """A readable text with these pieces; special tokens are left out unless asked for."""
        special = set() if keep_special else {self._ids[piece] for piece in SPECIAL_PIECES}
        pieces = [self.id_to_piece(int(index)) for index in ids if int(index) not in special]
        text: str = self._tokenizer.decoder.decode(pieces) if pieces else ""
        return text

    def maskable(self) -> MaskableVocabulary:
        """What masking has to know of this vocabulary."""
        if self._maskable is None:
            self._maskable = self._build_maskable()
        return self._maskable

    def _build_maskable(self) -> MaskableVocabulary:
        is_maskable = np.ones(self.vocab_size, dtype=np.bool_)
        is_maskable[[self.pad_id, self.cls_id, self.sep_id]] = False
        return MaskableVocabulary(
            mask_id=self.mask_id,
            is_maskable=is_maskable,
            continues_word=np.array([piece.startswith(CONTINUATION) for piece in self.pieces]),
            replacement_ids=np.array(
                [index for index, piece in enumerate(self.pieces) if not _is_reserved(piece)]
            ),
        )

    def save(self, directory: str | Path, *, max_tokens: int = 512) -> None:
        """Write `vocab.txt`, `tokenizer.json` and what `AutoTokenizer` needs beside them.

        `max_tokens` is where `AutoTokenizer` is to cut texts: what the model can read.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(max_tokens=max_tokens).items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")

    def files(self, *, max_tokens: int = 512) -> dict[str, str]:
        """The files that `save` writes, by name; equal tokenizers give equal texts."""
        settings = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.normalization.lowercase,
            "strip_accents": self.normalization.strip_accents,
            "tokenize_chinese_chars": self.normalization.split_chinese_characters,
            "model_max_length": max_tokens,
            **{f"{piece.strip('[]').lower()}_token": piece for piece in SPECIAL_PIECES},
        }
        return {
            "vocab.txt": "".join(f"{piece}\n" for piece in self.pieces),
            "tokenizer.json": self._tokenizer.to_str(pretty=True) + "\n",
            "tokenizer_config.json": json.dumps(settings, indent=2) + "\n",
        }


def build_tokenizer(ids: dict[str, int], normalization: Normalization) -> Tokenizer:
    """The library's tokenizer for a vocabulary: BERT's normalizer, words, pieces and template."""
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
    special = sorted(SPECIAL_PIECES, key=ids.__getitem__)
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in special])
    tokenizer.encode_special_tokens = True  # "[CLS]" in a text is five characters, not a token
    return tokenizer


def build_normalizer(normalization: Normalization) -> BertNormalizer:
    """BERT's clean-up, Chinese spacing, accents and case, as the settings say."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=normalization.split_chinese_characters,
        strip_accents=normalization.strip_accents,
        lowercase=normalization.lowercase,
    )


def _is_reserved(piece: str) -> bool:
    return piece in SPECIAL_PIECES or (piece.startswith("[unused") and piece.endswith("]"))


def _check_pieces(pieces: tuple[str, ...], ids: dict[str, int]) -> None:
    missing = [piece for piece in SPECIAL_PIECES if piece not in ids]
    if missing:
        raise ValueError(
            f"a vocabulary must hold {', '.join(SPECIAL_PIECES)}; {', '.join(missing)} not found "
            f"among {len(pieces)} pieces; check that the file is a BERT vocabulary"
        )
    if len(ids) != len(pieces):
        twice = next(piece for index, piece in enumerate(pieces) if ids[piece] != index)
        raise ValueError(f"every piece must be listed once, but {twice!r} is there twice")
