"""Find the pages of an open file that are not in the page cache, without changing it: mincore(2) of a mapping that is not read.

A read that does not wait (RWF_NOWAIT) is not usable for this: on Linux 6.18 it starts to read the missing pages, and on a fast
device they arrive before the call returns, or before the next call, and look as if they had been cached.

Linux answers only if the process owns the file or may write it. Otherwise, and on other systems, every page counts as cached.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

# On other systems the byte of a page has more bits than that for being resident.
_MINCORE = getattr(ctypes.CDLL(None), "mincore", None) if sys.platform == "linux" else None


def uncached_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) of whole pages with bytes between `start` and `end` that are not cached.

    `end` is at most the file's size. Raises OSError or ValueError if the file cannot be mapped up to there.
    """
    start -= start % mmap.PAGESIZE
    pages = -(-(end - start) // mmap.PAGESIZE)
    if _MINCORE is None or pages <= 0:
        return []
    resident = ctypes.create_string_buffer(pages)
    # Private and writable because ctypes returns the address only of writable buffers; no page is touched.
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with mmap.mmap(descriptor, end - start, flags=mmap.MAP_PRIVATE, prot=protection, offset=start) as view:
        if _MINCORE(ctypes.byref(ctypes.c_char.from_buffer(view)), ctypes.c_size_t(end - start), resident) != 0:
            return []
    found, states = [], resident.raw
    page = states.find(0)
    while page >= 0:
        behind = states.find(1, page)
        behind = pages if behind < 0 else behind
        found.append((start + page * mmap.PAGESIZE, start + behind * mmap.PAGESIZE))
        page = states.find(0, behind)
    return found
