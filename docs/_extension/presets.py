"""Every preset: what it is for, and where it differs from the defaults."""

from itertools import takewhile
from typing import Any

from pipelines.recipes.files import flattened, preset_text
from pipelines.recipes.recipe import Recipe

from . import markdown, settings


def page() -> str:
    """The reference of presets."""
    parts = [
        "# Presets",
        "A preset is a recipe that comes with Bertsmith. `bertsmith run NAME --show-recipe` prints "
        "every value of one. The tables list the values that differ from the "
        "[defaults](settings.md). This page is made from the code.",
    ]
    defaults = dict(flattened(Recipe().model_dump(mode="json")))
    for name, changed in settings.presets().items():
        parts += [f"## {name}", *_purpose(name), _table(changed, defaults)]
    return "\n\n".join(parts) + "\n"


def _table(changed: dict[str, Any], defaults: dict[str, Any]) -> str:
    rows = (
        [f"{{confval}}`{path}`", markdown.value(said), markdown.value(defaults.get(path))]
        for path, said in _as_settings(changed)
    )
    return markdown.table(["setting", "value", "default"], rows)


def _as_settings(changed: dict[str, Any]) -> list[tuple[str, Any]]:
    """The values by the settings that the reference lists: a mapping with a kind is one value."""
    listed = {each.path for section in settings.sections() for each in section.settings}
    found: dict[str, Any] = {}
    for path, said in changed.items():
        if path in listed:
            found[path] = said
            continue
        above, _, key = path.rpartition(".")
        found.setdefault(above, {})[key] = said
    return list(found.items())


def _purpose(preset: str) -> list[str]:
    """The paragraphs of the comment that the preset's file opens with."""
    comment = takewhile(lambda line: line.startswith("#"), preset_text(preset).splitlines())
    paragraphs = "\n".join(line.lstrip("# ") for line in comment).split("\n\n")
    return [markdown.text(" ".join(each.split())) for each in paragraphs]
