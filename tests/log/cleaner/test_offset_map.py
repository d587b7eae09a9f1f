"""Protects the offset map: it is a dictionary of the last offsets, in bounded memory, whose hash no client can make collide."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.record_scan import RecordColumns
from kcli.log.cleaner import offset_map
from tests.interpreted import interpreted

WAYS: dict[str, Any] = {"as installed": offset_map, "interpreted": interpreted(offset_map)}
SECRET = bytes(range(16))

Row = tuple[bytes | None, bytes | None]  # key, value
keys = st.none() | st.integers(0, 30).map(lambda number: b"%d" % number) | st.binary(max_size=20)
rows_of = st.lists(st.tuples(keys, st.none() | st.just(b"value")), max_size=40)


def window(rows: list[Row], first_offset: int) -> tuple[bytes, RecordColumns]:
    """Records as columns, at one offset behind the other."""
    columns, buffer = RecordColumns(max(len(rows), 1)), b""
    for index, (key, value) in enumerate(rows):
        columns.offset[index] = first_offset + index
        columns.key_position[index] = len(buffer)
        columns.key_size[index] = -1 if key is None else len(key)
        columns.value_size[index] = -1 if value is None else len(value)
        buffer += key or b""
    return buffer, columns


def hash_key(module: Any, buffer: bytes, position: int, secret: bytes, out: array[int]) -> None:
    """The hash of buffer[position:]."""
    where, size, row = array("q", (position,)), array("q", (len(buffer) - position,)), array("q", (0,))
    module.hash_keys(buffer, where, size, row, 1, module.sip_state(secret), out)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ],
)
def test_the_hash_is_siphash_2_4_of_128_bits(way: str, size: int, expected: str) -> None:
    """The vectors of the reference: the key 00 to 0f, the message 00, 01, ..."""
    module, out = WAYS[way], array("Q", (0, 0))
    hash_key(module, b"\xff" + bytes(range(size)), 1, SECRET, out)
    assert out.tobytes().hex() == expected


@pytest.mark.parametrize("way", WAYS)
@given(rows_of, st.integers(0, 2**40), st.integers(-2, 12), st.integers(0, 20))
def test_it_is_a_dictionary_of_last_offsets(way: str, rows: list[Row], first: int, behind: int, windows: int) -> None:
    module = WAYS[way]
    made, expected = module.OffsetMap(1 << 16, SECRET), {}
    start = first + behind
    for number in range(windows):
        buffer, columns = window(rows, first + 100 * number)
        assert made.put(buffer, columns, len(rows), start) == len(rows)
        for index, (key, _) in enumerate(rows):
            if key is not None and first + 100 * number + index >= start:
                expected[key] = first + 100 * number + index
    assert len(made) == len(expected)
    assert {key: made.get(key) for key in expected} == expected
    assert made.get(b"a key that no client writes") == -1


@pytest.mark.parametrize("way", WAYS)
@given(rows_of, st.booleans(), st.integers(0, 50))
def test_what_stays(way: str, rows: list[Row], keeps_tombstones: bool, latest: int) -> None:
    """A record that the map does not account for, and the last of its key, if it has a value or tombstones stay."""
    module = WAYS[way]
    made = module.OffsetMap(1 << 16, SECRET)
    buffer, columns = window(rows, 0)
    noted = rows[: latest + 1]
    made.put(buffer, columns, len(noted), 0)
    made.latest_offset = latest
    retained = module.RetainedRecords(len(rows))
    last = {key: offset for offset, (key, _) in enumerate(noted)}
    expected = [
        offset > latest or (key is not None and offset >= last.get(key, -1) and (value is not None or keeps_tombstones))
        for offset, (key, value) in enumerate(rows)
    ]
    made.retain(buffer, columns, len(rows), retained, keeps_tombstones=keeps_tombstones)
    assert list(map(bool, retained.flags)) == expected
    tombstones = sum(stays and value is None for stays, (_, value) in zip(expected, rows, strict=True))
    without_key = sum(key is None for key, _ in noted)
    dropped = sum(value is None for _, value in rows) - tombstones
    counts = (retained.count, retained.tombstones, retained.without_key, retained.dropped_tombstones)
    assert counts == (sum(expected), tombstones, without_key, dropped)


@pytest.mark.parametrize("way", WAYS)
def test_it_grows_up_to_its_memory_and_says_where_it_was_full(way: str) -> None:
    module = WAYS[way]
    rows: list[Row] = [(b"%d" % number, b"") for number in range(9000)]
    buffer, columns = window(rows, 0)
    made = module.OffsetMap(8192 * module.SLOT_BYTES, SECRET)
    assert made.memory_bytes == 4096 * module.SLOT_BYTES
    noted = 0
    while (noted := made.put(buffer, columns, len(rows), 0, noted)) < len(rows) and made.may_grow:
        held = len(made)
        while made.grow():
            pass
        assert len(made) == held == noted
        assert [made.get(key) for key, _ in rows[:noted] if key is not None] == list(range(noted))
    assert made.is_full
    assert noted == len(made) == int(8192 * module.LOAD_FACTOR)
    assert made.memory_bytes == 8192 * module.SLOT_BYTES
    assert [made.get(key) for key, _ in rows[:noted] if key is not None] == list(range(noted))
    assert made.get(b"%d" % noted) == module.ABSENT


@pytest.mark.parametrize("way", WAYS)
def test_a_secret_of_another_round_gives_another_hash(way: str) -> None:
    module, first, second = WAYS[way], array("Q", (0, 0)), array("Q", (0, 0))
    hash_key(module, b"key", 0, SECRET, first)
    hash_key(module, b"key", 0, bytes(16), second)
    assert first != second
