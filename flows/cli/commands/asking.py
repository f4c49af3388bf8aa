"""Commands that ask a model: what it predicts, tags, answers, chooses, rates, embeds."""

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from flows.cli.commands.models import Model, newest, tracker_of
from flows.cli.options import AsJson, Home
from pipelines.core.errors import UserError

Texts = Annotated[list[str] | None, typer.Argument(help="Texts; none: read lines.")]
File = Annotated[
    Path | None,
    typer.Option(help="Read from here: a text a line, or a .csv, .tsv, .jsonl or .parquet table."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Write the rows and their answers here: .csv, .tsv, .jsonl or .parquet."),
]
TextColumn = Annotated[
    str | None, typer.Option(help="Column of --file that holds the text. [default: text]")
]
SecondTextColumn = Annotated[
    str | None, typer.Option(help="Column of --file with a pair's second text.")
]

_ENCODERS: Final = ("encoder", "pretraining")


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which models a command asks, and what it shows of an answer."""

    kinds: tuple[str, ...]  # in the registry
    heads: tuple[str, ...]
    columns: tuple[str, ...] = ("text",)


_PREDICT: Final = _Asked(
    ("classification", "multi_label", "classifier"),
    ("sequence_classification", "multi_label_classification"),
    ("text", "second_text"),
)
_TAG: Final = _Asked(("tagging",), ("token_classification",))
_RATE: Final = _Asked(("regression",), ("regression",), ("text", "second_text"))
_CHOOSE: Final = _Asked(("multiple_choice",), ("multiple_choice",), ("text", "choices"))
_ANSWER: Final = _Asked(("question_answering",), ("span_prediction",), ("question", "context"))
_EMBED: Final = _Asked(("encoder",), _ENCODERS)


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (predict, tag, rate, choose, answer, embed):
        app.command()(command)


def predict(
    texts: Texts = None,
    model: Model = None,
    file: File = None,
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Label texts, or pairs of texts from a table, with a fine-tuned model.

    Example: bertsmith predict 'Returns the eigenvalues of a matrix.'
    """
    renamed = {"text": text_column, "second_text": second_text_column}
    table = _table(_PREDICT, texts, file, renamed)
    for row in _ask(_PREDICT, table, model, out, home, as_json=as_json):
        if "label" in row:
            print(f"{row['label']:<20} {row['probability']:6.1%}  {row['text']}")
        else:
            print(f"{', '.join(row['labels']) or '-':<28} {row['text']}")


def tag(
    texts: Texts = None,
    model: Model = None,
    file: File = None,
    text_column: TextColumn = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Tag every word of texts with a fine-tuned model.

    Example: bertsmith tag 'Ada Lovelace wrote to Charles Babbage.'
    """
    table = _table(_TAG, texts, file, {"text": text_column})
    for row in _ask(_TAG, table, model, out, home, as_json=as_json):
        print(" ".join(
            word if label == "O" else f"{word}/{label}"
            for word, label in zip(row["words"], row["tags"], strict=True)
        ))  # fmt: skip


def rate(
    texts: Texts = None,
    model: Model = None,
    file: File = None,
    text_column: TextColumn = None,
    second_text_column: SecondTextColumn = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Give texts a number, or two texts one for both, with a fine-tuned model.

    Example: bertsmith rate --file pairs.csv --second-text-column sentence2 --out rated.csv
    """
    renamed = {"text": text_column, "second_text": second_text_column}
    table = _table(_RATE, texts, file, renamed)
    for row in _ask(_RATE, table, model, out, home, as_json=as_json):
        pair = f"  |  {row['second_text']}" if row.get("second_text") else ""
        print(f"{row['value']:8.3f}  {row['text']}{pair}")


def choose(
    text: Annotated[str | None, typer.Argument(help="What the choices go on from.")] = None,
    choices: Annotated[list[str] | None, typer.Argument(help="Two or more choices.")] = None,
    model: Model = None,
    file: Annotated[
        Path | None, typer.Option(help="A .jsonl or .parquet table with text and choices.")
    ] = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say which of several texts goes with another one.

    Example: bertsmith choose 'She put the kettle on the' stove. moon. cat.
    """
    if file is None and (text is None or len(choices or []) < 2):
        raise UserError(
            "there must be a text and two or more choices, found fewer; give them as arguments, "
            "or a table with --file"
        )
    given = None if text is None else {"text": [text], "choices": [choices]}
    table = _table(_CHOOSE, given, file, {})
    for row in _ask(_CHOOSE, table, model, out, home, as_json=as_json):
        print(f"{row['choice']}  {row['probability']:6.1%}  {row['choices'][row['choice']]}")


def answer(
    question: Annotated[str | None, typer.Argument(help="A question.")] = None,
    context: Annotated[str | None, typer.Argument(help="A text that answers it.")] = None,
    model: Model = None,
    file: Annotated[Path | None, typer.Option(help="A table with question and context.")] = None,
    no_answer_above: Annotated[
        float | None,
        typer.Option(help="Answer nothing where that scores better by more than this."),
    ] = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question from a text, of any length.

    Example: bertsmith answer 'Who wrote it?' 'The report was written by Grace Hopper.'
    """
    if file is None and (question is None or context is None):
        raise UserError(
            "there must be a question and a text that answers it, found fewer; give both as "
            "arguments, or a table with --file"
        )
    given = None if question is None else {"question": [question], "context": [context]}
    table = _table(_ANSWER, given, file, {})
    for row in _ask(
        _ANSWER, table, model, out, home, as_json=as_json, no_answer_above=no_answer_above
    ):
        print(row["answer"] or "(no answer)")


def embed(
    texts: Texts = None,
    model: Model = None,
    file: File = None,
    text_column: TextColumn = None,
    out: Out = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Turn texts into vectors: the mean of an encoder's last hidden states, of length 1.

    Example: bertsmith embed --file texts.txt --out vectors.parquet
    """
    table = _table(_EMBED, texts, file, {"text": text_column})
    for row in _ask(_EMBED, table, model, out, home, as_json=as_json):
        shown = ", ".join(f"{value:.4f}" for value in row["embedding"][:4])
        print(f"[{shown}, …] ({len(row['embedding'])})  {row['text']}")


def _table(
    asked: _Asked,
    given: list[str] | dict[str, list[Any]] | None,
    file: Path | None,
    renamed: dict[str, str | None],
) -> dict[str, list[Any]]:
    """What is asked about: arguments, or a file, or standard input."""
    if given and file is not None:
        raise UserError(
            "the texts must be given once, found --file and texts; leave out one of them"
        )
    if given:
        return given if isinstance(given, dict) else {"text": list(given)}
    from pipelines.insight.tables import lines_of, read_table

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
    lines = lines_of(decode(data, Counter()))
    if not lines:
        raise UserError("there must be a line of text, found none")
    return {"text": lines}


def _ask(
    asked: _Asked,
    table: dict[str, list[Any]],
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
    tracker = tracker_of(home, needs=None if model else asked.kinds[0])
    from pipelines.insight.asking import ask

    reference = model or newest(tracker, *asked.kinds)
    answers = ask(
        tracker, reference, table, heads=asked.heads, watch=_watch if out is not None else _silent
    )
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
