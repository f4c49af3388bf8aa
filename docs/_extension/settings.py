"""Every setting of a recipe, read from the recipe's own JSON schema."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipelines.recipes.files import differences, preset_names, read_recipe
from pipelines.recipes.recipe import Recipe

from . import markdown

Schema = Mapping[str, Any]
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}
_NAMES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}


@dataclass(frozen=True)
class Setting:
    """One value of a recipe."""

    path: str
    type: str
    default: Any
    meaning: str
    is_required: bool = False


@dataclass(frozen=True)
class Kind:
    """One form of a value that has several, such as a source; its `kind` says which."""

    path: str
    name: str
    meaning: str
    settings: tuple[Setting, ...]


@dataclass
class Section:
    """The settings below one dotted path."""

    path: str
    meaning: str
    settings: list[Setting] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)


@cache
def sections() -> tuple[Section, ...]:
    """The whole recipe: a section for each part of it, nested ones after the one they are in."""
    schema = Recipe.model_json_schema()
    top = Section("", "")
    return (top, *_below(top, schema, schema["$defs"]))


def known_paths() -> frozenset[str]:
    """Every dotted path that `--set` takes: sections, settings and the fields of every kind."""
    found: set[str] = set()
    for section in sections():
        found |= {section.path, *(setting.path for setting in section.settings)}
        found |= {f"{kind.path}.{each.path}" for kind in section.kinds for each in kind.settings}
        found |= {f"{kind.path}.kind" for kind in section.kinds}
    return frozenset(found - {""})


@cache
def presets() -> Mapping[str, Mapping[str, Any]]:
    """Of each preset, by dotted path, the values that differ from the defaults."""
    base = Recipe().model_dump(mode="json")
    return {
        name: differences(
            read_recipe(name).model_dump(mode="json", exclude={"name"}, exclude_unset=True), base
        )
        for name in preset_names()
    }


def page() -> str:
    """The reference of settings."""
    parts = [
        "# Settings",
        "Every value that a recipe can hold, with its type and default. Set one with "
        "`--set section.name=value`, or in a recipe's file ([recipes](../recipes.md)). "
        "[Presets](presets.md) lists what each preset changes. This page is made from the code.",
    ]
    # What decides a model comes before where it is computed.
    for section in sorted(sections(), key=lambda each: each.path == "runtime"):
        parts += _section(section)
    return "\n\n".join(parts) + "\n"


def _below(section: Section, schema: Schema, models: Schema) -> Iterator[Section]:
    nested = []
    for name, told in schema["properties"].items():
        path = f"{section.path}.{name}" if section.path else name
        meaning = told.get("description", "")
        model = _model(told, models)
        if model is not None and "kind" not in model["properties"]:
            nested.append((Section(path, meaning), model))
            continue
        section.settings.append(_setting(path, told, models, schema))
        section.kinds += _kinds(path, told, models)
    for inner, model in nested:
        yield inner
        yield from _below(inner, model, models)


def _setting(path: str, told: Schema, models: Schema, of: Schema) -> Setting:
    is_required = path.rpartition(".")[2] in of.get("required", ())
    return Setting(
        path, _type(told, models), told.get("default"), told.get("description", ""), is_required
    )


def _model(told: Schema, models: Schema) -> Schema | None:
    name = told.get("$ref", "").rpartition("/")[2]
    found = models.get(name)
    return found if found is not None and "properties" in found else None


def _kinds(path: str, told: Schema, models: Schema) -> Iterator[Kind]:
    for each in told.get("items", told).get("anyOf", ()):
        model = _model(each, models)
        if model is None:
            continue
        fields = {name: said for name, said in model["properties"].items() if name != "kind"}
        yield Kind(
            path,
            model["properties"]["kind"]["const"],
            " ".join(model.get("description", "").split()),
            tuple(_setting(name, said, models, model) for name, said in fields.items()),
        )


def _type(told: Schema, models: Schema) -> str:
    """What a value may be, in words."""
    if "$ref" in told:
        return _type(models[told["$ref"].rpartition("/")[2]], models)
    if "const" in told:
        return markdown.code(str(told["const"]))
    if "enum" in told:
        return ", ".join(markdown.code(str(each)) for each in told["enum"])
    if "anyOf" in told:
        return _alternatives(told["anyOf"], models)
    if told.get("type") == "array":
        return _list(told, models)
    if told.get("type") == "object":
        return "mapping" if "properties" not in told else f"a `kind` of {told['title']}"
    name = _NAMES[told["type"]] if "type" in told else "anything"
    bounds = [said.format(f"{told[key]:,}") for key, said in _BOUNDS.items() if key in told]
    return ", ".join([name, *bounds])


def _alternatives(each_told: list[Schema], models: Schema) -> str:
    if any(_model(told, models) is not None for told in each_told):
        names = [m["properties"]["kind"]["const"] for m in map(models.get, map(_last, each_told))]
        return "a mapping whose `kind` is " + ", ".join(map(markdown.code, names))
    return "; or ".join(
        "empty" if told.get("type") == "null" else _type(told, models) for told in each_told
    )


def _last(told: Schema) -> str:
    return told.get("$ref", "").rpartition("/")[2]


def _list(told: Schema, models: Schema) -> str:
    if "prefixItems" in told:
        return f"list of {len(told['prefixItems'])}, each {_type(told['prefixItems'][0], models)}"
    if "items" not in told:
        return "list"
    inner = _type(told["items"], models)
    return f"list, of each item {inner}" if inner.startswith("a mapping") else f"list of {inner}"


def _section(section: Section) -> Iterator[str]:
    if section.path:
        yield f"{'#' * (section.path.count('.') + 2)} {markdown.code(section.path)}"
        yield markdown.text(section.meaning)
    for setting in section.settings:
        yield _entry(setting, _set_by(setting.path))
    for kind in section.kinds:
        depth = "#" * (section.path.count(".") + 3)
        yield f"{depth} {markdown.code(kind.path)} of kind {markdown.code(kind.name)}"
        yield markdown.text(kind.meaning)
        for setting in kind.settings:
            yield _entry(setting, "", is_of_a_kind=True)


def _entry(setting: Setting, added: str, *, is_of_a_kind: bool = False) -> str:
    default = "must be given" if setting.is_required else markdown.value(setting.default)
    options = [("type", setting.type), ("default", default)]
    content = "\n\n".join(filter(None, [markdown.text(setting.meaning), added]))
    hidden = [("no-index", "")] if is_of_a_kind else []  # several kinds share a field's name
    return markdown.directive("confval", setting.path, content, [*hidden, *options])


def _set_by(path: str) -> str:
    """Which presets say another value, by value."""
    by_value: dict[str, list[str]] = defaultdict(list)
    for name, changed in presets().items():
        if path in changed:
            said = changed[path]
            has_kinds = isinstance(said, list | dict) and len(str(said)) > 60
            by_value["another" if has_kinds else markdown.value(said)].append(name)
    told = (
        f"{said} in " + ", ".join(f"[{name}](presets.md#{name})" for name in names)
        for said, names in by_value.items()
    )
    return f"Presets: {'; '.join(told)}." if by_value else ""
