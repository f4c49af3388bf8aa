"""The folder of a published tokenizer: its tokens, its rules, its added tokens.

`tokenizer.json` says everything and is read alone where it is there. Without it there are
`vocab.txt` and the settings of `tokenizer_config.json`.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bert_core.files import entry, read_json, read_optional_json, read_text

SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_ROLES: Final = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
VOCABULARY_FILE: Final = "vocab.txt"
_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
SAVED_FILES: Final = (VOCABULARY_FILE, _WHOLE, _SETTINGS)  # what we write
_OLDER_FILES: Final = ("special_tokens_map.json", "added_tokens.json")
TOKENIZER_FILES: Final = (*SAVED_FILES, *_OLDER_FILES)

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
    "do_basic_tokenize": (True, None),
    "never_split": ([], None),
    "split_special_tokens": (False, None),
    "wordpieces_prefix": ("##", None),
    "auto_map": ({}, None),
    "word_tokenizer_type": ("basic", None),  # MeCab and others cut Japanese into words first
    "subword_tokenizer_type": ("wordpiece", None),
}
_MODEL: Final = {
    "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}  # fmt: skip
_CLS: Final = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
_TEMPLATE: Final = [
    _CLS, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
    {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched in a text as a whole.

    `normalized` tokens are normalized and matched in the normalized text, others in the original;
    `single_word` ones only where no letter or digit is next to them; `lstrip` and `rstrip` include
    the white space next to them. `special` ones, such as who speaks, are not part of the text:
    decoding and masking skip them.
    """

    content: str
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON."""
        return asdict(self)


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


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of a tokenizer say."""

    tokens: tuple[str, ...]  # of the vocabulary, in the order of their ids
    added_tokens: tuple[AddedToken, ...]
    normalization: Normalization


def read_tokenizer(folder: Path, lowercase: bool | None = None) -> TokenizerFiles:
    """What is in `folder`: `tokenizer.json`, or `vocab.txt` and the settings beside it.

    `lowercase` decides where no file says it or two files contradict each other, and must agree
    with them otherwise. Raises ValueError, naming the file, for a tokenizer that follows other
    rules than BERT's, for files that contradict each other, and if no vocabulary is there.
    """
    settings = read_optional_json(folder / _SETTINGS)
    _check_settings(folder, settings)
    cases = {_SETTINGS: entry(settings, "do_lower_case", bool, folder / _SETTINGS)}
    path = folder / _WHOLE
    if path.is_file():
        whole = read_json(path)
        tokens = _checked_tokens(whole, path)
        listed = folder / VOCABULARY_FILE
        if listed.is_file() and read_tokens(listed)[: len(tokens)] != tokens:
            raise ValueError(
                f"{listed} and tokenizer.json hold different vocabularies; remove the file that is "
                "not the model's"
            )
        added = _added_tokens(whole, tokens, path)
        rules, compose = _normalizer(whole, path)
        names = ("strip_accents", "handle_chinese_chars")
        cases[_WHOLE] = entry(rules, "lowercase", bool, path)
    else:
        _check_nothing_is_added(folder, settings)
        tokens, added = read_tokens(folder / VOCABULARY_FILE), ()
        rules, compose = settings, False
        names = ("strip_accents", "tokenize_chinese_chars")
        path = folder / _SETTINGS
    accents, chinese = (entry(rules, name, bool, path) for name in names)
    normalization = Normalization(
        lowercase=_case(folder, cases, lowercase),
        strip_accents=accents,
        split_chinese_characters=chinese is not False,
        compose=compose,
    )
    return TokenizerFiles(tokens, added, normalization)


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


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse another class of tokenizer, and settings that change the rules."""
    for path, values in (
        (folder / _SETTINGS, settings),
        (folder / "config.json", read_optional_json(folder / "config.json")),
    ):
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
    for role, token in SPECIAL_ROLES.items():
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if content not in (None, token):
            raise ValueError(
                f"{folder / _SETTINGS} must call the {role} {token}, as published, got {content!r}"
            )


def _check_nothing_is_added(folder: Path, settings: dict[str, Any]) -> None:
    """Without `tokenizer.json` no file says how a token that was added is matched."""
    texts = []
    for values in (settings, *(read_optional_json(folder / name) for name in _OLDER_FILES)):
        for key, value in values.items():
            if key in ("additional_special_tokens", "extra_special_tokens"):
                texts += list(value.values() if isinstance(value, dict) else value or ())
            elif key == "added_tokens_decoder" or key.endswith("_token"):
                texts += list(value.values()) if key == "added_tokens_decoder" else [value]
            elif isinstance(value, int) and not isinstance(value, bool) and values is not settings:
                texts.append(key)
    contents = [text.get("content") if isinstance(text, dict) else text for text in texts]
    added = sorted({str(text) for text in contents if text and text not in SPECIAL_TOKENS})
    if added:
        raise ValueError(
            f"{folder} adds tokens such as {added[0]!r} and has no tokenizer.json, which says how "
            "they are matched; write one with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )


def _checked_tokens(whole: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The tokens of a `tokenizer.json` in the order of their ids, its rules being BERT's."""
    model = entry(whole, "model", dict, path) or {}
    for name, published in _MODEL.items():
        if model.get(name, published) != published:
            raise ValueError(
                f"{path} must hold BERT's WordPiece model, got {name}={model[name]!r:.80} instead "
                f"of {published!r}"
            )
    words = entry(whole, "pre_tokenizer", dict, path) or {}
    if words.get("type") != "BertPreTokenizer":
        raise ValueError(f"{path} must split words by BertPreTokenizer, got {words.get('type')}")
    _check_template(entry(whole, "post_processor", dict, path), path)
    vocabulary = entry(model, "vocab", dict, path) or {}
    tokens = {index: token for token, index in vocabulary.items()}
    if not tokens or len(tokens) < len(vocabulary) or set(tokens) != set(range(len(tokens))):
        raise ValueError(f"{path} must number its {len(vocabulary):,} tokens from 0 without gaps")
    return tuple(tokens[index] for index in range(len(tokens)))


