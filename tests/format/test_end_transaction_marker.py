"""Protects the two ways in which a marker can be unreadable: one cuts the log, the other keeps a broker from starting."""

from __future__ import annotations

import pytest

from kcli.format.end_transaction_marker import EndTransactionMarker, UnreadableMarkerError, decode_marker, encode_marker
from kcli.format.primitives import InvalidRecordError


@pytest.mark.parametrize("is_abort", [True, False])
def test_a_marker_comes_back(is_abort: bool) -> None:
    """What is written is read; bytes behind either part, and later versions, change nothing."""
    key, value = encode_marker(is_abort=is_abort, coordinator_epoch=100)
    wanted = EndTransactionMarker(is_abort, 100, 5)
    assert decode_marker(key, value, 5) == wanted
    assert decode_marker(b"\x00\x07" + key[2:] + b"more", b"\x00\x07" + value[2:] + b"more", 5) == wanted


COMMIT_KEY, VALUE = encode_marker(is_abort=False, coordinator_epoch=0)


@pytest.mark.parametrize(("key", "value"), [(COMMIT_KEY[:3], VALUE), (b"\xff\xff\x00\x00", VALUE), (COMMIT_KEY, b"\xff\xff")])
def test_kafka_cuts_the_log_at_an_invalid_record(key: bytes, value: bytes) -> None:
    """Too short a key, negative versions: InvalidRecordException, which recovery catches."""
    with pytest.raises(InvalidRecordError):
        decode_marker(key, value, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [(None, VALUE), (COMMIT_KEY, None), (b"\x00\x00\x00\x02", VALUE), (COMMIT_KEY, b""), (COMMIT_KEY, VALUE[:5])],
)
def test_kafka_refuses_what_is_no_marker(key: bytes | None, value: bytes | None) -> None:
    """Null, another type, too short a value: exceptions that nobody catches."""
    with pytest.raises(UnreadableMarkerError):
        decode_marker(key, value, 0)
