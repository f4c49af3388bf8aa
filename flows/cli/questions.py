"""What commands ask models: from arguments, a file or standard input, to a screen or a file."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cli.asked_model import asked_model
from pipelines.core.errors import UserError

Table = dict[str, list[Any]]  # columns of one length


@dataclass(frozen=True, slots=True)
class Asked:
    """Which models a command asks, and what it shows of an answer."""

    kinds: tuple[str, ...]  # in the registry
    heads: tuple[str, ...]
    columns: tuple[str, ...] = ("text",)


def table_of(
    asked: Asked,
    given: list[str] | Table | None,
    file: Path | None,
    renamed: dict[str, str | None],
) -> Table:
    """What is asked about: arguments, or a file, or standard input."""
    if given and file is not None:
        raise UserError(
            "the texts must be given once, found --file and texts; leave out one of them"
        )
    if given:
        return given if isinstance(given, dict) else {"text": list(given)}
    from pipelines.insight.tables import numbered_lines, read_table

    if file is not None:
        named = {name: theirs for name, theirs in renamed.items() if theirs}
        table = read_table(str(file), named, asked.columns)
        if not any(table.values()):
            raise UserError(
                f"{file} must hold {', '.join(asked.columns)}, found none of it; name its columns"
            )
        return table
    from pipelines.core.reading.text import decode, refuse_binary

    if sys.stdin.isatty():
        raise UserError(
            "there must be a text, found none; give it as an argument, with --file, or on "
            "standard input"
        )
    data = sys.stdin.buffer.read()
    refuse_binary(data, "standard input")
    lines = list(numbered_lines(decode(data, Counter())).values())
    if not lines:
        raise UserError("there must be a line of text, found none")
    return {"text": lines}


def ask_model(
    asked: Asked,
    table: Table,
    model: str | None,
    out: Path | None,
    home: Path | None,
    *,
    as_json: bool,
    no_answer_above: float | None = None,
) -> list[dict[str, Any]]:
    """The rows with their answers, to be shown; none where they were written or printed."""
    from pipelines.insight.tables import json_lines, refuse_other_output, write_table

    if out is not None:
        refuse_other_output(out)
    with asked_model(model, home, *asked.kinds) as (folder, called):
        from pipelines.insight.asking import ask
        from pipelines.registry.lookups.folders import opened

        model_in_memory = opened(folder)
    watch = _watch if out is not None else _silent
    answers = ask(model_in_memory, called, table, heads=asked.heads, watch=watch)
    if no_answer_above is not None:
        answers["answer"] = [
            "" if lead > no_answer_above else text
            for lead, text in zip(answers["null_lead"], answers["answer"], strict=True)
        ]
    both = {**table, **answers}
    if out is not None:
        write_table(out, both)
        print(f"{out}: {len(next(iter(both.values()))):,} rows")
        return []
    if as_json:
        for line in json_lines(both):
            print(line)
        return []
    names = list(both)
    return [dict(zip(names, row, strict=True)) for row in zip(*both.values(), strict=True)]


def _watch(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else "\r"
        print(f"{done:,} of {total:,} rows", end=end, file=sys.stderr, flush=True)


def _silent(done: int, total: int) -> None:
    pass
