"""Memory that a step frees is memory the next step needs.

The C library of Linux gives large blocks back to the kernel when they are freed and takes fresh
pages for the next ones, which the kernel has to clear.
"""

import ctypes
import sys
from typing import Final

_GIBIBYTE: Final = 1 << 30

# Names and numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks for itself; False where there is no glibc to ask."""
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    try:
        mallopt = library.mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _GIBIBYTE) and mallopt(_M_TRIM_THRESHOLD, _GIBIBYTE))
