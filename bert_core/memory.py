"""Whether the blocks that a step frees stay with the process.

The C library of Linux takes pages from the kernel, which clears them first, and gives large blocks
back when they are freed. Steps that are all alike had better keep them. The first steps are not:
they compile their products, and what is compiled stays. Among blocks that are kept it would come
to lie between the steps' tensors and leave holes that nothing fits in, a tenth of the memory of a
BERT-base.
"""

import ctypes
import sys
from typing import Final

_MEBIBYTE: Final = 1 << 20
_GIBIBYTE: Final = 1 << 30

# Names and numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def return_freed_memory() -> bool:
    """Let blocks of a mebibyte and more go back to the kernel; False where there is no glibc.

    Before a model is built and in the first steps.
    """
    return _set_thresholds(mmap=_MEBIBYTE, trim=_MEBIBYTE)


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks for itself; False where there is no glibc to ask."""
    return _set_thresholds(mmap=_GIBIBYTE, trim=_GIBIBYTE)


def _set_thresholds(*, mmap: int, trim: int) -> bool:
    """Blocks from `mmap` bytes on are the kernel's; of the others it gets `trim` bytes back."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    try:
        mallopt = library.mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, mmap) and mallopt(_M_TRIM_THRESHOLD, trim))