def _normalizer(whole: dict[str, Any], path: Path) -> tuple[dict[str, Any], bool]:
    """BERT's rules, and whether a text is brought into NFC before them."""
    rules = entry(whole, "normalizer", dict, path) or {}
    steps = rules.get("normalizers") if rules.get("type") == "Sequence" else None
    compose = isinstance(steps, list) and len(steps) == 2 and steps[0] == {"type": "NFC"}
    if compose and isinstance(steps, list) and isinstance(steps[1], dict):
        rules = steps[1]
    if rules.get("type") != "BertNormalizer" or rules.get("clean_text", True) is not True:
        raise ValueError(
            f"{path} must normalize by BertNormalizer with clean_text, alone or after NFC, got "
            f"{rules.get('type')}"
        )
    return rules, compose


def _check_template(processor: dict[str, Any] | None, path: Path) -> None:
    """A file without one leaves it to BERT, which puts [CLS] and [SEP] around a text."""
    if processor is None:
        return
    if processor.get("type") == "TemplateProcessing":
        is_published = (processor.get("single"), processor.get("pair")) == (
            _TEMPLATE[:3], _TEMPLATE,
        )  # fmt: skip
    else:
        ends = [str(processor.get(name)) for name in ("cls", "sep")]
        is_published = processor.get("type") == "BertProcessing" and all(
            token in end for token, end in zip(("[CLS]", "[SEP]"), ends, strict=True)
        )
    if not is_published:
        raise ValueError(
            f"{path} must put [CLS] and [SEP] around texts and pairs as BERT does, got another "
            f"{processor.get('type')}"
        )


def _added_tokens(
    whole: dict[str, Any], tokens: tuple[str, ...], path: Path
) -> tuple[AddedToken, ...]:
    """Those beside the five special ones, that the vocabulary has first, then in order of ids."""
    ids = {token: index for index, token in enumerate(tokens)}
    numbered: list[tuple[int, AddedToken]] = []
    for values in entry(whole, "added_tokens", list, path) or ():
        try:
            index = values["id"]
            token = AddedToken(**{key: values[key] for key in values if key != "id"})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} describes no added token: {values!r:.80}") from error
        if not token.content or ids.get(token.content, index) != index:
            raise ValueError(f"{path} gives the token {token.content!r} another id, {index}")
        if token.content not in SPECIAL_TOKENS:
            numbered.append((index, token))
    new = sorted(
        (each for each in numbered if each[1].content not in ids), key=lambda each: each[0]
    )
    if [index for index, _ in new] != list(range(len(tokens), len(tokens) + len(new))):
        raise ValueError(
            f"{path} must number the tokens that it adds on from the {len(tokens):,} tokens of the "
            f"vocabulary, got {[index for index, _ in new]!r:.80}"
        )
    known = [token for _, token in numbered if token.content in ids]
    return (*known, *(token for _, token in new))


def _case(folder: Path, cases: dict[str, bool | None], asked: bool | None) -> bool:
    """Whether the vocabulary is uncased, as the files say, or else `asked`."""
    stated = {case for case in cases.values() if case is not None}
    if len(stated) == 1:
        (case,) = stated
        if asked is not None and asked != case:
            raise ValueError(
                f"the tokenizer in {folder} says lowercase={case}, but lowercase={asked} was asked "
                "for; leave it out or correct the files"
            )
        return case
    if asked is None and stated:
        raise ValueError(
            f"{folder}: {_SETTINGS} says do_lower_case={cases[_SETTINGS]}, and {_WHOLE} "
            f"lowercase={cases[_WHOLE]}; say which is right (lowercase=True or False in Python, "
            "--uncased or --cased on the command line)"
        )
    if asked is None:
        raise ValueError(
            f"{folder} holds a vocabulary but neither tokenizer_config.json nor tokenizer.json "
            "say whether it is uncased; say it (lowercase=True or False in Python, --uncased "
            "or --cased on the command line)"
        )
    return asked
