"""Commands that bring models in and out, and that look into them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.commands.models import Model, newest, tracker_of
from flows.cli.options import Home
from pipelines.core.errors import UserError


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command("import")(bring_in)
    app.command("export")(take_out)
    app.command("inspect")(inspect)
    app.command("similar")(similar)


def bring_in(
    directory: Annotated[Path, typer.Argument(help="A Hugging Face BERT directory.")],
    to: Annotated[
        Path | None, typer.Option(help="New folder. [default: <directory>-bertsmith]")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Keep this head alone.")] = None,
) -> None:
    """Turn a Hugging Face BERT directory into a model folder that every command takes.

    Example: bertsmith import bert-base-uncased --to my-bert
    """
    from pipelines.registry import exchange

    target = to or directory.with_name(f"{directory.name}-bertsmith")
    model = exchange.bring_in(directory, target, head)
    print(f"{model.folder}: a {model.head} model with {model.num_parameters:,} parameters")
    print(f"next: bertsmith inspect 'Some text.' --model {model.folder} --out attention.html")


def take_out(
    model: Annotated[str, typer.Argument(help="name, name@alias, name/version or a folder.")],
    to: Annotated[Path, typer.Option(help="New folder for transformers.")],
    pooling: Annotated[
        str | None, typer.Option(help="mean or cls: for sentence-transformers, too.")
    ] = None,
    home: Home = None,
) -> None:
    """Write a model as a directory that transformers' Auto classes open.

    Example: bertsmith export bertsmith-encoder@champion --to my-encoder
    """
    from pipelines.registry import exchange

    written = exchange.take_out(tracker_of(home), model, to, pooling)
    print(f"{written.folder}: a {written.head} model with {written.num_parameters:,} parameters")


def inspect(
    text: Annotated[str, typer.Argument(help="A text.")],
    out: Annotated[Path, typer.Option(help="A .html page or a .png sheet.")],
    model: Model = None,
    home: Home = None,
) -> None:
    """Draw what attends to what in a text, for every layer and head.

    Example: bertsmith inspect 'Returns the sum of the array.' --out attention.html
    """
    _require_place(out, (".html", ".png"))
    tracker = tracker_of(home, needs=None if model else "encoder")
    from pipelines.insight.attention_page import inspect as draw
    from pipelines.registry.opening import located

    with located(tracker, model or newest(tracker, "encoder")) as folder:
        maps = draw(folder, text, out)
    layers, heads = maps.probabilities.shape[:2]
    print(f"{out}: {layers} layers, {heads} heads, {len(maps.pieces)} tokens")
    if maps.is_truncated:
        print("the text was longer than the model reads: its end is not in the picture")


def similar(
    texts: Annotated[list[str], typer.Argument(help="Two or more words or texts.")],
    out: Annotated[Path | None, typer.Option(help="A .png picture.")] = None,
    model: Model = None,
    home: Home = None,
) -> None:
    """Show how near words or texts are to each other in an encoder's eyes.

    Example: bertsmith similar matrix vector tensor plot figure --out similar.png
    """
    if out is not None:
        _require_place(out, (".png",))
    tracker = tracker_of(home, needs=None if model else "encoder")
    from pipelines.insight.similarity_picture import draw_similarities, similarities
    from pipelines.registry.opening import located

    with located(tracker, model or newest(tracker, "encoder")) as folder:
        matrix, plane = similarities(folder, texts)
    width = max(len(text) for text in texts)
    for text, row in zip(texts, matrix.tolist(), strict=True):
        print(f"{text:<{width}}  " + "  ".join(f"{value:5.2f}" for value in row))
    if out is not None:
        draw_similarities(texts, matrix, plane, out)
        print(f"{out}: the matrix, and the texts in the plane")


def _require_place(out: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError where no picture could be written; asked before a model is loaded."""
    if out.suffix not in suffixes:
        raise UserError(f"the picture must be a {' or '.join(suffixes)} file, got {out}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UserError(
            f"the picture {out} must be a file in a folder that exists and can be written, but it "
            "is not; make the folder or choose another --out"
        )
