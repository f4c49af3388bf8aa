"""The WordPiece vocabulary and its tokenizer: text to token ids and back, as BERT was published.

Ids equal those of the reference implementation on any text, except that literal "[CLS]" or "[MASK]"
in a text stays text and never becomes a special token.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

from bert_core.files import entry, read_json, read_optional_json, read_text
from bert_core.masking import MaskableVocabulary

SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS
CONTINUATION: Final = "##"
LONGEST_WORD: Final = 100  # characters; a longer one is [UNK], as published

_ROLES: Final = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
_VOCABULARY, _WHOLE, _SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
SAVED_FILES: Final = (_VOCABULARY, _WHOLE, _SETTINGS)  # what we write
TOKENIZER_FILES: Final = (*SAVED_FILES, "special_tokens_map.json", "added_tokens.json")
# Classes whose rules for texts are BERT's: some published BERTs name their descendants' ones.
_CLASSES: Final = frozenset(
    (
        "BertTokenizer", "ConvBertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
        "LayoutLMTokenizer", "MobileBertTokenizer", "RetriBertTokenizer", "SqueezeBertTokenizer",
        "PreTrainedTokenizer", "TokenizersBackend",
    )
)  # fmt: skip
# Settings that change what tokens come out, and their values as published.
_PUBLISHED: Final = {
    "do_basic_tokenize": (True, None), "never_split": ([], None), "auto_map": ({}, None),
}  # fmt: skip
_MODEL: Final = {
    "type": "WordPiece", "unk_token": UNK, "continuing_subword_prefix": CONTINUATION,
    "max_input_chars_per_word": LONGEST_WORD,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """What happens to a text before it is cut into tokens.

    With `compose` a letter and its marks become one character where Unicode has one (form NFC), so
    that both spellings of a word are the same word. Published BERTs do not compose.
    """

    lowercase: bool = True
    strip_accents: bool | None = None  # None: as published, together with lowercase
    split_chinese_characters: bool = True
    compose: bool = False

    @property
    def strips_accents(self) -> bool:
        """Whether accents and all other combining marks are removed."""
        return self.lowercase if self.strip_accents is None else self.strip_accents


class WordPieceTokenizer:
    """A vocabulary and the rules to read and write text with it.

    `tokens[i]` is the token with id i. Raises ValueError unless all five special tokens are there
    and no token is there twice.
    """

    def __init__(self, tokens: Sequence[str], normalization: Normalization | None = None) -> None:
        self.tokens = tuple(tokens)
        self.normalization = normalization or Normalization()
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        _check_tokens(self.tokens, self._ids)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self._ids[token] for token in SPECIAL_TOKENS
        )
        self._special_ids = {self._ids[token] for token in SPECIAL_TOKENS}
        self._tokenizer = _build_tokenizer(self._ids, self.normalization)

    @classmethod
    def from_directory(
        cls, directory: str | Path, *, lowercase: bool | None = None
    ) -> "WordPieceTokenizer":
        """Load `tokenizer.json`, or `vocab.txt` and the settings beside it.

        `lowercase` decides where no file says it or two contradict each other, and must agree with
        them otherwise. Raises ValueError, naming the file, if it does not, where files
        contradict each other or are broken, and for a tokenizer that is not BERT's.
        """
        folder = Path(directory)
        try:
            return cls(*_read_tokenizer(folder, lowercase))
        except ValueError as error:
            where = "" if str(folder) in str(error) else f"{folder}: "
            raise ValueError(f"{where}{error}") from error

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

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
        special = set() if keep_special else self._special_ids
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
        is_maskable = np.ones(self.vocab_size, dtype=np.bool_)
        is_maskable[[self.pad_id, self.cls_id, self.sep_id]] = False
        return MaskableVocabulary(
            mask_id=self.mask_id,
            is_maskable=is_maskable,
            continues_word=np.array([token.startswith(CONTINUATION) for token in self.tokens]),
            replacement_ids=np.array(
                [index for index, token in enumerate(self.tokens) if not _is_reserved(token)]
            ),
        )

    def save(
        self, directory: str | Path, *, max_tokens: int = 512, fills_masks: bool = True
    ) -> None:
        """Write `vocab.txt`, `tokenizer.json` and what else `AutoTokenizer` needs.

        `max_tokens` is where `AutoTokenizer` cuts texts: what the model can read. Without
        `fills_masks` it reads "[MASK]" in a text as six characters, as this class does.
        """
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files(max_tokens=max_tokens, fills_masks=fills_masks).items():
            (folder / name).write_text(content, encoding="utf-8", newline="\n")

    def files(self, *, max_tokens: int = 512, fills_masks: bool = True) -> dict[str, str]:
        """The files that `save` writes, by name; equal tokenizers give equal texts."""
        # transformers rebuilds a BertTokenizer's rules without NFC; the other class reads all
        # rules from tokenizer.json.
        by_file = self.normalization.compose
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast" if by_file else "BertTokenizer",
            "do_lower_case": self.normalization.lowercase,
            "strip_accents": self.normalization.strip_accents,
            "tokenize_chinese_chars": self.normalization.split_chinese_characters,
            "model_max_length": max_tokens,
            **_ROLES,
        }
        if not fills_masks:
            settings["split_special_tokens"] = True
        if by_file:
            settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        return {
            _VOCABULARY: "".join(f"{token}\n" for token in self.tokens),
            _WHOLE: self._tokenizer.to_str(pretty=True) + "\n",
            _SETTINGS: json.dumps(settings, indent=2) + "\n",
        }


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


def _build_tokenizer(ids: dict[str, int], normalization: Normalization) -> Tokenizer:
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


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a `vocab.txt`, a line each; raises ValueError, naming it, if it holds none.

    Only a line feed ends a line: some vocabularies hold tokens such as U+2028.
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has neither vocab.txt nor tokenizer.json; is it complete?")
    text = read_text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty: it needs a token on each line")
    return tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))


def _read_tokenizer(folder: Path, lowercase: bool | None) -> tuple[tuple[str, ...], Normalization]:
    """The tokens and rules of the tokenizer in `folder`."""
    settings, whole, listed = folder / _SETTINGS, folder / _WHOLE, folder / _VOCABULARY
    values = read_optional_json(settings)
    _check_settings(folder, values)
    cases = [entry(values, "do_lower_case", bool, settings)]
    if whole.is_file():
        tokens, rules = _read_whole(whole)
        if listed.is_file() and read_tokens(listed)[: len(tokens)] != tokens:
            raise ValueError(
                f"{listed} and tokenizer.json hold different vocabularies; remove the file that is "
                "not the model's"
            )
        cases.append(rules["lowercase"])
        accents, chinese = rules["strip_accents"], rules["handle_chinese_chars"]
        compose = rules["compose"]
    else:
        tokens, compose = read_tokens(listed), False
        _check_nothing_is_added(folder, _added_in_older_files(folder, values))
        accents = entry(values, "strip_accents", bool, settings)
        chinese = entry(values, "tokenize_chinese_chars", bool, settings)
    normalization = Normalization(
        lowercase=_case(folder, cases, lowercase),
        strip_accents=accents,
        split_chinese_characters=chinese is not False,
        compose=compose,
    )
    return tokens, normalization


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse another class of tokenizer, and settings that change the rules."""
    config = folder / "config.json"
    for path, values in ((folder / _SETTINGS, settings), (config, read_optional_json(config))):
        name = entry(values, "tokenizer_class", str, path)
        if name is not None and name.removesuffix("Fast") not in _CLASSES:
            raise ValueError(
                f"{path} names the tokenizer {name}, which has other rules than BERT's and cannot "
                "be read here"
            )
    for key, published in _PUBLISHED.items():
        if settings.get(key) not in published:
            raise ValueError(
                f"{folder / _SETTINGS} says {key}={settings[key]!r:.80}, which is not read here; "
                f"as published it is {published[0]!r}"
            )
    for role, token in _ROLES.items():
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if content not in (None, token):
            raise ValueError(
                f"{folder / _SETTINGS} must call the {role} {token}, as published, got {content!r}"
            )


