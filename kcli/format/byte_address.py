"""The address of a buffer's first byte, and copies of bytes, for compiled loops that would else make an object for each access.

    function            interpreted                  compiled
    ------------------  ---------------------------  ------------------------------------------------------------------------
    readable, writable  the buffer itself            a C pointer to its first byte; an empty buffer has no address
    readable_bytes      the bytes object             a C pointer to its first byte
    writable_bytearray  the bytearray                a C pointer to its first byte; not valid after `resize`
    resize              appends zeros, or cuts       a new size, without a value for new bytes
    uint32              four bytes, little-endian    the same, one load
    part                a slice, as bytes            the same from a typed view, without the slice's own object
    copy_bytes          assigns a slice              memcpy from a bytes object to a pointer
    copy_range          assigns a slice to a slice   memcpy between pointers
    copy_part           assigns a slice to a slice   memcpy between typed views

The functions for `bytes` and `bytearray` spare the view of a buffer, which takes 0.1 us, as long as all else for a record of
100 bytes that a producer encodes. Cython passes a view to a function as a struct of 200 bytes; the functions of record_lines
and record_rows are called some ten times for a record, and with pointers `dump-log --output json` takes 7 % less CPU time (1
million records of 100 bytes, with start-up: 0.486 s becomes 0.451 s).

The caller checks the bounds, and keeps the buffer as long as the pointer. Compiled modules include byte_address.pxd; so a
change there needs a build.
"""

from kcli.format.primitives import Buffer


def readable(buffer: Buffer) -> Buffer:
    """Return what a loop may read by its index."""
    return buffer


def writable(buffer: memoryview) -> memoryview:
    """Return what a loop may write to by its index."""
    return buffer


def readable_bytes(data: bytes) -> bytes:
    """Return what a loop may read by its index."""
    return data


def writable_bytearray(data: bytearray) -> bytearray:
    """Return what a loop may write to by its index."""
    return data


def resize(data: bytearray, size: int) -> None:
    """Give a bytearray another size. New bytes may have any value."""
    data.extend(bytes(max(size - len(data), 0)))
    del data[size:]


def uint32(data: Buffer, position: int) -> int:
    """Return the little-endian uint32 at data[position]."""
    return int.from_bytes(data[position : position + 4], "little")


def part(data: Buffer, position: int, size: int) -> bytes:
    """Return data[position:position + size], of a buffer that is not empty, as bytes."""
    return bytes(data[position : position + size])


def copy_bytes(out: bytearray, at: int, data: bytes, size: int) -> None:
    """Copy the `size` bytes of `data` to out[at:]."""
    out[at : at + size] = data


def copy_part(out: bytearray | memoryview, at: int, data: Buffer, position: int, size: int) -> None:
    """Assign data[position:position + size] to out[at:]; both exist."""
    out[at : at + size] = data[position : position + size]


copy_range = copy_part
