"""Control records, which brokers and KRaft write in their own batches between the records of a partition.

    type  name             value                                                written
    ----  ---------------  ---------------------------------------------------  ---------------------------------------
       0  ABORT            int16 version, int32 coordinatorEpoch                at the end of a transaction (KIP-98)
       1  COMMIT           the same                                             the same
       2  LEADER_CHANGE    LeaderChangeMessage                                  by a new leader of __cluster_metadata
       3  SNAPSHOT_HEADER  SnapshotHeaderRecord                                 first in a snapshot (KIP-630)
       4  SNAPSHOT_FOOTER  SnapshotFooterRecord                                 last in a snapshot
       5  KRAFT_VERSION    KRaftVersionRecord                                   in quorums whose voters can change (KIP-853)
       6  KRAFT_VOTERS     VotersRecord                                         with the set of voters (KIP-853)

The key is int16 version and int16 type. Keys and markers of a newer version are read as version 0, because new versions
append fields. KRaft's messages have their version in the first field, but are read and written as version 0.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.primitives import Buffer, InvalidRecordError
from kcli.format.structs import CONTROL_RECORD_KEY as _KEY
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type

ABORT = 0
COMMIT = 1
LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
KRAFT_VERSION = 5
KRAFT_VOTERS = 6
UNKNOWN_NAME = "UNKNOWN"

_KRAFT_VERSION_OF_MESSAGES = 0

# type -> (name, message, the text of kafka-dump-log before the JSON)
_TYPES = {
    ABORT: ("ABORT", "EndTxnMarker", ""),
    COMMIT: ("COMMIT", "EndTxnMarker", ""),
    LEADER_CHANGE: ("LEADER_CHANGE", "LeaderChangeMessage", "LeaderChange:"),
    SNAPSHOT_HEADER: ("SNAPSHOT_HEADER", "SnapshotHeaderRecord", "SnapshotHeader"),
    SNAPSHOT_FOOTER: ("SNAPSHOT_FOOTER", "SnapshotFooterRecord", "SnapshotFooter"),
    KRAFT_VERSION: ("KRAFT_VERSION", "KRaftVersionRecord", "KRaftVersion"),
    KRAFT_VOTERS: ("KRAFT_VOTERS", "VotersRecord", "KRaftVoters"),
}


class ControlRecord(NamedTuple):
    """A control record: the number and the name of its type, and its message, None for an unknown type."""

    type_id: int
    name: str
    message: Message | None

    @property
    def is_marker(self) -> bool:
        """True for a transaction marker."""
        return self.type_id in (ABORT, COMMIT)


def control_type_id(key: Buffer | None) -> int:
    """Return the type in the key of a control record. Raises InvalidRecordError for an invalid key."""
    if key is None:
        raise InvalidRecordError("a control record without a key")
    if len(key) < _KEY.size:
        raise InvalidRecordError(
            f"Invalid value size found for control record key. Must have at least {_KEY.size} bytes, but found only {len(key)}"
        )
    version, type_id = _KEY.unpack_from(key)
    if version < 0:
        raise InvalidRecordError(f"Invalid version found for control record: {version}. May indicate data corruption")
    return int(type_id)


def decode_control_record(key: Buffer | None, value: Buffer | None) -> ControlRecord:
    """Decode a control record. Raises FormatError."""
    type_id = control_type_id(key)
    if type_id not in _TYPES:
        return ControlRecord(type_id, UNKNOWN_NAME, None)
    name, message_name, _ = _TYPES[type_id]
    if value is None:
        raise InvalidRecordError(f"a control record {name} without a value")
    if type_id in (ABORT, COMMIT):
        position = _check_marker_version(value)
    else:
        position = 0
    message, _ = message_type("control_records", message_name).decode(value, _KRAFT_VERSION_OF_MESSAGES, position)
    return ControlRecord(type_id, name, message)


def encode_control_record(type_id: int, message: Message) -> tuple[bytes, bytes]:
    """Return the key and the value of one of KRaft's control records. Raises EncodeError for invalid values."""
    _, message_name, _ = _TYPES[type_id]
    return _KEY.pack(0, type_id), message_type("control_records", message_name).encode(message, _KRAFT_VERSION_OF_MESSAGES)


def _check_marker_version(value: Buffer) -> int:
    """Check the version of a transaction marker; return the position after it."""
    version = int.from_bytes(value[:2], "big", signed=True)
    if len(value) < 2 or version < 0:
        raise InvalidRecordError(f"Invalid version found for end transaction marker: {version}. May indicate data corruption")
    return 2


def control_suffix(key: Buffer | None, value: Buffer | None) -> str:
    """Return the text that kafka-dump-log prints at the end of a control record's line, with the blank before it.

    Raises FormatError if Kafka's tool would stop with an exception at the record.
    """
    record = decode_control_record(key, value)
    if record.message is None:
        return f" controlType: {record.name}({record.type_id})"
    if record.is_marker:
        return f" endTxnMarker: {record.name} coordinatorEpoch: {record.message.coordinator_epoch}"
    _, message_name, label = _TYPES[record.type_id]
    found = message_type("control_records", message_name)
    lowest, highest = found.schema.versions
    # The JSON has the version that the message states, although the message was read as version 0.
    version = min(max(record.message.version, lowest), highest)
    return f" {label} {found.json(record.message, version)}"
