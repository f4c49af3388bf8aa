"""The tensors of a published checkpoint, by the names that its files use and by today's names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from bert_core.files.json_files import entry, read_json
from bert_core.files.tensor_files import listed, read_tensors
from bert_core.hugging_face.tensors import REDUNDANT, modern_name

_FILES: Final = ("model.safetensors", "pytorch_model.bin")
_FOREIGN: Final = {  # files of other programs' checkpoints, by how they end
    ".ckpt.index": "TensorFlow", "model.ckpt.meta": "TensorFlow", ".h5": "TensorFlow",
    ".msgpack": "Flax", ".onnx": "ONNX", ".gguf": "llama.cpp",
}  # fmt: skip


class Checkpoint:
    """The tensors in the folder of a checkpoint, in one file or in shards.

    `tensors` has them by today's names; `name_of` says what the files call one. Raises ValueError,
    naming the file, for files that are missing or broken, that hold a tensor twice, or numbers that
    are not finite or of a kind that no weights are.
    """

    def __init__(self, folder: Path) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[str, str] = {}
        for path in _files(folder):
            for name, tensor in read_tensors(path).items():
                self._take(name, tensor, path)
        self._has_prefix = any(name.startswith("bert.") for name in self._names.values())
        self._is_old = any(name.endswith(("LayerNorm.gamma", "LayerNorm.beta"))
                           for name in self._names.values())  # fmt: skip

    def name_of(self, modern: str) -> str:
        """What the files call a tensor, or would call one that they lack."""
        if modern in self._names:
            return self._names[modern]
        name = modern if self._has_prefix else modern.removeprefix("bert.")
        if self._is_old:
            for new, old in (("weight", "gamma"), ("bias", "beta")):
                if name.endswith(f"LayerNorm.{new}"):
                    name = name.removesuffix(new) + old
        return name

    def listed(self, names: Iterable[str]) -> str:
        """Some of these tensors, by the names that the files use, and how many more there are."""
        return listed([self.name_of(name) for name in names])

    def _take(self, name: str, tensor: Tensor, path: Path) -> None:
        modern = modern_name(name)
        if modern in self.tensors:
            raise ValueError(
                f"{path} holds one tensor twice, as {name} and as {self._names[modern]}"
            )
        self._names[modern] = name
        if modern not in REDUNDANT:
            tensor = _checked_numbers(tensor, name, path)
        self.tensors[modern] = tensor


def _files(folder: Path) -> list[Path]:
    """All files of weights: safetensors or the older .bin, in one file or in shards."""
    for name in _FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            return [folder / name]
        if index.is_file():
            return _shards(index)
    foreign = sorted(
        (path.name, program)
        for path in folder.iterdir()
        for ending, program in _FOREIGN.items()
        if path.name.endswith(ending)
    )
    remedy = (
        f"convert {foreign[0][0]}, which is {foreign[0][1]}'s" if foreign else "is it complete?"
    )
    raise ValueError(f"{folder} has neither model.safetensors nor pytorch_model.bin; {remedy}")


def _shards(index: Path) -> list[Path]:
    places = entry(read_json(index), "weight_map", dict, index)
    if not places:
        raise ValueError(f"{index} must say in which file each tensor lies, found no weight_map")
    for name, place in places.items():
        if not isinstance(place, str) or Path(place).name != place or not place:
            raise ValueError(
                f"{index} must name a file beside it for every tensor, found {place!r:.80} "
                f"for {name}"
            )
    paths = [index.parent / place for place in sorted(set(places.values()))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ValueError(
            f"{index} names {len(paths)} files of weights that must lie beside it, found no "
            f"{listed(missing)}; download them all"
        )
    return paths


def _checked_numbers(tensor: Tensor, name: str, path: Path) -> Tensor:
    """In float32; whole numbers are ids or quantized weights, and neither is a weight."""
    is_plain = tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
    if not is_plain or not tensor.is_floating_point():
        raise ValueError(
            f"{path} must hold weights as floating-point numbers, found {name} as {tensor.dtype}; "
            "a quantized checkpoint has to be turned back first"
        )
    numbers = tensor.float()
    if not bool(torch.isfinite(numbers).all()):
        raise ValueError(f"{path} holds NaN or infinity in {name}; is the file damaged?")
    return numbers
