"""Commands that show what an encoder does with texts: fill-mask, attention, similarity."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.registry import AsJson, Home, Model, asked_model
from pipelines.config.errors import UserError


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
        from pipelines.inference.answers import fill
        from pipelines.registry.opening import opened

        gaps = fill(opened(folder), called, text, top_k=top)
    if as_json:
        print(json.dumps([[asdict(candidate) for candidate in gap] for gap in gaps]))
        return
    for number, gap in enumerate(gaps, start=1):
        if len(gaps) > 1:
            print(f"[MASK] {number}")
        for candidate in gap:
            print(f"{candidate.probability:6.1%}  {candidate.token}")


def attention(
    text: Annotated[str, typer.Argument(help="A text.")],
    out: Annotated[Path, typer.Option(help="A .html page or a .png sheet.")],
    model: Model = None,
    home: Home = None,
) -> None:
    """Draw the attention of every layer and head over a text.

    Example: bertsmith models attention 'Returns the sum of the array.' --out attention.html
    """
    _require_writable(out, (".html", ".png"))
    with asked_model(model, home, "encoder") as (folder, _):
        from pipelines.insight.text_pictures import inspect as draw

        maps = draw(folder, text, out)
    layers, heads = maps.probabilities.shape[:2]
    print(f"{out}: {layers} layers, {heads} heads, {len(maps.tokens)} tokens")
    if maps.is_truncated:
        print("the text is longer than the model reads: the picture leaves out its end")


def similar(
    texts: Annotated[list[str], typer.Argument(help="Two or more words or texts.")],
    out: Annotated[Path | None, typer.Option(help="A .png picture.")] = None,
    model: Model = None,
    home: Home = None,
) -> None:
    """Show the cosine similarity of words or texts by an encoder.

    Example: bertsmith models similar matrix vector tensor plot figure --out similar.png
    """
    if out is not None:
        _require_writable(out, (".png",))
    with asked_model(model, home, "encoder") as (folder, _):
        from pipelines.insight.text_pictures import draw_similarities, similarities

        matrix, plane = similarities(folder, texts)
    width = max(len(text) for text in texts)
    for text, row in zip(texts, matrix.tolist(), strict=True):
        print(f"{text:<{width}}  " + "  ".join(f"{value:5.2f}" for value in row))
    if out is not None:
        draw_similarities(texts, matrix, plane, out)
        print(f"{out}: the matrix, and the texts in the plane")


def _require_writable(out: Path, suffixes: tuple[str, ...]) -> None:
    """Raise UserError if no picture can be written, before a model is loaded."""
    if out.suffix not in suffixes:
        raise UserError(f"--out {out}: pictures are written as {' or '.join(suffixes)} files")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise UserError(f"cannot write to {out}: make its folder, or choose another --out")
