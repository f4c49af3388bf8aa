"""Pictures of texts as a model sees them: what attends to what, and how near they are."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bert_core.inference import AttentionMaps, attention_maps, embed
from pipelines.config.errors import UserError
from pipelines.insight.pictures import png_of
from pipelines.registry.opening import opened

_PLACE = "/* attention goes here */"
_MAX_TOKENS_OF_A_SHEET = 40  # more would not be readable
_COLOURS = "Blues"
_MIN_TEXTS = 2


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
        "tokens": maps.tokens,
        "layers": layers,
        "heads": heads,
        "probabilities": maps.probabilities.round(4).tolist(),
    }
    template = (files("pipelines.insight") / "attention.html").read_text(encoding="utf-8")
    # No token may end the script that holds it.
    return template.replace(_PLACE, json.dumps(data).replace("<", "\\u003c")).encode()


def attention_sheet(maps: AttentionMaps) -> bytes:
    """A PNG with a row per layer and a column per head; dark means much attention.

    Raises UserError for more tokens than can be read on it.
    """
    num_tokens = len(maps.tokens)
    if num_tokens > _MAX_TOKENS_OF_A_SHEET:
        raise UserError(
            f"a sheet shows at most {_MAX_TOKENS_OF_A_SHEET} tokens, got {num_tokens}; "
            "shorten the text or ask for a .html page"
        )
    layers, heads = maps.probabilities.shape[:2]
    side = 1.2 + 0.16 * num_tokens
    figure = Figure(figsize=(side * heads, side * layers), layout="constrained")
    grid = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = grid[layer][head]
            axes.imshow(maps.probabilities[layer, head], cmap=_COLOURS, vmin=0, vmax=1)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
            axes.set_xticks(range(num_tokens), maps.tokens, rotation=90, fontsize=6)
            axes.set_yticks(range(num_tokens), maps.tokens, fontsize=6)
    figure.supxlabel("is read", fontsize=9)
    figure.supylabel("reads", fontsize=9)
    return png_of(figure)


def similarities(folder: Path, texts: Sequence[str]) -> tuple[NDArray[np.float32], NDArray]:
    """[N, N] cosine similarities of N texts, and [N, 2] where they lie in the plane.

    The plane is that of the two principal components of the embeddings. Raises UserError for
    fewer than two texts.
    """
    if len(texts) < _MIN_TEXTS:
        raise UserError(f"similarity needs at least {_MIN_TEXTS} words or texts, got {len(texts)}")
    model, tokenizer = opened(folder)
    vectors = embed(model, tokenizer, list(texts)).vectors
    centred = vectors - vectors.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(texts), 2))
    count = min(2, len(sizes))
    plane[:, :count] = left[:, :count] * sizes[:count]
    return vectors @ vectors.T, plane


def draw_similarities(
    texts: Sequence[str], matrix: NDArray[np.float32], plane: NDArray, target: Path
) -> None:
    """Write the matrix and the map side by side as a PNG; UserError for another kind of file."""
    if target.suffix != ".png":
        raise UserError(f"the picture must be a .png file, got {target}")
    side = 3.2 + 0.28 * len(texts)
    figure = Figure(figsize=(2 * side, side), layout="constrained")
    table, area = figure.subplots(1, 2)
    shown = table.imshow(matrix, cmap="viridis", vmin=float(matrix.min()), vmax=1.0)
    table.set_xticks(range(len(texts)), texts, rotation=90, fontsize=8)
    table.set_yticks(range(len(texts)), texts, fontsize=8)
    table.set_title("cosine similarity", fontsize=11)
    figure.colorbar(shown, ax=table, shrink=0.8)
    area.scatter(plane[:, 0], plane[:, 1], s=18, color="#1f6f8b")
    for text, (across, up) in zip(texts, plane, strict=True):
        area.annotate(text, (across, up), xytext=(4, 3), textcoords="offset points", fontsize=8)
    area.set_title("two principal components", fontsize=11)
    area.spines[["top", "right"]].set_visible(False)
    area.margins(0.15)
    target.write_bytes(png_of(figure))
