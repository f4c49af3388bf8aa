"""Files of tensors, read so that a broken one is named."""

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of the older .bin, on the CPU.

    Raises ValueError, naming the file, where it is broken. No code of a .bin is run.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    # torch says RuntimeError of an archive that is cut off.
    except (SafetensorError, pickle.UnpicklingError, EOFError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} must hold tensors, but {reason}; is it whole?") from error
    return tensors
