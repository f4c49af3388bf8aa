"""How near texts are to each other: the matrix of cosine similarities and a map in the plane."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bert_core.inference import embed
from pipelines.core.errors import UserError
from pipelines.insight.png import png_of
from pipelines.registry.opening import opened

_MIN_TEXTS = 2


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
