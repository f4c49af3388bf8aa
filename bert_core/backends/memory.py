"""Whether the process keeps the memory that a step frees.

The C library of Linux takes pages from the kernel, which clears them first, and returns large
blocks when they are freed. Keeping them makes later steps faster. The first steps compile their
matrix products, which stay in memory: allocated among kept blocks, they would leave holes between
the steps' tensors, a tenth of the memory of a BERT-base.
"""

import ctypes
import sys
from typing import Final

_KIBIBYTE: Final = 1 << 10
_MEBIBYTE: Final = 1 << 20
_GIBIBYTE: Final = 1 << 30

# Names and numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


def return_freed_memory() -> bool:
    """Return freed blocks of a mebibyte and more to the kernel; False without glibc.

    For the time before a model is built and for the first steps.
    """
    return _set(
        {_M_MMAP_THRESHOLD: _MEBIBYTE, _M_TRIM_THRESHOLD: _MEBIBYTE, _M_TOP_PAD: 128 * _KIBIBYTE}
    )


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks; False without glibc."""
    # Other threads than the first allocate from heaps of 64 MiB. An empty heap would be returned
    # whatever the threshold, unless the padding is as large: a worker's step did that each time.
    return _set(
        {_M_MMAP_THRESHOLD: _GIBIBYTE, _M_TRIM_THRESHOLD: _GIBIBYTE, _M_TOP_PAD: 64 * _MEBIBYTE}
    )


def _set(parameters: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    try:
        mallopt = library.mallopt
    except AttributeError:  # another C library
        return False
    return all(bool(mallopt(name, value)) for name, value in parameters.items())
