"""Files of tensors; a broken one is named."""

import pickle
import struct
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bert_core.files import check_fetched

# What readers raise for bytes that are none of theirs: torch says RuntimeError of an archive that
# is cut off, and its reader of pickles whatever the pickle makes it do.
_BROKEN: Final = (
    SafetensorError, pickle.UnpicklingError, struct.error, ArithmeticError, AssertionError,
    AttributeError, EOFError, LookupError, OSError, RecursionError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip

_MOST_NAMES: Final = 8  # that a message lists


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of the older .bin, on the CPU.

    Raises ValueError, naming the file, if it is missing or broken, or holds anything but
    tensors by their names. No code of a .bin is run.
    """
    check_fetched(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with warnings.catch_warnings(action="ignore"):  # of versions of the format
            found = torch.load(path, map_location="cpu", weights_only=True)
    except _BROKEN as error:
        raise ValueError(f"{path} holds no tensors ({_reason(error)}); is it complete?") from error
    _check_only_tensors(found, path)
    tensors: dict[str, Tensor] = found
    return tensors


def _reason(error: Exception) -> str:
    """What a reader said, in the words of one sentence."""
    said = " ".join(str(error).split())
    if isinstance(error, pickle.UnpicklingError) and ("Unsupported" in said or "GLOBAL" in said):
        return "it holds Python objects, whose code is not run here"
    return (said.split(". ")[0] or type(error).__name__).rstrip(".")[:200]


def _check_only_tensors(found: Any, path: Path) -> None:
    if not isinstance(found, dict):
        raise ValueError(
            f"{path} must hold tensors by their names, found a {type(found).__name__}; save "
            "model.state_dict() alone"
        )
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{path} must hold tensors by their names, found {name!r:.80}, a "
                f"{type(value).__name__}; save model.state_dict() alone"
            )


def listed(names: Sequence[str]) -> str:
    """Some of these names for a message, and how many more there are; `none` of none."""
    more = len(names) - _MOST_NAMES
    return (", ".join(names[:_MOST_NAMES]) or "none") + (f" and {more} more" if more > 0 else "")


def check_names(found: Iterable[str], wanted: Iterable[str], source: str, remedy: str = "") -> None:
    """Raise ValueError if `source` does not hold exactly the tensors `wanted`."""
    theirs, ours = set(found), set(wanted)
    if ours != theirs:
        raise ValueError(
            f"{source} must hold exactly the tensors of the model: missing "
            f"{listed(sorted(ours - theirs))}; unexpected {listed(sorted(theirs - ours))}{remedy}"
        )
