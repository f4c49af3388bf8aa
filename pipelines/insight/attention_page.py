"""Pictures of what attends to what: a page to explore, or a sheet of all layers and heads."""

import json
from importlib.resources import files
from pathlib import Path

from matplotlib.figure import Figure

from bert_core.inference import AttentionMaps, attention_maps
from pipelines.core.errors import UserError
from pipelines.insight.png import png_of
from pipelines.registry.opening import opened

_PLACE = "/* attention goes here */"
_MAX_TOKENS_OF_A_SHEET = 40  # more would not be readable
_COLOURS = "Blues"


def inspect(folder: Path, text: str, target: Path) -> AttentionMaps:
    """Draw how the model in `folder` attends over `text`, as `target`, a .html or .png file.

    The page shows one layer and head at a time and answers the pointer; the sheet shows them all.
    Raises UserError for another kind of file and for a text too long for a sheet.
    """
    draw = {".html": attention_page, ".png": attention_sheet}.get(target.suffix)
    if draw is None:
        raise UserError(f"the picture must be a .html or .png file, got {target}")
    maps = attention_maps(*opened(folder), text)
    target.write_bytes(draw(maps))
    return maps


def attention_page(maps: AttentionMaps) -> bytes:
    """A self-contained page: choose layer and head, point at a token, see what it reads."""
    layers, heads = maps.probabilities.shape[:2]
    data = {
        "pieces": maps.pieces,
        "layers": layers,
        "heads": heads,
        "probabilities": maps.probabilities.round(4).tolist(),
    }
    template = (files("pipelines.insight") / "attention.html").read_text(encoding="utf-8")
    # No piece may end the script that holds it.
    return template.replace(_PLACE, json.dumps(data).replace("<", "\\u003c")).encode()


def attention_sheet(maps: AttentionMaps) -> bytes:
    """A PNG with a row per layer and a column per head; dark means much attention.

    Raises UserError for more tokens than can be read on it.
    """
    num_pieces = len(maps.pieces)
    if num_pieces > _MAX_TOKENS_OF_A_SHEET:
        raise UserError(
            f"a sheet shows at most {_MAX_TOKENS_OF_A_SHEET} tokens, got {num_pieces}; "
            "shorten the text or ask for a .html page"
        )
    layers, heads = maps.probabilities.shape[:2]
    side = 1.2 + 0.16 * num_pieces
    figure = Figure(figsize=(side * heads, side * layers), layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer][head]
            axes.imshow(maps.probabilities[layer, head], cmap=_COLOURS, vmin=0, vmax=1)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
            axes.set_xticks(range(num_pieces), maps.pieces, rotation=90, fontsize=6)
            axes.set_yticks(range(num_pieces), maps.pieces, fontsize=6)
    figure.supxlabel("is read", fontsize=9)
    figure.supylabel("reads", fontsize=9)
    return png_of(figure)
