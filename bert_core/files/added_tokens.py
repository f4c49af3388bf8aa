"""Tokens that were added to a tokenizer: matched whole, before a text is split into words."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from bert_core.files.json_files import entry, read_json, read_optional_json

SPECIAL_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_ROLES: Final = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}
_FLAGS: Final = ("special", "single_word", "lstrip", "rstrip", "normalized")
_LISTS: Final = ("additional_special_tokens", "extra_special_tokens")


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


@dataclass(frozen=True, slots=True)
class _Found:
    """A token, the id that a file gives it, if one does, and that file."""

    token: AddedToken
    index: int | None
    path: Path
    says_flags: bool = True  # False: an older file, which implies them


def read_added_tokens(
    folder: Path, num_tokens: int, ids: Mapping[str, int]
) -> tuple[AddedToken, ...]:
    """The tokens that the files of a tokenizer add, those with ids of their own in that order.

    `ids` are those of the `num_tokens` tokens of the vocabulary. The five special tokens, which
    every tokenizer has, are not among them. Raises ValueError, naming the file, for ids that do not
    go on after the vocabulary's, for files that contradict each other, and for other special tokens
    than the published ones.
    """
    merged: dict[str, _Found] = {}
    for found in _all_found(folder):
        content = found.token.content
        if not content:
            raise ValueError(f"{found.path} must give every added token a text, found an empty one")
        before = merged.get(content)
        merged[content] = found if before is None else _same(before, found)
    tokens = [found for content, found in merged.items() if content not in SPECIAL_TOKENS]
    for found in merged.values():
        wanted = ids.get(found.token.content)
        if wanted is not None and found.index not in (None, wanted):
            raise ValueError(
                f"{found.path} must give {found.token.content!r} the id {wanted} that the "
                f"vocabulary gives it, found {found.index}"
            )
    new = [found for found in tokens if found.token.content not in ids]
    numbered = sorted(
        (each for each in new if each.index is not None), key=lambda each: each.index or 0
    )
    for expected, found in enumerate(numbered, start=num_tokens):
        if found.index != expected:
            raise ValueError(
                f"{found.path} must number the tokens that it adds on from the {num_tokens:,} "
                f"tokens of the vocabulary, found {found.index} for {found.token.content!r} "
                f"instead of {expected}"
            )
    unnumbered = [found for found in new if found.index is None]
    known = [found for found in tokens if found.token.content in ids]
    return tuple(found.token for found in (*known, *numbered, *unnumbered))


def _all_found(folder: Path) -> Iterator[_Found]:
    """What every file says, the file that says most first."""
    settings_path, whole_path = folder / "tokenizer_config.json", folder / "tokenizer.json"
    settings = read_optional_json(settings_path)
    if whole_path.is_file():
        for values in entry(read_json(whole_path), "added_tokens", list, whole_path) or ():
            token = _token(values, whole_path)
            yield _Found(token, _checked_id(values.get("id"), token, whole_path), whole_path)
    decoder = entry(settings, "added_tokens_decoder", dict, settings_path)
    for number, values in (decoder or {}).items():
        token = _token(values, settings_path)
        index = int(number) if number.isdecimal() else number
        yield _Found(token, _checked_id(index, token, settings_path), settings_path)
    map_path, older_path = folder / "special_tokens_map.json", folder / "added_tokens.json"
    special_map = read_optional_json(map_path) if decoder is None else {}
    special = [*_named(settings, settings_path), *_named(special_map, map_path)]
    if older_path.is_file() and decoder is None:
        names = {found.token.content for found in special}
        for content, index in read_json(older_path).items():
            is_special = content in names
            token = AddedToken(content=content, special=is_special, normalized=not is_special)
            yield _Found(token, _checked_id(index, token, older_path), older_path, False)
    yield from special


def _named(values: dict[str, Any], path: Path) -> Iterator[_Found]:
    """Tokens that a file calls special: by a role, such as `bos_token`, or in a list."""
    for key, value in values.items():
        if key.endswith("_token") and isinstance(value, str | dict):
            found = _special(value, path)
            wanted = SPECIAL_ROLES.get(key)
            if wanted is not None and found.token.content != wanted:
                raise ValueError(
                    f"{path} must call the {key} {wanted}, as published, found "
                    f"{found.token.content!r}"
                )
            yield found
        elif key in _LISTS and isinstance(value, list | dict):
            for one in value.values() if isinstance(value, dict) else value:
                yield _special(one, path)
        elif key in _LISTS and value is not None:
            raise ValueError(f"{path} must list tokens as {key}, found {value!r:.80}")


def _special(value: Any, path: Path) -> _Found:
    if isinstance(value, str):
        token = AddedToken(content=value, special=True, normalized=False)
        return _Found(token, None, path, False)
    return _Found(replace(_token(value, path), special=True), None, path, False)


def _token(values: Any, path: Path) -> AddedToken:
    if not isinstance(values, dict) or not isinstance(values.get("content"), str):
        raise ValueError(f"{path} must describe an added token, found {values!r:.80}")
    flags = {name: entry(values, name, bool, path) for name in _FLAGS}
    given = {name: flag for name, flag in flags.items() if flag is not None}
    # The default of the reference.
    normalized = given.pop("normalized", not given.get("special", False))
    return AddedToken(content=values["content"], normalized=normalized, **given)


def _checked_id(index: Any, token: AddedToken, path: Path) -> int:
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ValueError(
            f"{path} must give the added token {token.content!r} an id, found {index!r:.80}"
        )
    return index


def _same(before: _Found, found: _Found) -> _Found:
    """What two files say of one token; raises ValueError if they contradict each other."""
    if before.index is not None and found.index is not None and before.index != found.index:
        raise ValueError(
            f"{before.path} and {found.path.name} must give {found.token.content!r} one id, found "
            f"{before.index} and {found.index}"
        )
    is_published = found.token.content in SPECIAL_TOKENS  # never looked for in a text
    if before.says_flags and found.says_flags and not is_published:
        alike = replace(found.token, special=before.token.special)
        if alike != before.token:
            raise ValueError(
                f"{before.path} and {found.path.name} must say the same of the added token "
                f"{found.token.content!r}, found {before.token} and {found.token}"
            )
    is_special = before.token.special or found.token.special
    first = before if before.says_flags or not found.says_flags else found
    index = before.index if before.index is not None else found.index
    return replace(first, token=replace(first.token, special=is_special), index=index)
