"""What commands ask models: from arguments, a file or standard input, to a screen or a file."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flows.cli.asked_model import asked_model, say
from pipelines.core.errors import UserError

Table = dict[str, list[Any]]  # columns of one length


@dataclass(frozen=True, slots=True)
class Asked:
    """Which models a command asks, and what it shows of an answer."""

    kinds: tuple[str, ...]  # in the registry
    heads: tuple[str, ...]
    columns: tuple[str, ...] = ("text",)
    is_parted_by_tabs: bool = False  # a line of standard input has both columns, a tab between them

    def of_lines(self, lines: list[str]) -> Table:
        """What lines of standard input ask: a text each, or a text, a tab and what goes with it.

        Raises UserError for a line without the second.
        """
        if not self.is_parted_by_tabs:
            return {"text": lines}
        first, second = self.columns
        parts = [line.split("\t") for line in lines]
        least = 3 if second == "choices" else 2
        short = next((number for number, part in enumerate(parts) if len(part) < least), None)
        if short is not None:
            raise UserError(
                f"a line of standard input must hold a {first}, a tab and its {second} (of choices "
                f"two or more, with tabs between them), found {lines[short][:60]!r}; write it so, "
                "or give a table with --file"
            )
        rest = [part[1:] if second == "choices" else "\t".join(part[1:]) for part in parts]
        return {first: [part[0] for part in parts], second: rest}


class Questions(NamedTuple):
    """What is asked, and the columns beside which its answers are written."""

    asked: Table
    own: Table


def table_of(
    asked: Asked,
    given: list[str] | Table | None,
    file: Path | None,
    renamed: dict[str, str | None],
) -> Questions:
    """What is asked about: arguments, or a file, or standard input.

    Which columns of a file were taken is said on standard error.
    """
    if given and file is not None:
        raise UserError(
            "the texts must be given once, found --file and texts; leave out one of them"
        )
    if given:
        table = given if isinstance(given, dict) else {"text": list(given)}
        return Questions(table, table)
    from pipelines.insight.tables import format_of, numbered_lines, read_asked_table

    if file is not None:
        named = {name: theirs for name, theirs in renamed.items() if theirs}
        found = read_asked_table(str(file), named, asked.columns)
        if not any(found.asked.values()):
            raise UserError(
                f"{file} must have a column {' or '.join(asked.columns)} with something in it, "
                f"found {', '.join(found.own)[:200] or 'none'}; name its columns"
            )
        if format_of(str(file)) != "texts":
            say(f"{file}: " + ", ".join(
                f"{name} is its column {theirs!r}" for name, theirs in found.taken.items()
            ))  # fmt: skip
        return Questions(found.asked, found.own)
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
    table = asked.of_lines(lines)
    return Questions(table, table)


def ask_model(
    asked: Asked,
    questions: Questions,
    model: str | None,
    out: Path | None,
    home: Path | None,
    *,
    as_json: bool,
    no_answer_above: float | None = None,
) -> list[dict[str, Any]]:
    """The rows with their answers, to be shown; none where they were written or printed."""
    from pipelines.insight.written_tables import (
        beside,
        json_lines,
        refuse_other_output,
        write_table,
    )

    table = questions.asked

    if out is not None:
        refuse_other_output(out, questions.own)
    with asked_model(model, home, *asked.kinds) as (folder, called):
        from pipelines.insight.asking import ask
        from pipelines.registry.opening import opened

        model_in_memory = opened(folder)
    watch = _watch if out is not None else _silent
    answers = ask(model_in_memory, called, table, heads=asked.heads, watch=watch)
    if no_answer_above is not None:
        answers["answer"] = [
            "" if lead > no_answer_above else text
            for lead, text in zip(answers["null_lead"], answers["answer"], strict=True)
        ]
    if out is not None or as_json:
        whole = beside(questions.own, table, answers)
        if out is None:
            for line in json_lines(whole):
                print(line)
            return []
        write_table(out, whole)
        added = [name for name in whole if name not in questions.own]
        print(f"{out}: {len(whole[added[0]]):,} rows, answers in {', '.join(added)}")
        return []
    both = {**table, **answers}
    names = list(both)
    return [dict(zip(names, row, strict=True)) for row in zip(*both.values(), strict=True)]


def _watch(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else "\r"
        print(f"{done:,} of {total:,} rows", end=end, file=sys.stderr, flush=True)


def _silent(done: int, total: int) -> None:
    pass
