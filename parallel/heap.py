"""Memory that a step has freed is kept for the next one, which wants as much again.

The C library would give it back to the system after every step, and the system would hand it out
anew, page by page: a tenth of a step of two thousand events.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

TRIM, MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
KEPT = 2**29  # bytes that may lie free at the end of the heap
HEAP = 2**25  # bytes from which memory is not taken from the heap: the most that glibc allows


@cache
def keep_freed_memory() -> bool:
    """Asks glibc for that, once in a process; whether it does.

    Whoever has set `MALLOC_*` or `GLIBC_TUNABLES` in the environment is left alone.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(TRIM, KEPT)) and bool(mallopt(MMAP, HEAP))
