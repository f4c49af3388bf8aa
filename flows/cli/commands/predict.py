"""Commands that ask a model: predict, of any family and whole files too, and fill-mask."""

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flows.cli.registry import (
    AsJson,
    Home,
    Model,
    asked_model,
    explained,
    model_address,
    newest_at,
    say,
)
from flows.environment import home_folder, prepare_flows
from flows.stopping import stop_in_order
from pipelines.errors import UserError
from pipelines.registry.find import ANY_TASK, is_folder
from pipelines.tasks import family_module, family_names, family_title, is_own

if TYPE_CHECKING:
    from pipelines.predict.answers import Asked

# What Python makes of an argument's bytes that are not of the terminal's encoding.
_ESCAPED_BYTE: Final = re.compile("[\udc80-\udcff]")


def predict(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts; for multiple choice a text and its choices, for question answering a "
            "question and a text. None: read lines, with tabs between what belongs together."
        ),
    ] = None,
    model: Model = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="FAMILY",
            help="Without --model: ask the newest champion of this task, or of kind encoder. "
            "[default: any task]",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Read from here: .txt with a text a line, or a .csv, .tsv, .jsonl, .parquet or "
            ".arrow table."
        ),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of --file with the text, or the question.")
    ] = None,
    second_text_column: Annotated[
        str | None, typer.Option(help="Column of --file with a pair's second text, or the context.")
    ] = None,
    no_answer_above: Annotated[
        float | None,
        typer.Option(
            help="Question answering: give no answer if that scores better by more than this."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the rows and their answers here: .csv, .jsonl or .parquet."),
    ] = None,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILES",
            help="Answer whole files shard by shard: a path, glob, folder or URL. Killed, the same "
            "command resumes. Repeatable.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Folder or URL for the shards of --batch. [default: the store alone]"),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model: classes, tags, numbers, choices, answers or vectors, as it was trained for.

    Example: bertsmith predict 'Returns the eigenvalues of a matrix.'
    """
    if task and model:
        raise UserError("--task chooses a model; leave it out with --model")
    if batch:
        if texts or file is not None or out is not None:
            raise UserError("--batch answers whole files: leave out texts, --file and --out")
        if no_answer_above is not None:
            raise UserError("--batch writes null_lead of every answer: leave out --no-answer-above")
        kinds = kinds_of(task)
        columns = (text_column, second_text_column)
        _predict_batch(model, kinds, batch, columns, to, home, as_json=as_json)
        return
    if to is not None:
        raise UserError("--to is for --batch; --file writes its answers to --out")
    if file is None and (text_column or second_text_column):
        raise UserError("--text-column and --second-text-column name columns of --file or --batch")
    if out is not None and as_json:
        raise UserError("--json prints answers, and --out writes them; leave out one of them")
    if texts and file is not None:
        raise UserError("give either texts or --file")
    if any(_ESCAPED_BYTE.search(text) for text in texts or ()):
        raise UserError("a text is not UTF-8; set the terminal to UTF-8, or give a file")
    # A mistake in what is asked ends here, before torch is imported.
    from pipelines.predict.tables import check_output, read_table

    table = None if file is None else read_table(str(file))
    lines = [] if texts or table else _lines_of_standard_input()
    if out is not None:
        check_output(out)
    kinds = kinds_of(task) if model is None else ()
    with asked_model(model, home, *kinds) as (folder, called):
        from pipelines.predict.answers import (
            answer_all,
            asked_of,
            asked_of_lines,
            asked_of_texts,
            question_for,
        )
        from pipelines.registry.package import opened

        opened_model = opened(folder)
    question = question_for(opened_model[0], called)
    if no_answer_above is not None and "null_lead" not in question.answers:
        raise UserError(f"--no-answer-above is for question answering, {called} is no such model")
    if table is not None:
        asked = asked_of(table, question, text_column, second_text_column)
        if asked.taken:
            columns = (f"{name} is its column {own!r}" for name, own in asked.taken.items())
            say(f"{file}: {', '.join(columns)}")
    else:
        asked = asked_of_texts(question, texts) if texts else asked_of_lines(question, lines)
    answers = answer_all(opened_model, asked.columns)
    if no_answer_above is not None:
        answers["answer"] = [
            "" if lead > no_answer_above else text
            for lead, text in zip(answers["null_lead"], answers["answer"], strict=True)
        ]
    _tell(asked, answers, out, as_json=as_json)


def _predict_batch(
    model: str | None,
    kinds: tuple[str, ...],
    files: list[str],
    columns: tuple[str | None, str | None],
    to: str | None,
    home: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run the flow over `files` and print where its answers are.

    Without `model` the newest champion of `kinds` answers.
    """
    if model is not None and is_folder(model):
        raise UserError(
            f"--batch needs a registered model, and {model} is a folder; register it with "
            "`bertsmith import`, or answer with --file"
        )
    if model is None:
        model = newest_at(home, *kinds)
        say(f"model: {model_address(model)}")
    stop_in_order()
    wait_for_api = prepare_flows(home_folder(home))
    from flows.predict import BatchPredictionRecipe, predict
    from flows.reporting.progress_line import progress_on_terminal
    from pipelines.predict.batch_prediction import place_of

    values: dict[str, Any] = {
        "files": [str(Path(each).absolute()) if "://" not in each else each for each in files],
        "text_column": columns[0],
        "second_text_column": columns[1],
        "model": model,
        "out": to or "",
        "runtime": {"home": str(home) if home else ""},
    }
    with explained("batch prediction", BatchPredictionRecipe):
        recipe = BatchPredictionRecipe(**values)
    wait_for_api()
    with progress_on_terminal():
        predictions = predict(recipe)
    statistics = predictions.statistics
    where = place_of(predictions, to or "")
    if as_json:
        print(json.dumps({**statistics, "answers": where, "fingerprint": predictions.fingerprint}))
        return
    print(
        f"{statistics['rows']:,} rows of {statistics['files']:,} files answered by "
        f"models:/{statistics['model']}: {where}"
    )


