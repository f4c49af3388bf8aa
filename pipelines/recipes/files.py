"""Reading a recipe: a preset or a file, values by dotted path, and what is wrong with one."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pipelines.errors import UserError, nearest
from pipelines.recipes.recipe import Recipe

_PRESETS = files("pipelines.recipes") / "presets"


def preset_names() -> list[str]:
    """Names of the recipes that come with Bertsmith."""
    names = (item.name for item in _PRESETS.iterdir())
    return sorted(name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """The YAML of a preset."""
    return (_PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def read_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a preset or a YAML file, with `dotted.path=value` overrides.

    Raises UserError, one sentence a fault.
    """
    return _validated(_read_source(source), overrides, f"recipe {source!r}")


def completed(given: Recipe, base: Mapping[str, Any], overrides: Sequence[str] = ()) -> Recipe:
    """What was set of `given` over the values of `base`, and `overrides` over both.

    `base` are `Settings.values`, secrets and all. A source of another kind replaces the base's as a
    whole, and so does every list. Raises UserError, one sentence a fault.
    """
    values = _merged(deepcopy(dict(base)), given.values(only_what_was_set=True))
    return _validated(values, overrides, "the recipe")


def flattened(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of every single value; lists and empty sections are values."""
    for key, value in values.items():
        here = f"{path}.{key}" if path else key
        if isinstance(value, Mapping) and value:
            yield from flattened(value, here)
        else:
            yield here, value


def differences(recipe: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Every value of `recipe`, by dotted path, that is not that of `base`."""
    missing, usual = object(), dict(flattened(base))
    return {path: value for path, value in flattened(recipe) if usual.get(path, missing) != value}


def _validated(values: dict[str, Any], overrides: Sequence[str], subject: str) -> Recipe:
    for override in overrides:
        _apply_override(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(explain(error, subject, Recipe)) from None


def _merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `given` over those of `base`, section by section."""
    result = dict(base)
    for key, value in given.items():
        before = result.get(key)
        result[key] = value
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            kind = before.get("kind")
            if value.get("kind", kind) == kind:
                result[key] = _merged(before, value)
    return result


class _Loader(yaml.SafeLoader):
    """Of two keys that are alike in one section YAML keeps the last, without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} occurs twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _read_source(source: str) -> dict[str, Any]:
    # A task's preset is called as the task is; - and _ are interchangeable.
    preset = source if Path(source).is_file() else source.replace("_", "-")
    if preset in preset_names():
        text = preset_text(preset)
    elif Path(source).is_file():
        try:
            text = Path(source).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"the recipe {source!r} cannot be read as UTF-8: {error}") from None
    else:
        raise UserError(
            f"there is neither a preset nor a file named {source!r}"
            f"{nearest(source, preset_names())}; the presets are {', '.join(preset_names())}"
        )
    try:
        values = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        where = " ".join(str(error).split())
        raise UserError(f"the recipe {source!r} is not valid YAML: {where}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"the recipe {source!r} has no sections such as `corpus:`, only {shortened(values)}; "
            "print one to begin with: bertsmith run demo --show-recipe"
        )
    return values


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    if not separator or not all(keys):
        raise UserError(
            f"the override {override!r} is not section.setting=value, as in "
            "pretraining.mask_fraction=0.2"
        )
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):  # a day that is in no month is a ValueError
        raise UserError(
            f"the value of the override {override!r} is not valid YAML; write a sign in quotes, "
            "as in '=\",\"'"
        ) from None
    section: Any = values
    for key, following in pairwise(keys):
        section = section[int(key)] if isinstance(section, list) else section.setdefault(key, {})
        is_list = isinstance(section, list)
        if is_list and not (following.isdecimal() and int(following) < len(section)):
            raise UserError(
                f"the override {override!r} names no entry of {key!r}, which has {len(section)}: "
                "the first is 0"
            )
        if not is_list and not isinstance(section, dict):
            raise UserError(
                f"the override {override!r} goes below {key!r}, which is a single value; "
                "give the whole value instead"
            )
    last = keys[-1]
    section[int(last) if isinstance(section, list) else last] = value


# Pydantic's sentences begin with the type of the value, and some end in how it was parsed.
_SHOULD: Final = re.compile(r"^(Input|Value|List|Tuple|String) should ")
_PARSED: Final = re.compile(r", (unable to parse|got a number).*")
_PLAIN_TYPES: Final = {"int", "float", "str", "bool"}  # as members of a union


def explain(
    error: ValidationError, subject: str, settings_type: type[BaseModel] | None = None
) -> str:
    """A validation error of `subject`, one sentence a setting.

    With the type of the settings, an unknown name is followed by similar ones.
    """
    settings = dict(_settings_in(settings_type)) if settings_type else {}
    unions = _PLAIN_TYPES | set(settings.values())
    by_path: dict[str, list[Any]] = defaultdict(list)
    for fault in error.errors():
        # Pydantic names the members of unions that it tried, which no person wrote.
        head, *parts = [str(part) for part in fault["loc"]] or [""]
        plain = [part for part in parts if part.isidentifier() or part.isdecimal()]
        by_path[".".join([head, *(part for part in plain if part not in unions)])].append(fault)
    return "\n".join(
        _sentence(path, faults, subject, settings)
        for path, faults in by_path.items()
        # A section is wrong because of something in it, which has a fault of its own.
        if not any(other.startswith(f"{path}.") for other in by_path)
    )


def shortened(value: object) -> str:
    """A value as a sentence may hold it."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _sentence(path: str, faults: list[Any], subject: str, settings: Iterable[str]) -> str:
    """What is wrong with one setting, which may be of several types."""
    fault = faults[0]
    if fault["type"] == "extra_forbidden":
        plain = re.sub(r"\.\d+", "", path)
        section, _, name = path.rpartition(".")
        if plain in settings:  # of another kind
            return (
                f"{subject}: {section} is of a kind without {name!r}; set {section}.kind to "
                "another one (see `bertsmith run --show-recipe`)"
            )
        near = nearest(plain, settings, cutoff=0.9, most=1) or nearest(plain, settings, cutoff=0.65)
        return f"{subject} has no setting {path!r}{near or '; see `bertsmith run --show-recipe`'}"
    if fault["type"] == "union_tag_not_found":
        return f"{subject}: set {path}.kind, too (see `bertsmith run --show-recipe`)"
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
    options = re.findall("'([^']*)'", str(context.get("expected") or context.get("expected_tags")))
    value = context.get("tag") or fault["input"]
    near = nearest(value, options) if isinstance(value, str) else ""
    return f"{subject}: {path}: {rule}{got}{near}" if path else f"{subject}: {rule}{got}{near}"


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
