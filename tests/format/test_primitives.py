"""Protects the smallest pieces: varints in their bounds, layouts that are declared once, CRC-32C by its published value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.primitives import (
    FormatError,
    crc32c,
    read_unsigned_varint,
    read_varint,
    read_varlong,
    write_unsigned_varint,
    write_varint,
    zigzag_decode,
)

READERS = {
    "unsigned": (read_unsigned_varint, write_unsigned_varint, st.integers(0, 2**32 - 1), 5),
    "varint": (read_varint, write_varint, st.integers(-(2**31), 2**31 - 1), 5),
    "varlong": (read_varlong, write_varint, st.integers(-(2**63), 2**63 - 1), 10),
}


@pytest.mark.parametrize("kind", READERS)
@given(data=st.data(), before=st.binary(max_size=3), behind=st.binary(max_size=3))
def test_varints_come_back(kind: str, data: st.DataObject, before: bytes, behind: bytes) -> None:
    """Written and read back, wherever they stand; cut at any byte, or bounded there, they are refused with that byte."""
    read, write, values, most_bytes = READERS[kind]
    value = data.draw(values)
    encoded = write(value)
    whole = before + encoded + behind
    assert len(encoded) <= most_bytes
    assert read(whole, len(before), len(whole)) == (value, len(before) + len(encoded))
    for end in range(len(encoded)):
        for buffer in (whole, whole[: len(before) + end]):
            with pytest.raises(FormatError) as refused:
                read(buffer, len(before), len(before) + end)
            assert refused.value.position == len(before) + end


@pytest.mark.parametrize("kind", READERS)
def test_varints_of_too_many_bytes(kind: str) -> None:
    """One byte more than the type has, whatever its bits say, is refused; so many are taken, their overflow dropped."""
    read, _, _, most_bytes = READERS[kind]
    assert read(b"\x80" * (most_bytes - 1) + b"\x00", 0, most_bytes) == (0, most_bytes)
    assert read(b"\xff" * (most_bytes - 1) + b"\x7f", 0, most_bytes)[1] == most_bytes
    for last in (b"\x00", b"\x01", b"\x7f"):
        with pytest.raises(FormatError, match=f"more than {most_bytes} bytes"):
            read(b"\xff" * most_bytes + last, 0, most_bytes + 1)


@pytest.mark.parametrize(("raw", "value"), [(0, 0), (1, -1), (2, 1), (3, -2), (2**32 - 1, -(2**31)), (2**32 - 2, 2**31 - 1)])
def test_zigzag(raw: int, value: int) -> None:
    """Small numbers of either sign take few bits; the extremes fit."""
    assert zigzag_decode(raw) == value
    assert write_varint(value) == write_unsigned_varint(raw)


def test_a_negative_number_is_no_unsigned_varint() -> None:
    """It would never end."""
    with pytest.raises(ValueError, match="cannot hold -1"):
        write_unsigned_varint(-1)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_crc32c(data: bytes, cut: int) -> None:
    """The check value of the catalogue of CRCs, and pieces give what the whole gives."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data) == crc32c(memoryview(data))