def kinds_of(task: str | None) -> tuple[str, ...]:
    """The kinds of registered models to choose from; raises UserError for an unknown task."""
    if task is None:
        return (ANY_TASK,)
    kind = family_module(task)
    if kind not in (*family_names(), "encoder") and not is_own(task):
        raise UserError(
            f"--task is {', '.join(map(family_title, family_names()))}, encoder or the .py file of "
            f"a task of your own, found {task}"
        )
    return (kind,)


def _lines_of_standard_input() -> list[str]:
    if sys.stdin.isatty():
        raise UserError(
            "there is no text; give it as an argument, with --file, or on standard input"
        )
    from pipelines.io.files import check_is_text, decoded
    from pipelines.predict.tables import text_lines

    data = sys.stdin.buffer.read()
    check_is_text(data, "standard input")
    text = decoded(data, "standard input")
    lines = [line for _, line in text_lines(text.split("\n"))]
    if not lines:
        raise UserError("standard input holds no text")
    return lines


def _tell(
    asked: "Asked", answers: dict[str, list[Any]], out: Path | None, *, as_json: bool
) -> None:
    """Write the answers to a file, or print a line for each row."""
    from pipelines.predict.tables import beside, json_lines, rows_of, write_table

    if out is None and not as_json:
        for row in rows_of({**asked.columns, **answers}):
            print(_line(row))
        return
    whole = beside(asked.own, asked.columns, answers)
    if out is None:
        for line in json_lines(whole):
            print(line)
        return
    write_table(out, whole)
    added = [name for name in whole if name not in asked.own]
    print(f"{out}: {len(whole[added[0]]):,} rows, answers in {', '.join(added)}")


def _line(row: dict[str, Any]) -> str:
    """A row as people read it, by the fields of its answer."""
    match row:
        case {"label": label, "probability": probability, "text": text}:
            return f"{label:<20} {probability:6.1%}  {text}"
        case {"labels": labels, "text": text}:
            return f"{', '.join(labels) or '-':<28} {text}"
        case {"words": words, "tags": tags}:
            pairs = zip(words, tags, strict=True)
            return " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in pairs)
        case {"value": value, "text": text}:
            second = f"  |  {row['second_text']}" if row.get("second_text") else ""
            return f"{value:8.3f}  {text}{second}"
        case {"choice": choice, "probability": probability, "choices": choices}:
            return f"{choice}  {probability:6.1%}  {choices[choice]}"
        case {"answer": answer}:
            return answer or "(no answer)"
        case {"embedding": vector, "text": text}:
            shown = ", ".join(f"{value:.4f}" for value in vector[:4])
            return f"[{shown}, …] ({len(vector)})  {text}"
    return json.dumps(row, ensure_ascii=False, default=str)


def fill_mask(
    text: Annotated[str, typer.Argument(help="A sentence with [MASK] in place of a word.")],
    model: Model = None,
    top: Annotated[int, typer.Option(min=1, help="How many candidates to show.")] = 5,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Predict the words that [MASK] stands for.

    Example: bertsmith fill-mask 'Returns the [MASK] of the array.'
    """
    if "[MASK]" not in text:
        raise UserError(
            f"no [MASK] in {text!r}; put it in place of a word, as in 'Returns the [MASK] of the "
            "array.'"
        )
    with asked_model(model, home, "encoder") as (folder, called):
        from pipelines.predict.answers import fill
        from pipelines.registry.package import opened

        gaps = fill(opened(folder), called, text, top_k=top)
    if as_json:
        print(json.dumps([[asdict(candidate) for candidate in gap] for gap in gaps]))
        return
    for number, gap in enumerate(gaps, start=1):
        if len(gaps) > 1:
            print(f"[MASK] {number}")
        for candidate in gap:
            print(f"{candidate.probability:6.1%}  {candidate.token}")
