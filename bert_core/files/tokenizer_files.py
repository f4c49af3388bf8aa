"""What lies in the folder of a published tokenizer: its tokens, its rules, its added tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bert_core.files.added_tokens import AddedToken, read_added_tokens
from bert_core.files.json_files import entry, read_json, read_optional_json, read_text
from bert_core.files.tokenizer_rules import check_rules, check_tokenizer_class

VOCABULARY_FILE: Final = "vocab.txt"
_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
SAVED_FILES: Final = (VOCABULARY_FILE, _WHOLE, _SETTINGS)  # what we write
TOKENIZER_FILES: Final = (*SAVED_FILES, "special_tokens_map.json", "added_tokens.json")
# What the settings call it: what `tokenizer.json` does.
_CASE: Final = {
    "do_lower_case": "lowercase", "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """What happens to a text before it is cut into tokens."""

    lowercase: bool = True
    strip_accents: bool | None = None  # None: as published, together with lowercase
    split_chinese_characters: bool = True


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """What the files of a tokenizer say."""

    tokens: tuple[str, ...]  # of the vocabulary, in the order of their ids
    added_tokens: tuple[AddedToken, ...]
    normalization: Normalization


def read_tokenizer(folder: Path, lowercase: bool | None = None) -> TokenizerFiles:
    """What is in `folder`: `vocab.txt` or `tokenizer.json`, and the settings beside them.

    `lowercase` decides where no file says it or two files contradict each other, and must agree
    with them otherwise. Raises ValueError, naming the file, for a tokenizer that follows other
    rules than BERT's, for files that contradict each other, and if no vocabulary is there.
    """
    whole = read_json(folder / _WHOLE) if (folder / _WHOLE).is_file() else None
    settings = read_optional_json(folder / _SETTINGS)
    check_tokenizer_class(folder, settings)
    if whole is not None:
        check_rules(whole, folder / _WHOLE)
    tokens = _tokens(folder, whole)
    ids = {token: index for index, token in enumerate(tokens)}
    added = read_added_tokens(folder, len(tokens), ids)
    return TokenizerFiles(tokens, added, _normalization(folder, settings, whole, lowercase))


def _tokens(folder: Path, whole: dict[str, Any] | None) -> tuple[str, ...]:
    """The tokens in the order of their ids; both files must hold the same where both are there."""
    listed_path = folder / VOCABULARY_FILE
    if whole is None:
        if not listed_path.is_file():
            raise ValueError(f"{folder} has neither vocab.txt nor tokenizer.json; is it complete?")
        return read_tokens(listed_path)
    vocabulary = whole["model"]["vocab"]
    tokens = tuple(sorted(vocabulary, key=vocabulary.__getitem__))
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(
            f"{folder / _WHOLE} must number its {len(tokens):,} tokens from 0 without gaps, "
            "found other ids"
        )
    if listed_path.is_file():
        listed = read_tokens(listed_path)
        entries = entry(whole, "added_tokens", list, folder / _WHOLE) or ()
        added = [each.get("content") for each in entries if isinstance(each, dict)]
        new = tuple(
            content for content in added if isinstance(content, str) and content not in vocabulary
        )
        if listed not in (tokens, tokens + new):
            at = next((i for i, (a, b) in enumerate(zip(listed, tokens, strict=False)) if a != b),
                      min(len(listed), len(tokens)))  # fmt: skip
            raise ValueError(
                f"{listed_path} and tokenizer.json hold different vocabularies: {len(listed):,} "
                f"and {len(tokens):,} tokens that differ from id {at:,} on; remove the file that "
                "is not the model's"
            )
    return tokens


def read_tokens(path: Path) -> tuple[str, ...]:
    """The tokens of a `vocab.txt`, a line each; raises ValueError, naming it, if it holds none.

    Only a line feed ends a line: some vocabularies hold tokens such as U+2028.
    """
    text = read_text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty: it needs a token on each line")
    return tuple(line.rstrip("\r") for line in text.removesuffix("\n").split("\n"))


def _normalization(
    folder: Path, settings: dict[str, Any], whole: dict[str, Any] | None, lowercase: bool | None
) -> Normalization:
    first, second = folder / _SETTINGS, folder / _WHOLE
    rules = (whole or {}).get("normalizer") or {}
    said = (
        (first, {name: entry(settings, name, bool, first) for name in _CASE if name in settings}),
        (second, {name: entry(rules, theirs, bool, second)
                  for name, theirs in _CASE.items() if theirs in rules}),
    )  # fmt: skip
    found: dict[str, bool | None] = {}
    for name in _CASE:
        values = [(path, values[name]) for path, values in said if name in values]
        if name != "strip_accents":  # null says nothing of these
            values = [each for each in values if each[1] is not None]
        if len(values) == 2 and values[0][1] != values[1][1]:
            if name == "do_lower_case" and lowercase is not None:
                values = [(folder, lowercase)]
            else:
                raise ValueError(
                    f"{values[0][0]} and {values[1][0].name} must say the same of {name}, found "
                    f"{values[0][1]} and {values[1][1]}; "
                    + ("say which it is, or " if name == "do_lower_case" else "")
                    + "correct the file that is wrong"
                )
        found[name] = values[0][1] if values else None
    return Normalization(
        lowercase=_case(folder, found["do_lower_case"], lowercase),
        strip_accents=found["strip_accents"],
        split_chinese_characters=found["tokenize_chinese_chars"] is not False,
    )


def _case(folder: Path, said: bool | None, asked: bool | None) -> bool:
    if said is None:
        if asked is None:
            raise ValueError(
                f"{folder} holds a vocabulary but neither tokenizer_config.json nor tokenizer.json "
                "say whether it is uncased; say it (lowercase=True or False in Python, --uncased "
                "or --cased on the command line)"
            )
        return asked
    if asked is not None and asked != said:
        raise ValueError(
            f"the tokenizer in {folder} says lowercase={said}, but lowercase={asked} was asked "
            "for; leave it out or correct the files"
        )
    return said
