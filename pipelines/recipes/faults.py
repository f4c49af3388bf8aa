"""Errors in settings as plain sentences, with the valid names that are most similar."""

import re
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

# Pydantic's types of errors in plain words.
_MUST: Final = {
    "bool_parsing": "be true or false",
    "bool_type": "be true or false",
    "dict_type": "be a section with settings of its own",
    "finite_number": "be a finite number",
    "float_parsing": "be a number",
    "float_type": "be a number",
    "greater_than": "be greater than {gt}",
    "greater_than_equal": "be at least {ge}",
    "int_from_float": "be a whole number",
    "int_parsing": "be a whole number",
    "int_parsing_size": "be a smaller whole number",
    "int_type": "be a whole number",
    "less_than": "be less than {lt}",
    "less_than_equal": "be at most {le}",
    "list_type": "be a list",
    "missing": "be given",
    "model_attributes_type": "be a section with settings of its own",
    "model_type": "be a section with settings of its own",
    "none_required": "be empty",
    "string_pattern_mismatch": "fit the pattern {pattern}",
    "string_too_long": "have at most {max_length} characters",
    "string_type": "be a text",
    "tuple_type": "be a list",
    "union_tag_not_found": "say its {discriminator}",
}
_COUNTED: Final = {
    "string_too_short": ("min_length", "have at least", "character"),
    "too_long": ("max_length", "have at most", "entry", "entries"),
    "too_short": ("min_length", "have at least", "entry", "entries"),
}
_OPTION: Final = re.compile(r"'([^']*)'")


def explain(
    error: ValidationError, subject: str, settings_type: type[BaseModel] | None = None
) -> str:
    """A validation error of `subject`, one sentence a fault.

    With the type of the settings, an unknown name is followed by similar ones.
    """
    faults = error.errors()
    places = [fault["loc"] for fault in faults]
    gathered: dict[str, list[Any]] = defaultdict(list)
    for fault in faults:
        place = fault["loc"]
        if sum(other[: len(place)] == place for other in places) > 1:
            continue  # a section is wrong because of something in it, which has a fault of its own
        path, _ = _walk(place, settings_type)
        gathered[path].append(fault)
    return "\n".join(
        _sentence(path, each, subject, settings_type) for path, each in gathered.items()
    )


def nearest(name: str, names: Iterable[str], section: str = "", *, cutoff: float = 0.7) -> str:
    """`; did you mean …?` with the names that are spelled like `name`; empty where none is."""
    near = get_close_matches(name, list(names), n=3, cutoff=cutoff)
    return f"; did you mean {' or '.join(f'{section}{each}' for each in near)}?" if near else ""


def shortened(value: object) -> str:
    """A value as a sentence may hold it."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sentence(
    path: str, faults: list[Any], subject: str, settings_type: type[BaseModel] | None
) -> str:
    """What is wrong with one setting: of several types that it may have, the one that fits best."""
    deepest = max(len(fault["loc"]) for fault in faults)
    faults = [fault for fault in faults if len(fault["loc"]) == deepest]
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        near = _nearest_setting(path, fault["loc"], settings_type)
        return f"{subject} has no setting {path!r}{near or '; see `bertsmith recipes show`'}"
    if fault["type"] in ("value_error", "assertion_error"):
        must = fault["msg"].partition(", ")[2]
    else:
        first, *others = dict.fromkeys(_must(each) for each in faults)
        must = " or ".join(["must " + first, *(each.removeprefix("be ") for each in others)])
    # A check across fields says itself what it found; the whole section would not help.
    found = "" if isinstance(fault["input"], Mapping) else f", got {shortened(fault['input'])}"
    near = _nearest_option(fault)
    return f"{subject}: {path}: {must}{found}{near}" if path else f"{subject}: {must}{near}"


def _must(fault: Any) -> str:
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _COUNTED:
        name, verb, one, *many = _COUNTED[kind]
        count = context[name]
        return f"{verb} {count} {one if count == 1 else (many or [f'{one}s'])[0]}"
    options = _options(fault)
    if options:
        return f"be one of {', '.join(options)}" if len(options) > 1 else f"be {options[0]}"
    if kind in _MUST:
        return _MUST[kind].format(**{name: _bound(value) for name, value in context.items()})
    return str(fault["msg"]).removeprefix("Input should ").removeprefix("Value should ")


def _bound(value: Any) -> str:
    """A bound as a person would write it: 1 for 1.0."""
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value).strip("'")


def _options(fault: Any) -> list[str]:
    """What may be chosen, where there is a choice."""
    key = {"literal_error": "expected", "union_tag_invalid": "expected_tags"}.get(fault["type"])
    return _OPTION.findall(fault["ctx"][key]) if key else []


def _nearest_option(fault: Any) -> str:
    given = fault.get("ctx", {}).get("tag") or fault["input"]
    return nearest(given, _options(fault)) if isinstance(given, str) else ""


def _nearest_setting(
    path: str, place: tuple[int | str, ...], settings_type: type[BaseModel] | None
) -> str:
    """Settings of the same section that are spelled nearly so, or of that name elsewhere."""
    if settings_type is None:
        return ""
    section, _, name = path.rpartition(".")
    start = f"{section}." if section else ""
    _, types_there = _walk(place[:-1], settings_type)
    names = {field for each in types_there for field in each.model_fields}
    elsewhere = [each for each in _all_settings(settings_type) if each.endswith(f".{name}")]
    same = f"; did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else ""
    return nearest(name, names, start, cutoff=0.85) or same or nearest(name, names, start)


def _walk(
    place: Iterable[int | str], settings_type: type[BaseModel] | None
) -> tuple[str, list[type[BaseModel]]]:
    """The dotted path of pydantic's location, and the settings models that may be there.

    Pydantic's location also names the kind of a union that it tried: no part of the path.
    """
    if settings_type is None:
        return ".".join(map(str, place)), []
    path: list[str] = []
    here = [settings_type]
    for part in place:
        kinds = [each for each in here if _kind_of(each) == part]
        fields = [each.model_fields[str(part)] for each in here if part in each.model_fields]
        if isinstance(part, int):
            path.append(str(part))
        elif fields:
            path.append(part)
            here = [model for field in fields for model in _models_in(field.annotation)]
        elif kinds:
            here = kinds
        else:
            path += [part] if here else []  # a name that is none, or one of several types
            break
    return ".".join(path), here


def _kind_of(settings_type: type[BaseModel]) -> Any:
    field = settings_type.model_fields.get("kind")
    return None if field is None else field.default


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings models that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        for each in get_args(annotation):
            yield from _models_in(each)


def _all_settings(settings_type: type[BaseModel], path: str = "") -> Iterator[str]:
    """The dotted path of every setting."""
    for name, field in settings_type.model_fields.items():
        here = f"{path}.{name}" if path else name
        yield here
        for model in _models_in(field.annotation):
            yield from _all_settings(model, here)
