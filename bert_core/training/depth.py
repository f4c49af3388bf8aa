"""How deep in a model a parameter is, by its name.

Depth 0 are the embeddings, i + 1 layer i of the encoder, and the number of layers + 1 the heads.
"""

import re
from collections.abc import Collection, Iterable

from torch import Tensor

_LAYER = re.compile(r"(?:^|\.)encoder\.layers\.(\d+)\.")
_ENCODER = re.compile(r"(?:^|\.)encoder\.")


def layer_of(name: str) -> int | None:
    """The encoder layer that the parameter `name` belongs to; None outside of them."""
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def head_depth(names: Iterable[str]) -> int:
    """The depth of the heads, one above the topmost layer of the model with parameters `names`."""
    layers = (layer_of(name) for name in names)
    return 1 + max((layer + 1 for layer in layers if layer is not None), default=0)


def depths(names: Collection[str]) -> dict[str, int]:
    """Each parameter's depth; `names` are those of the whole model, the frozen ones included.

    Parameters of the encoder outside its layers count as embeddings: their gradients are known to
    be complete only at the end of the backward pass.
    """
    head = head_depth(names)
    found = {}
    for name in names:
        layer = layer_of(name)
        outside = 0 if _ENCODER.search(name) else head
        found[name] = outside if layer is None else layer + 1
    return found


def published_matrices(name: str, matrix: Tensor) -> tuple[Tensor, ...]:
    """The published BERT's matrices in `matrix`, as views of it.

    Queries, keys and values are made by one matrix [3D, D] here and by three [D, D] there.
    """
    return matrix.chunk(3) if name.endswith("attention.to_qkv.weight") else (matrix,)
