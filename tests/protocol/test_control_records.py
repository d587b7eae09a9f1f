"""Protects control records: their types, their text as Kafka's tool prints it, and that broken ones are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.primitives import FormatError, InvalidRecordError
from kcli.protocol.control_records import COMMIT, control_suffix, control_type_id, decode_control_record


def read(words: str) -> bytes:
    return bytes.fromhex(words)


@pytest.mark.parametrize(
    ("key", "value", "suffix"),
    [
        ("0000 0000", "0000 00000007", " endTxnMarker: ABORT coordinatorEpoch: 7"),
        ("0000 0001", "0000 00000064", " endTxnMarker: COMMIT coordinatorEpoch: 100"),
        # A newer key and marker: read as version 0, what follows is ignored.
        ("0005 0001 ff", "0003 00000064 ff", " endTxnMarker: COMMIT coordinatorEpoch: 100"),
        (
            "0000 0002",
            "0000 00000001 02 00000001 00 02 00000001 00 00",
            ' LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[{"voterId":1}]}',
        ),
        # Read as version 0 but shown in the version that it states.
        (
            "0000 0002",
            "0001 00000001 02 00000001 00 01 00",
            ' LeaderChange: {"version":1,"leaderId":1,"voters":[{"voterId":1,'
            '"voterDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA"}],"grantingVoters":[]}',
        ),
        ("0000 0003", "0000 00000000000003e8 00", ' SnapshotHeader {"version":0,"lastContainedLogTimestamp":1000}'),
        ("0000 0004", "0000 00", ' SnapshotFooter {"version":0}'),
        ("0000 0005", "0000 0001 00", ' KRaftVersion {"version":0,"kRaftVersion":1}'),
        ("0000 0006", "0000 01 00", ' KRaftVoters {"version":0,"voters":[]}'),
        ("0000 0007", "ff", " controlType: UNKNOWN(7)"),
        ("0000 ffff", "", " controlType: UNKNOWN(-1)"),
    ],
)
def test_control_records_print_as_kafka_prints_them(key: str, value: str, suffix: str) -> None:
    assert control_suffix(read(key), read(value)) == suffix


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, "0000 00000007"),
        ("", ""),
        ("0000 00", ""),
        ("ffff 0001", "0000 00000007"),
        ("0000 0001", None),
        ("0000 0001", "00"),
        ("0000 0001", "ffff 00000007"),
        ("0000 0001", "0000 0000"),
        ("0000 0002", "0000 00000001 ff"),
    ],
)
def test_broken_control_records_are_refused(key: str | None, value: str | None) -> None:
    with pytest.raises(FormatError):
        control_suffix(None if key is None else read(key), None if value is None else read(value))


def test_a_marker_is_known_as_one() -> None:
    record = decode_control_record(read("0000 0001"), read("0000 00000064"))
    assert record.message is not None
    assert (record.type_id, record.name, record.is_marker, record.message.coordinator_epoch) == (
        COMMIT,
        "COMMIT",
        True,
        100,
    )
    assert not decode_control_record(read("0000 0007"), None).is_marker


def test_a_short_key_is_refused_with_kafkas_words() -> None:
    with pytest.raises(InvalidRecordError, match="Must have at least 4 bytes, but found only 3"):
        control_type_id(b"\0\0\0")


@given(st.none() | st.binary(max_size=8), st.none() | st.binary(max_size=40))
def test_no_bytes_do_anything_but_print_or_be_refused(key: bytes | None, value: bytes | None) -> None:
    try:
        assert control_suffix(key, value).startswith(" ")
    except FormatError as error:
        assert str(error)
