"""The public names of `bert_core`, from their docstrings."""

from collections import defaultdict
from importlib import import_module
from inspect import isclass, isroutine

import bert_core
from bert_core.inference.tables import question_of
from bert_core.model.catalogue import MODELS

from . import markdown


def page() -> str:
    """The reference of the Python interface."""
    by_module: dict[str, list[str]] = defaultdict(list)
    for name, module in sorted(bert_core._MODULE_OF.items()):
        by_module[".".join(module.split(".")[:2])].append(name)
    parts = [
        "# Python interface",
        "`import bert_core as bc` reaches every name of this page. "
        "[The encoder](../encoder.md) shows how they go together. "
        "This page is made from the code.",
    ]
    for module, names in sorted(by_module.items()):
        parts += [f"## {markdown.code(module)}", _first_sentence(module)]
        parts += map(_entry, names)
    return "\n\n".join([*parts, *_registered_models()]) + "\n"


def _registered_models() -> list[str]:
    rows = []
    for head in MODELS:
        try:
            question = question_of(MODELS[head])
        except ValueError:  # nothing is asked of it
            continue
        columns = (question.columns, question.optional, question.answers)
        rows.append([markdown.code(head), *(", ".join(map(markdown.code, c)) for c in columns)])
    return [
        "## Registered models",
        "`mlflow.pyfunc.load_model` opens a registered model by name and alias, and its `predict` "
        "takes a table with the columns of the model's head ([registry](../registry.md)).",
        markdown.table(["head", "columns", "may be added", "columns of the answer"], rows),
    ]


def _first_sentence(module: str) -> str:
    said = import_module(module).__doc__ or ""
    return markdown.text(" ".join(said.split("\n\n")[0].split()))


def _entry(name: str) -> str:
    found = getattr(bert_core, name)
    if isclass(found):
        return _autodoc("autoclass", name, "   :members:\n")
    if isroutine(found):
        return _autodoc("autofunction", name, "")
    return f"```{{py:data}} bert_core.{name}\n:value: {found!r}\n```"


def _autodoc(directive: str, name: str, options: str) -> str:
    return f"```{{eval-rst}}\n.. {directive}:: bert_core.{name}\n{options}```"
