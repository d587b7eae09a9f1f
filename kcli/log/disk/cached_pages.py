"""Which pages of an open file are not in the page cache, told without changing it: mincore(2) of a mapping that nobody reads.

To try and read without waiting (RWF_NOWAIT) does not tell it: on Linux 6.18 such a read starts to bring in what is missing, and
where the device is quick, that has come before the read gives up, or before the next one, and passes for cached all along.

Linux tells it only to who owns the file or may write it. To others, and on other systems, every page counts as cached.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

# Elsewhere a page's byte has more bits than the one that says whether it is there.
_MINCORE = getattr(ctypes.CDLL(None), "mincore", None) if sys.platform == "linux" else None


def uncached_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """The stretches of whole pages, as [first byte, byte behind), that hold bytes `start` to `end` and are not cached.

    `end` is at most the file's size. Raises OSError or ValueError where the file cannot be mapped, or not so far.
    """
    start -= start % mmap.PAGESIZE
    pages = -(-(end - start) // mmap.PAGESIZE)
    if _MINCORE is None or pages <= 0:
        return []
    resident = ctypes.create_string_buffer(pages)
    # Private and writable because ctypes gives the address of nothing else; no page of it is touched.
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
