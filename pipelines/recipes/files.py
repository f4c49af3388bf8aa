"""Reading a recipe: a preset or a file, single values by dotted path, and what is not given."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipelines.config.errors import UserError
from pipelines.io.text import check_is_text
from pipelines.recipes.faults import explain, nearest, shortened
from pipelines.recipes.recipe import Recipe

_PRESETS = files("pipelines.recipes") / "presets"


def preset_names() -> list[str]:
    """Names of the recipes that come with Bertsmith."""
    return sorted(
        item.name.removesuffix(".yaml")
        for item in _PRESETS.iterdir()
        if item.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """The YAML of a preset."""
    return (_PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def read_recipe(source: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a preset or a YAML file, with `dotted.path=value` overrides.

    Raises UserError, one sentence a fault, for an unknown preset, a missing file, an unknown key or
    a value out of bounds.
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
    usual = dict(flattened(base))
    return {
        path: value
        for path, value in flattened(recipe)
        if path not in usual or usual[path] != value
    }


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
        if not (isinstance(value, Mapping) and isinstance(before, Mapping)):
            result[key] = value
        elif value.get("kind", before.get("kind")) == before.get("kind"):
            result[key] = _merged(before, value)
        else:
            result[key] = dict(value)
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
    # A task's preset is called as the task is, with either stroke.
    preset = source if Path(source).is_file() else source.replace("_", "-")
    if preset in preset_names():
        text = preset_text(preset)
    elif Path(source).is_file():
        text = _text_of(source)
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
    if values is None:
        raise UserError(
            f"the recipe {source!r} is empty; print one to begin with: bertsmith recipes show demo"
        )
    if not isinstance(values, dict):
        raise UserError(
            f"the recipe {source!r} has no sections such as `corpus:`, only {shortened(values)}"
        )
    return values


def _text_of(source: str) -> str:
    try:
        data = Path(source).read_bytes()
        check_is_text(data, f"the recipe {source!r}")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"the recipe {source!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(
            f"the recipe {source!r} is not UTF-8 at byte {error.start + 1}; convert it, for "
            "instance with iconv"
        ) from None


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
        raise UserError(f"the value of the override {override!r} is not valid YAML") from None
    section = values
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise UserError(
                f"the override {override!r} goes below {key!r}, which is a single value; "
                "give the whole value instead"
            )
    section[keys[-1]] = value
