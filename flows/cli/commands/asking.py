"""Commands that ask a model: what it predicts, tags, answers, chooses, rates, embeds."""

from pathlib import Path
from typing import Annotated, Final

import typer

from flows.cli.batch import predict_batch
from flows.cli.options import AsJson, Home
from flows.cli.questions import Asked, Table, ask_model, table_of
from flows.cli.registry import Model
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

_ENCODERS: Final = ("encoder", "pretraining", "sentence_embedding")


_PREDICT: Final = Asked(
    ("classification", "multi_label", "classifier"),
    ("sequence_classification", "multi_label_classification"),
    ("text", "second_text"),
)
_TAG: Final = Asked(("tagging",), ("token_classification",), ("text", "words"))
_NUMBERS: Final = ("regression", "sentence_embedding")
_RATE: Final = Asked(_NUMBERS, _NUMBERS, ("text", "second_text"))
_CHOOSE: Final = Asked(
    ("multiple_choice",), ("multiple_choice",), ("text", "choices"), is_parted_by_tabs=True
)
_ANSWER: Final = Asked(
    ("question_answering",), ("span_prediction",), ("question", "context"), is_parted_by_tabs=True
)
_EMBED: Final = Asked(("encoder", "sentence_embedding"), _ENCODERS)
ASKED: Final = (_PREDICT, _TAG, _RATE, _CHOOSE, _ANSWER, _EMBED)


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
    batch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILES",
            help="Answer whole files with any model, shard by shard: a path, glob, folder or URL. "
            "Killed, the same command goes on. Repeatable.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Folder or URL for the shards of --batch. [default: the store alone]"),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Label texts, or pairs of texts from a table, with a fine-tuned model.

    Example: bertsmith predict 'Returns the eigenvalues of a matrix.'
    """
    renamed = {"text": text_column, "second_text": second_text_column}
    if batch:
        if texts or file is not None or out is not None:
            raise UserError(
                "--batch answers whole files, into the folder of --to, found texts, --file or "
                "--out beside it; leave them out"
            )
        predict_batch(model, batch, renamed, to, home, as_json=as_json)
        return
    table = table_of(_PREDICT, texts, file, renamed)
    for row in ask_model(_PREDICT, table, model, out, home, as_json=as_json):
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
    """Tag every word of texts, or of a table's lists of words, with a fine-tuned model.

    Example: bertsmith tag 'Ada Lovelace wrote to Charles Babbage.'
    """
    table = table_of(_TAG, texts, file, {"text": text_column})
    for row in ask_model(_TAG, table, model, out, home, as_json=as_json):
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

    Of a model that embeds sentences it is the cosine of the two.

    Example: bertsmith rate --file pairs.csv --second-text-column sentence2 --out rated.csv
    """
    renamed = {"text": text_column, "second_text": second_text_column}
    table = table_of(_RATE, texts, file, renamed)
    for row in ask_model(_RATE, table, model, out, home, as_json=as_json):
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
    """Say which of several texts goes with another one; on standard input with tabs between them.

    Example: bertsmith choose 'She put the kettle on the' stove. moon. cat.
    """
    if file is None and text is not None and len(choices or []) < 2:
        raise UserError(
            "there must be a text and two or more choices, found fewer; give them as arguments, "
            "or a table with --file"
        )
    given: Table | None = None if text is None else {"text": [text], "choices": [choices]}
    table = table_of(_CHOOSE, given, file, {})
    for row in ask_model(_CHOOSE, table, model, out, home, as_json=as_json):
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
    """Answer a question from a text, of any length; on standard input with a tab between them.

    Example: bertsmith answer 'Who wrote it?' 'The report was written by Grace Hopper.'
    """
    if file is None and question is not None and context is None:
        raise UserError(
            "there must be a question and a text that answers it, found fewer; give both as "
            "arguments, or a table with --file"
        )
    given: Table | None = (
        None if question is None else {"question": [question], "context": [context]}
    )
    table = table_of(_ANSWER, given, file, {})
    for row in ask_model(
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
    table = table_of(_EMBED, texts, file, {"text": text_column})
    for row in ask_model(_EMBED, table, model, out, home, as_json=as_json):
        shown = ", ".join(f"{value:.4f}" for value in row["embedding"][:4])
        print(f"[{shown}, …] ({len(row['embedding'])})  {row['text']}")