def _read_whole(path: Path) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The tokens of a `tokenizer.json` in the order of their ids, and how it normalizes."""
    read_json(path)  # raises where it is none
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no narrower one
        raise ValueError(f"{path} is no tokenizer ({error}); is it complete?") from error
    tokenizer.no_padding()  # how a library calls it, and no rule for texts
    tokenizer.no_truncation()
    parts = json.loads(tokenizer.to_str())
    rules, vocabulary = parts["normalizer"] or {}, parts["model"].pop("vocab")
    steps = rules.get("normalizers") or [rules]
    compose = len(steps) == 2 and steps[0] == {"type": "NFC"}
    rules = {**steps[-1], "compose": compose}
    pairs: tuple[list[str] | None, ...] = (None, [])
    encoded = [tokenizer.encode([], pair, is_pretokenized=True) for pair in pairs]
    templates = [(each.tokens, each.type_ids) for each in encoded]
    published = [([CLS, SEP], [0, 0]), ([CLS, SEP, SEP], [0, 0, 1])]
    if (
        parts["model"] != _MODEL
        or parts["pre_tokenizer"] != {"type": "BertPreTokenizer"}
        or rules.get("type") != "BertNormalizer"
        or not rules["clean_text"]
        or len(steps) != 1 + compose
        # A file without a template leaves it to BERT.
        or (tokenizer.post_processor is not None and templates != published)
    ):
        raise ValueError(
            f"{path} must have the rules of BERT's tokenizer as published: BertNormalizer, "
            "alone or after NFC, BertPreTokenizer, WordPiece, [CLS] and [SEP] around all texts"
        )
    _check_nothing_is_added(path, [each["content"] for each in parts["added_tokens"]])
    tokens = {index: token for token, index in vocabulary.items()}
    if not tokens or set(tokens) != set(range(len(vocabulary))):
        raise ValueError(f"{path} must number its {len(vocabulary):,} tokens from 0 without gaps")
    return tuple(tokens[index] for index in range(len(tokens))), rules


def _added_in_older_files(folder: Path, settings: dict[str, Any]) -> list[Any]:
    """What files beside a `vocab.txt` add to its tokens."""
    texts: list[Any] = list(read_optional_json(folder / "added_tokens.json"))
    for values in (settings, read_optional_json(folder / "special_tokens_map.json")):
        texts += [value for key, value in values.items() if key.endswith("_token")]
        texts += values.get("additional_special_tokens") or ()
    return [each.get("content") if isinstance(each, dict) else each for each in texts]


def _check_nothing_is_added(path: Path, tokens: Iterable[Any]) -> None:
    added = [each for each in tokens if isinstance(each, str) and each not in (*SPECIAL_TOKENS, "")]
    if added:
        raise ValueError(
            f"{path} adds tokens such as {added[0]!r} to the vocabulary, which are not read here; "
            "take a tokenizer without any"
        )


def _case(folder: Path, cases: list[bool | None], asked: bool | None) -> bool:
    """Whether the vocabulary is uncased, as the files say, or else `asked`."""
    stated = {case for case in cases if case is not None}
    if asked is not None and (not stated or asked in stated):
        return asked
    if asked is None and len(stated) == 1:
        return stated.pop()
    names = (f"{_SETTINGS} do_lower_case", f"{_WHOLE} lowercase")
    lines = [f"{name}={case}" for name, case in zip(names, cases, strict=False)]
    raise ValueError(
        f"{folder} must say whether its vocabulary is uncased, but says {', '.join(lines)}; "
        + (
            "say it (lowercase=True or False in Python, --uncased or --cased on the command line)"
            if asked is None
            else f"lowercase={asked} was asked for: leave it out, or correct the files"
        )
    )
