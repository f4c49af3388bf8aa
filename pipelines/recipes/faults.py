"""Errors in settings as sentences, with the valid names that are most similar."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

# Pydantic's sentences begin with the type of the value, and some end in how it was parsed.
_SHOULD: Final = re.compile(r"^(Input|Value|List|Tuple|String) should ")
_PARSED: Final = re.compile(r", (unable to parse|got a number).*")
_OPTION: Final = re.compile(r"'([^']*)'")
_PLAIN_TYPES: Final = {"int", "float", "str", "bool"}  # as members of a union


def explain(
    error: ValidationError, subject: str, settings_type: type[BaseModel] | None = None
) -> str:
    """A validation error of `subject`, one sentence a setting.

    With the type of the settings, an unknown name is followed by similar ones.
    """
    settings = dict(_settings_in(settings_type)) if settings_type else {}
    kinds = set(settings.values())
    by_path: dict[str, list[Any]] = defaultdict(list)
    for fault in error.errors():
        by_path[_path(fault["loc"], kinds)].append(fault)
    return "\n".join(
        _sentence(path, each, subject, settings)
        for path, each in by_path.items()
        # A section is wrong because of something in it, which has a fault of its own.
        if not any(other.startswith(f"{path}.") for other in by_path)
    )


def nearest(name: str, names: Iterable[str], section: str = "", *, cutoff: float = 0.7) -> str:
    """`; did you mean …?` with the names that are spelled like `name`; empty where none is."""
    near = get_close_matches(name, list(names), n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(f'{section}{each}' for each in near)}?" if near else ""


def shortened(value: object) -> str:
    """A value as a sentence may hold it."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sentence(path: str, faults: list[Any], subject: str, settings: Iterable[str]) -> str:
    """What is wrong with one setting: of several types that it may have, the one that fits best."""
    deepest = max(len(fault["loc"]) for fault in faults)
    faults = [fault for fault in faults if len(fault["loc"]) == deepest]
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        near = _nearest_setting(path, settings) or "; see `bertsmith recipes show`"
        return f"{subject} has no setting {path!r}{near}"
    if fault["type"] in ("value_error", "assertion_error"):
        rule = fault["msg"].partition(", ")[2]
    else:
        first, *others = dict.fromkeys(
            _PARSED.sub("", _SHOULD.sub("must ", each["msg"])) for each in faults
        )
        rule = " or ".join([first, *(each.removeprefix("must be ") for each in others)])
    # A check across settings names the values itself; the whole section would not help.
    got = "" if isinstance(fault["input"], Mapping) else f", got {shortened(fault['input'])}"
    context = fault.get("ctx", {})
    options = _OPTION.findall(str(context.get("expected") or context.get("expected_tags")))
    given = context.get("tag") or fault["input"]
    near = nearest(given, options) if isinstance(given, str) else ""
    return f"{subject}: {path}: {rule}{got}{near}" if path else f"{subject}: {rule}{got}{near}"


def _path(place: Iterable[int | str], kinds: set[str]) -> str:
    """The dotted path of pydantic's location, without the members of unions that it tried."""
    head, *parts = [str(part) for part in place] or [""]
    named = (part.isidentifier() or part.isdecimal() for part in parts)
    kept = [
        part
        for part, is_name in zip(parts, named, strict=True)
        if is_name and part not in kinds | _PLAIN_TYPES
    ]
    return ".".join([head, *kept])


def _nearest_setting(path: str, settings: Iterable[str]) -> str:
    """Settings of the same section that are spelled nearly so, or of that name elsewhere."""
    section, _, name = re.sub(r"\.\d+", "", path).rpartition(".")
    start = f"{section}." if section else ""
    siblings = [
        each.removeprefix(start)
        for each in settings
        if each.startswith(start) and "." not in each.removeprefix(start)
    ]
    elsewhere = [each for each in settings if each.endswith(f".{name}")]
    same = f"; did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else ""
    return nearest(name, siblings, start, cutoff=0.85) or same or nearest(name, siblings, start)


def _settings_in(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """The dotted path of every setting, and the kind of its section, if it has one."""
    kind = model.model_fields["kind"].default if "kind" in model.model_fields else ""
    for name, field in model.model_fields.items():
        setting = f"{path}.{name}" if path else name
        yield setting, kind
        for section in _models_in(field.annotation):
            yield from _settings_in(section, setting)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings models that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models_in(each)
