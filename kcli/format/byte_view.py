"""Bytes of any buffer that compiled loops read by positions: as kcli.format.byte_copy, for buffers that are not `bytes`.

    function    interpreted         compiled
    ----------  ------------------  -------------------------------------------------------------
    readable    the buffer itself   a C pointer to its first byte; an empty buffer has no address
    copy_part   assigns a slice     memcpy

The buffer must live as long as the pointer: keep both. Neither function checks bounds.
"""

from kcli.format.primitives import Buffer


def readable(buffer: Buffer) -> Buffer:
    """Return what a loop may read by its index."""
    return buffer


def copy_part(out: bytearray, position: int, data: Buffer, start: int, size: int) -> None:
    """Copy `size` bytes from data[start] on to out[position]."""
    out[position : position + size] = data[start : start + size]
