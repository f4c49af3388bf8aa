"""Errors in settings as sentences, with the valid names that are most similar."""

import re
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

# Pydantic's sentences begin with the type of the value, and some end in how it was parsed.
_SHOULD: Final = re.compile(r"^(Input|Value|List|Tuple|String) should ")
_PARSED: Final = re.compile(r", (unable to parse|got a number).*")
_OPTION: Final = re.compile(r"'([^']*)'")


def explain(
    error: ValidationError, subject: str, settings_type: type[BaseModel] | None = None
) -> str:
    """A validation error of `subject`, one sentence a setting.

    With the type of the settings, an unknown name is followed by similar ones.
    """
    faults = error.errors()
    by_path: dict[str, list[Any]] = defaultdict(list)
    for fault in faults:
        place = fault["loc"]
        if sum(other["loc"][: len(place)] == place for other in faults) > 1:
            continue  # a section is wrong because of something in it, which has a fault of its own
        path, _ = _walk(place, settings_type)
        by_path[path].append(fault)
    return "\n".join(
        _sentence(path, each, subject, settings_type) for path, each in by_path.items()
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
        rule = fault["msg"].partition(", ")[2]
    else:
        first, *others = dict.fromkeys(
            _PARSED.sub("", _SHOULD.sub("must ", each["msg"])) for each in faults
        )
        rule = " or ".join([first, *(each.removeprefix("must be ") for each in others)])
    # A check across settings names the values itself; the whole section would not help.
    got = "" if isinstance(fault["input"], Mapping) else f", got {shortened(fault['input'])}"
    where = f"{subject}: {path}: " if path else f"{subject}: "
    return f"{where}{rule}{got}{_nearest_option(fault)}"


def _nearest_option(fault: Any) -> str:
    context = fault.get("ctx", {})
    given = context.get("tag") or fault["input"]
    options = _OPTION.findall(str(context.get("expected") or context.get("expected_tags")))
    return nearest(given, options) if isinstance(given, str) else ""


def _nearest_setting(
    path: str, place: tuple[int | str, ...], settings_type: type[BaseModel] | None
) -> str:
    """Settings of the same section that are spelled nearly so, or of that name elsewhere."""
    if settings_type is None:
        return ""
    section, _, name = path.rpartition(".")
    start = f"{section}." if section else ""
    _, models = _walk(place[:-1], settings_type)
    names = {field for each in models for field in each.model_fields}
    elsewhere = [each for each in _all_settings(settings_type) if each.endswith(f".{name}")]
    same = f"; did you mean {' or '.join(elsewhere[:3])}?" if elsewhere else ""
    return nearest(name, names, start, cutoff=0.85) or same or nearest(name, names, start)


def _walk(
    place: Iterable[int | str], settings_type: type[BaseModel] | None
) -> tuple[str, list[type[BaseModel]]]:
    """The dotted path of pydantic's location, and the settings models that may be there.

    Pydantic's location also names the member of a union that it tried: no part of the path.
    """
    if settings_type is None:
        return ".".join(map(str, place)), []
    path: list[str] = []
    models = [settings_type]
    for part in place:
        fields = [each.model_fields[str(part)] for each in models if part in each.model_fields]
        of_kind = [each for each in models if _kind_of(each) == part]
        if isinstance(part, int):
            path.append(str(part))
        elif fields:
            path.append(part)
            models = [model for field in fields for model in _models_in(field.annotation)]
        elif of_kind:
            models = of_kind
        else:
            path += [part] if models else []  # an unknown name, or one of several types
            break
    return ".".join(path), models


def _kind_of(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("kind")
    return None if field is None else field.default


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The settings models that a field's type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Annotated, Union, types.UnionType, tuple, list):
        for each in get_args(annotation):
            yield from _models_in(each)


def _all_settings(model: type[BaseModel], path: str = "") -> Iterator[str]:
    """The dotted path of every setting."""
    for name, field in model.model_fields.items():
        setting = f"{path}.{name}" if path else name
        yield setting
        for section in _models_in(field.annotation):
            yield from _all_settings(section, setting)
