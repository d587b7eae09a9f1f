"""Bytes that compiled loops read, write and copy without an object for each access.

    function    interpreted                      compiled
    ----------  -------------------------------  -----------------------------------------------
    readable    the bytes object                 a C pointer to its first byte
    writable    the bytearray                    a C pointer to its first byte
    resize      appends zeros, or cuts           a new size, without a value for new bytes
    copy        assigns a slice                  memcpy
    uint32      four bytes, little-endian        the same, one load
    copy_part   assigns a slice to a slice       memcpy between typed views
    part        a slice, as bytes                the same from a typed view, without the slice's own object

kcli.inspect.dumping.byte_address does this for buffers of any type by a view; a view takes 0.1 us, as long as all else for
a record of 100 bytes that a producer encodes. These functions take `bytes` and `bytearray` only and check no bounds: the
caller has done so. Resizing a bytearray moves it: call `writable` again. Compiled modules include byte_copy.pxd; so a change
there needs a build.
"""

from kcli.format.primitives import Buffer


def readable(data: bytes) -> bytes:
    """Return what a loop may read by its index."""
    return data


def writable(data: bytearray) -> bytearray:
    """Return what a loop may write to by its index."""
    return data


def resize(data: bytearray, size: int) -> None:
    """Give a bytearray another size. New bytes may have any value."""
    data.extend(bytes(max(size - len(data), 0)))
    del data[size:]


def copy(out: bytearray, position: int, data: bytes, size: int) -> None:
    """Copy the `size` bytes of `data` to out[position]."""
    out[position : position + size] = data


def uint32(data: Buffer, position: int) -> int:
    """Return the little-endian uint32 at data[position]."""
    return int.from_bytes(data[position : position + 4], "little")


def part(data: Buffer, position: int, size: int) -> bytes:
    """Return data[position:position + size], of a buffer that is not empty, as bytes."""
    return bytes(data[position : position + size])


def copy_part(out: bytearray | memoryview, at: int, data: Buffer, position: int, size: int) -> None:
    """Assign data[position:position + size] to out[at:]; both exist."""
    out[at : at + size] = data[position : position + size]
