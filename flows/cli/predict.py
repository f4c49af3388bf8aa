"""Commands that ask a model: predict, for whole files too, fill-mask, and serve for programs."""

import glob
import json
import re
import socket
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.cli.options import (
    AsJson,
    Home,
    Model,
    asked_confidence,
    asked_model,
    explained,
    in_full,
    newest_at,
    say,
)
from flows.environment import home_folder, prepare_flows
from flows.stopping import install_stop_handlers
from pipelines.errors import UserError, redacted
from pipelines.registry.find import ANY_TASK, REGISTERED, is_folder
from pipelines.settings import expanded

if TYPE_CHECKING:
    from pipelines.io.tables import TableSettings
    from pipelines.predict.answers import Asked


MinConfidence = Annotated[
    float,
    typer.Option(
        show_default=False,
        help="Give no class or choice whose probability is lower; its guess stands beside it. "
        "[default: every answer is given]",
    ),
]  # fmt: skip
MinPrecision = Annotated[
    float,
    typer.Option(
        show_default=False,
        help="Give no class or choice below the probability from which on so many held-out answers "
        "were right, such as 0.95. [default: every answer is given]",
    ),
]  # fmt: skip


def predict(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts; for multiple choice a text and its choices, for question answering a "
            "question and a text."
        ),
    ] = None,
    model: Model = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Read from here: .txt with a text a line, or a .csv, .tsv, .jsonl or "
            ".parquet table.",
        ),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of --file with the text, or the question.")
    ] = None,
    second_text_column: Annotated[
        str | None, typer.Option(help="Column of --file with a pair's second text, or the context.")
    ] = None,
    encoding: Annotated[
        str, typer.Option(help="Encoding of the text of --file or --batch, such as cp1252.")
    ] = "utf-8",
    delimiter: Annotated[
        str | None,
        typer.Option(
            help="What separates the columns of --file or --batch, such as ';'. "
            "[default: a comma in .csv, a tab in .tsv]",
            show_default=False,
        ),
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
    min_confidence: MinConfidence = 0.0,
    min_precision: MinPrecision = 0.0,
    top: Annotated[
        int, typer.Option(min=1, help="So many classes of each text, the most probable first.")
    ] = 1,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Ask a model about texts, a table or whole files.

    It answers as it was trained to: classes, tags, numbers, choices, answers or vectors.

    Example: bertsmith predict 'Returns the eigenvalues of a matrix.'
    """
    confidence = asked_confidence(min_confidence, min_precision)
    from pipelines.io.tables import TableSettings

    with explained("predict", TableSettings):
        reading = TableSettings(encoding=encoding, delimiter=delimiter)
    if batch:
        if texts or file is not None or as_json or top > 1:
            raise UserError(
                "--batch answers whole files: leave out texts, --file, --json and --top"
            )
        _predict_batch(
            model, batch, (text_column, second_text_column), reading, confidence, to, home
        )
        return
    if to is not None:
        raise UserError("--to is for --batch; the answers of --file are printed (--json)")
    if file is None and (text_column or second_text_column):
        raise UserError("--text-column and --second-text-column name columns of --file or --batch")
    if file is None and reading != TableSettings():
        raise UserError("--encoding and --delimiter say how --file or --batch is read")
    if texts and file is not None:
        raise UserError("give either texts or --file")
    # A mistake in what is asked ends here, before torch is imported.
    from pipelines.predict.tables import read_table

    if file is not None and re.match(r"\w+:/", str(file)):
        raise UserError(f"--file reads a local file, and {file} is a URL; answer it with --batch")
    if not texts and file is None:
        raise UserError("there is no text; give it as an argument, or a file of texts with --file")
    table = None if file is None else read_table(str(file), reading)
    with asked_model(model, home) as (folder, called):
        from pipelines.predict.answers import (
            answer_all,
            asked_of,
            asked_of_texts,
            is_of_own_task,
            question_for,
        )
        from pipelines.registry.package import Confidence, opened

        opened_model = opened(folder, Confidence(*confidence))
    question = question_for(opened_model[0], called.removeprefix(REGISTERED))
    if table is not None:
        asked = asked_of(table, question, text_column, second_text_column)
    else:
        asked = asked_of_texts(question, texts or [])
    answers = answer_all(opened_model, asked.columns, top)
    _print_answers(asked, answers, as_json=as_json, as_objects=is_of_own_task(opened_model[0]))


def _predict_batch(
    model: str | None,
    files: list[str],
    columns: tuple[str | None, str | None],
    reading: "TableSettings",
    confidence: tuple[float, float],
    to: str | None,
    home: Path | None,
) -> None:
    """Run the flow over `files` and print where its answers are."""
    from pipelines.store.artifact import is_fingerprint

    if model is not None and (is_folder(model) or is_fingerprint(model)):
        kind, remedy = "a fingerprint", ""
        if is_folder(model):
            kind, remedy = "a folder", "register this one with `bertsmith import`, "
        raise UserError(
            f"--batch needs a registered model, and {model} is {kind}; name the registered model "
            f"as models:/NAME, {remedy}or answer with --file"
        )
    if model is None:
        model = newest_at(home, ANY_TASK)
        say(f"model: {model}")
    install_stop_handlers()
    wait_for_api = prepare_flows(home_folder(home))
    from flows.predict import BatchPredictionRecipe, predict
    from flows.progress import progress_on_terminal
    from pipelines.predict.batch_prediction import place_of

    values: dict[str, Any] = {
        "files": [from_here(each) for each in files],
        "text_column": columns[0],
        "second_text_column": columns[1],
        **reading.model_dump(),
        "min_confidence": confidence[0],
        "min_precision": confidence[1],
        "model": model,
        "out": str(expanded(Path(to))) if to and to.startswith("~") else to or "",
        "runtime": {"home": str(home) if home else ""},
    }
    with explained("batch prediction", BatchPredictionRecipe):
        recipe = BatchPredictionRecipe(**values)
    wait_for_api()
    with progress_on_terminal():
        predictions = predict(recipe)
    statistics = predictions.statistics
    print(
        f"{statistics['rows']:,} rows of {statistics['files']:,} files answered by "
        f"models:/{statistics['model']}: {redacted(place_of(predictions, recipe.out))}"
    )


def from_here(path: str) -> str:
    """The path in full, of which only what the person wrote is a pattern.

    A leading `~` is the home folder: no shell puts it in full within quotes.
    """
    if "://" in path or Path(path).is_absolute():
        return path
    folder = Path.cwd()
    home, _, rest = path.partition("/")
    if home.startswith("~") and not glob.has_magic(home) and not Path(path).exists():
        folder, path = expanded(Path(home)), rest
    is_pattern = glob.has_magic(path) and not (folder / path).exists()
    return f"{glob.escape(str(folder)) if is_pattern else folder}/{path}"


def _print_answers(
    asked: "Asked", answers: dict[str, list[Any]], *, as_json: bool, as_objects: bool
) -> None:
    """A line for each row; as JSON with all columns of the file that was read."""
    from pipelines.predict.tables import beside, json_lines, rows_of

    if as_json:
        for line in json_lines(beside(asked.own, asked.columns, answers)):
            print(line)
        return
    table = {**asked.columns, **answers}
    for line in json_lines(table) if as_objects else map(_line, rows_of(table)):
        print(line)


def _withheld(row: dict[str, Any]) -> str:
    """In place of an answer that is not sure enough."""
    return f"- ({row['guess']}?)"


def _line(row: dict[str, Any]) -> str:
    """A row as people read it, by the fields of its answer."""
    match row:
        case {"label": label, "labels": labels, "probabilities": probabilities, "text": text}:
            classes = ", ".join(
                f"{name} {probability:.1%}"
                for name, probability in zip(labels, probabilities, strict=True)
            )
            return f"{f'- ({classes}?)' if label is None else classes}  {text}"
        case {"label": label, "probability": probability, "text": text}:
            shown = _withheld(row) if label is None else label
            return f"{shown:<20} {probability:6.1%}  {text}"
        case {"labels": labels, "text": text}:
            return f"{', '.join(labels) or '-':<28} {text}"
        case {"words": words, "tags": tags}:
            pairs = zip(words, tags, strict=True)
            return " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in pairs)
        case {"value": value, "text": text}:
            second = f"  |  {row['second_text']}" if row.get("second_text") else ""
            return f"{value:8.3f}  {text}{second}"
        case {"choice": choice, "probability": probability, "choices": choices}:
            if choice is None:
                return f"{_withheld(row)}  {probability:6.1%}  {choices[row['guess']]}"
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
        raise UserError(f"no [MASK] in {text!r}; put it in place of a word")
    with asked_model(model, home, "encoder") as (folder, called):
        from pipelines.predict.answers import fill
        from pipelines.registry.package import opened

        gaps = fill(opened(folder), called.removeprefix(REGISTERED), text, top_k=top)
    if as_json:
        print(json.dumps([[asdict(candidate) for candidate in gap] for gap in gaps]))
        return
    for number, gap in enumerate(gaps, start=1):
        if len(gaps) > 1:
            print(f"[MASK] {number}")
        for candidate in gap:
            print(f"{candidate.probability:6.1%}  {candidate.token}")


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="name, name@alias, name/version, a fingerprint of the store or a folder. "
            "[default: the newest champion of any task]",
            show_default=False,
            callback=in_full,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 5001,
    host: Annotated[
        str, typer.Option(help="Address to listen on. No password is required.")
    ] = "127.0.0.1",
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; further ones get status 503.")
    ] = 64,
    precision: Annotated[
        Literal["float32", "bf16", "auto"],
        typer.Option(
            help="float32: as the version was verified; bf16: faster on CPUs that multiply it; "
            "auto: bf16 on those."
        ),
    ] = "float32",
    min_confidence: MinConfidence = 0.0,
    min_precision: MinPrecision = 0.0,
    home: Home = None,
) -> None:
    """Answer HTTP requests with a model of any task.

    POST /invocations takes and gives what `mlflow models serve` does; GET /health says which model
    answers. Requests that come at the same time are answered in one batch.

    Example: bertsmith serve bertsmith-classifier@champion --port 5001
    """
    confidence = asked_confidence(min_confidence, min_precision)
    with bound_socket(host, port) as bound, asked_model(model, home) as (folder, called):
        from pipelines.predict.server import serve as answer_requests
        from pipelines.registry.package import ANY, Confidence, opened

        asked = Confidence(*confidence)
        opened_model = opened(folder, asked)
        if asked != ANY:
            say(f"a label whose probability is below {asked.least(folder):.6g} is null")
        address = f"http://{host}:{bound.getsockname()[1]}/invocations"
        if host not in ("127.0.0.1", "::1", "localhost"):
            say(f"anybody who reaches {host} may ask: there is no password and no encryption")
        answer_requests(
            opened_model, called, bound, queue,
            ready=lambda: say(f"{address} answers; Ctrl-C ends it"), precision=precision,
        )  # fmt: skip


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at this address, so that no second server can take it meanwhile."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, port), family=family)
        # Opened again it knows its protocol: asyncio sends at once on sockets of TCP alone.
        return socket.socket(fileno=server.detach())
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port or "
            "--host"
        ) from error
