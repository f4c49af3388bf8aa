"""Whether the blocks that a step frees stay with the process; and how a GPU's memory grows.

The C library of Linux takes pages from the kernel, which clears them first, and gives large blocks
back when they are freed. Steps that are all alike had better keep them. The first steps are not:
they compile their products, and what is compiled stays. Among blocks that are kept it would come
to lie between the steps' tensors and leave holes that nothing fits in, a tenth of the memory of a
BERT-base.
"""

import ctypes
import os
import sys
from typing import Final

import torch

_KIBIBYTE: Final = 1 << 10
_MEBIBYTE: Final = 1 << 20
_GIBIBYTE: Final = 1 << 30

# How a person tells torch's allocator what to do; the second is the older name.
_ALLOCATOR_VARIABLES: Final = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

# Names and numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def return_freed_memory() -> bool:
    """Let blocks of a mebibyte and more go back to the kernel; False where there is no glibc.

    Before a model is built and in the first steps.
    """
    return _set(
        {_M_MMAP_THRESHOLD: _MEBIBYTE, _M_TRIM_THRESHOLD: _MEBIBYTE, _M_TOP_PAD: 128 * _KIBIBYTE}
    )


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks for itself; False where there is no glibc to ask."""
    # A thread that is not the first allocates from heaps of 64 MiB. An empty one would go back
    # whatever the threshold, were it not for a padding of that size; a training step of a worker
    # took and returned one each time.
    return _set(
        {_M_MMAP_THRESHOLD: _GIBIBYTE, _M_TRIM_THRESHOLD: _GIBIBYTE, _M_TOP_PAD: 64 * _MEBIBYTE}
    )


def let_segments_grow() -> bool:
    """Have torch's allocator of a GPU enlarge its segments; False where a person set it up.

    Ragged batches ask for other sizes in each step, and segments of fixed sizes would leave holes.
    Holds for what is allocated from now on, whether CUDA has started or not: in a worker Ray has
    started it before any of our code runs, which is too late for the variable of the environment.
    """
    if any(os.environ.get(name) for name in _ALLOCATOR_VARIABLES):
        return False
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    return True


def _set(parameters: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    try:
        mallopt = library.mallopt
    except AttributeError:  # another C library
        return False
    return all(bool(mallopt(name, value)) for name, value in parameters.items())
