"""The table of uncleanable partitions: any entries come back, a torn file is refused and not believed, faults name the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.primitives import CorruptCheckpointError
from kcli.format.uncleanable_partitions import (
    MAX_REASON_CHARACTERS,
    UncleanablePartition,
    decode_uncleanable_partitions,
    encode_uncleanable_partitions,
    one_line,
)
from tests.format.damaged_bytes import damaged

numbers = st.integers(0, 2**63 - 1)
topics = st.text("abcXYZ019._-", min_size=1, max_size=20)
entries = st.lists(st.builds(UncleanablePartition, topics, st.integers(0, 2**31 - 1), numbers, numbers, st.text()), max_size=6)


@given(entries)
def test_any_entries_come_back_with_their_reasons_in_one_line(found: list[UncleanablePartition]) -> None:
    again = decode_uncleanable_partitions(encode_uncleanable_partitions(found))
    assert list(again) == [one._replace(reason=one_line(one.reason)) for one in found]
    assert encode_uncleanable_partitions(again) == encode_uncleanable_partitions(found)


def test_a_reason_is_one_line_of_bounded_length_whatever_it_quotes() -> None:
    reason = "byte 70:\r\n\x1b[31m a path \udcff\x00 \u2028 " + "x" * 5000
    (entry,) = decode_uncleanable_partitions(encode_uncleanable_partitions([UncleanablePartition("t", 0, 1, 2, reason)]))
    assert entry.reason.startswith("byte 70: [31m a path \\udcff xxx") and len(entry.reason) == MAX_REASON_CHARACTERS


@given(damaged(entries.map(encode_uncleanable_partitions)) | st.binary(max_size=80))
def test_damage_raises_corrupt_checkpoint_errors_only(spoilt: bytes) -> None:
    try:
        found = decode_uncleanable_partitions(spoilt)
    except CorruptCheckpointError:
        return
    assert len(found) <= spoilt.count(b"\n") + spoilt.count(b"\r")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\n0\n", "line 1 states version 1; version 0 is known"),
        (b"0\n2\nt 0 1 2 why\n", "line 2 states 2 entries and 1 follow"),
        (b"0\n1\nt 0 1\n", "line 3 is malformed: 't 0 1'"),
        (b"0\n1\nt 0 1 x why\n", "line 3 is malformed: 't 0 1 x why'"),
        (b"0\n1\n 0 1 2 why\n", "line 3 is malformed: ' 0 1 2 why'"),
        (b"0\n1\nt 0 1 2 \xff\n", "line 3 is not UTF-8"),
    ],
)
def test_faults_name_the_line(data: bytes, message: str) -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_uncleanable_partitions(data)
    assert caught.value.message == message
