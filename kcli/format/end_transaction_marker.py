"""The marker that ends a transaction in a partition: the one control record that changes a producer's state (KIP-98).

    part   field             type    notes
    -----  ----------------  ------  ---------------------------------------------------------------------
    key    version           int16   0; a later one is read as 0
           type              int16   0 ABORT, 1 COMMIT (2 to 6 are KRaft's own control records)
    value  version           int16   0; a later one is read as 0
           coordinatorEpoch  int32

Both may be followed by more bytes. Kafka takes two kinds of faults in two ways, which matters where a log is recovered: a key
that is too short or a negative version is an invalid record, at which it cuts the log; all else stops it from loading the
log, and so a broker from starting. Here they are two errors: InvalidRecordError and UnreadableMarkerError.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format import structs
from kcli.format.primitives import FormatError, InvalidRecordError

KEY = structs.CONTROL_RECORD_KEY
VALUE = structs.END_TXN_MARKER
ABORT = 0
COMMIT = 1


class UnreadableMarkerError(FormatError):
    """A control record of a producer that is not a marker; Kafka does not load a log with such a record."""


class EndTransactionMarker(NamedTuple):
    """A marker: ABORT or COMMIT, the epoch of the transaction coordinator that wrote it, the record's timestamp in ms."""

    is_abort: bool
    coordinator_epoch: int
    timestamp: int


def decode_marker(key: bytes | None, value: bytes | None, timestamp: int) -> EndTransactionMarker:
    """Decode a control record's key and value. Raises InvalidRecordError and UnreadableMarkerError."""
    if key is None or value is None:
        raise UnreadableMarkerError(f"the {'key' if key is None else 'value'} of a marker is null")
    if len(key) < KEY.size:
        raise InvalidRecordError(f"the key of a marker has {len(key)} bytes, fewer than {KEY.size}")
    key_version, kind = KEY.unpack_from(key)
    if key_version < 0:
        raise InvalidRecordError(f"the key of a marker states version {key_version}")
    if kind not in (ABORT, COMMIT):
        raise UnreadableMarkerError(f"the type of a marker is {kind}; 0 is ABORT, 1 is COMMIT")
    value_version = int.from_bytes(value[:2], "big", signed=True) if len(value) >= 2 else 0
    if value_version < 0:
        raise InvalidRecordError(f"the value of a marker states version {value_version}")
    if len(value) < VALUE.size:
        raise UnreadableMarkerError(f"the value of a marker has {len(value)} bytes, fewer than {VALUE.size}")
    return EndTransactionMarker(kind == ABORT, VALUE.unpack_from(value)[1], timestamp)


def encode_marker(*, is_abort: bool, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Return the key and the value of a marker's record."""
    return KEY.pack(0, ABORT if is_abort else COMMIT), VALUE.pack(0, coordinator_epoch)
