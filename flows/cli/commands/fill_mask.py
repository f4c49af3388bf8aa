"""The command that asks an encoder for the words behind [MASK]."""

import json
from dataclasses import asdict
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
