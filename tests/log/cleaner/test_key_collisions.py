"""Protects records from keys that collide: in Kafka, whose map compares MD5s, the first record of such a pair is lost."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.log.cleaner.offset_map import SLOT_BYTES, OffsetMap, RetainedRecords
from tests.log.cleaner.logs import CompactedLog
from tests.log.cleaner.random_logs import SECRET
from tests.log.cleaner.test_offset_map import window
from tests.log.live_logs import new_batch

# Two messages of one MD5 (Wang and Yu, 2004), which differ in six bytes.
_FIRST = bytes.fromhex(
    "d131dd02c5e6eec4693d9a0698aff95c2fcab58712467eab4004583eb8fb7f89"
    "55ad340609f4b30283e488832571415a085125e8f7cdc99fd91dbdf280373c5b"
    "d8823e3156348f5bae6dacd436c919c6dd53e2b487da03fd02396306d248cda0"
    "e99f33420f577ee8ce54b67080a80d1ec69821bcb6a8839396f9652b6ff72a70"
)
_DIFFERENCES = {19: 0x80, 45: 0x80, 59: 0x80, 83: 0x80, 109: 0x80, 123: 0x80}
COLLIDING = (_FIRST, bytes(byte ^ _DIFFERENCES.get(at, 0) for at, byte in enumerate(_FIRST)))


def test_the_keys_are_two_of_one_md5() -> None:
    assert COLLIDING[0] != COLLIDING[1]
    assert len({hashlib.md5(key, usedforsecurity=False).digest() for key in COLLIDING}) == 1


def test_keys_of_one_md5_both_survive_a_round(tmp_path: Path) -> None:
    """In one batch, in two, and with a tombstone of one: the other stays what it was."""
    log = CompactedLog(tmp_path / "t-0", segment_bytes=1 << 20)
    for number in range(3):
        log.append(new_batch([b"%d" % number] * 2, keys=list(COLLIDING)))
    log.append(new_batch([b"last"], keys=[COLLIDING[0]]))
    log.roll()
    log.clean()
    assert [row[2:] for _, rows in log.batches() for row in rows] == [(COLLIDING[1], b"2"), (COLLIDING[0], b"last")]
    log.append(new_batch([None], keys=[COLLIDING[0]]))
    log.roll()
    log.clean()
    assert [row[2:] for _, rows in log.batches() for row in rows] == [(COLLIDING[1], b"2"), (COLLIDING[0], None)]


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=6), unique=True, min_size=100, max_size=600), st.binary(min_size=16, max_size=16))
def test_keys_that_are_alike_do_not_collide(keys: list[bytes], secret: bytes) -> None:
    """Short keys, and those keys with something before and behind: each has its own place, whatever the secret."""
    rows: list[tuple[bytes | None, bytes | None]] = [
        (key, b"") for one in keys for key in (one, one + b"\0" * 8, b"\0" * 8 + one + b"\1")
    ]
    rows = list(dict.fromkeys(rows))
    buffer, columns = window(rows, 0)
    made = OffsetMap(4 * len(rows) * SLOT_BYTES, secret)
    noted = 0
    while noted < len(rows):
        noted = made.put(buffer, columns, len(rows), 0, noted)
        while noted < len(rows) and made.grow():
            pass
    assert len(made) == len(rows)
    assert [made.get(key or b"") for key, _ in rows] == list(range(len(rows)))


def test_a_pair_is_found_apart_by_what_stays() -> None:
    """What is asked of a batch that holds both: each stays as its own last record says."""
    rows: list[tuple[bytes | None, bytes | None]] = [(COLLIDING[0], b"1"), (COLLIDING[1], b"2"), (COLLIDING[0], b"3")]
    buffer, columns = window(rows, 0)
    made = OffsetMap(1 << 16, SECRET)
    made.put(buffer, columns, 3, 0)
    made.latest_offset = 2
    retained = RetainedRecords(3)
    made.retain(buffer, columns, 3, retained, keeps_tombstones=True)
    assert retained.count == 2 and list(retained.flags) == [0, 1, 1]
