"""Encodes and decodes the batches of the metadata log and of its snapshots.

    snapshot           contains
    -----------------  -----------------------------------------------------------------------------------------------
    first batch        control records: SnapshotHeader; from kraft.version 1 on KRaftVersion and, if there are any, Voters
    batches            metadata records, at most MAX_BATCH_BYTES each; none in the first snapshot of a quorum
    last batch         control record: SnapshotFooter

Offsets in a snapshot begin at 0; its leader epoch is that of its name. bootstrap.checkpoint has the same form, with epoch 0 and
a header without a timestamp. Records have no key; all records of a batch have the same timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcli.format.primitives import Buffer, CorruptRecordError
from kcli.format.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    NewRecordBatch,
    RecordBatch,
    check_batch,
    read_header,
)
from kcli.format.records import Record, encode_record, read_records
from kcli.protocol.control_records import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    LEADER_CHANGE,
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    ControlRecord,
    decode_control_record,
    encode_control_record,
)
from kcli.protocol.internal_records import CLUSTER_METADATA, encode_framed
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.raft.messages import (
    AppendedControl,
    ControlEntry,
    KRaftVersionEntry,
    LeaderChangeEntry,
    ListenerEndpoint,
    ReplicaKey,
    VoterNode,
    Voters,
    VotersEntry,
)
from kcli.state.image_records import new_record as new_record

# Kafka's limits: bytes of a batch of the log or a snapshot, and records in one append to the log.
MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_RECORDS_PER_APPEND = 10_000
# The size limit of a decompressed batch; Kafka writes uncompressed batches of at most 8 MiB.
MAX_METADATA_BATCH_BYTES = 64 * 1024 * 1024


class MetadataBatch(NamedTuple):
    """One decoded batch of the metadata log: metadata records, or else control records."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int
    records: list[Message]
    control_records: list[ControlRecord]
    size_bytes: int = 0

    @property
    def begins_snapshot(self) -> bool:
        """True for the first batch of a snapshot."""
        return any(record.type_id == SNAPSHOT_HEADER for record in self.control_records)

    @property
    def ends_snapshot(self) -> bool:
        """True for the last batch of a snapshot."""
        return any(record.type_id == SNAPSHOT_FOOTER for record in self.control_records)


def encode_metadata_record(record: Message) -> bytes:
    """Encode a metadata record as the value of a record. Raises EncodeError for values that its version does not have."""
    return encode_framed(message_type("metadata_records", record.STRUCT.name), record)


class EncodedRecords:
    """The encoded records of one batch: they are added one by one, so that a large batch is made in time slices."""

    __slots__ = ("_records", "size_bytes")

    def __init__(self, records: Iterable[Message] = ()) -> None:
        self.size_bytes = HEADER_BYTES  # of the batch
        self._records: list[bytes] = []
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Message) -> None:
        """Add a record. Raises EncodeError for values that its version does not have."""
        encoded = encode_record(Record(len(self._records), 0, None, encode_metadata_record(record)))
        self._records.append(encoded)
        self.size_bytes += len(encoded)

    def batch(self, base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
        """Return the batch."""
        return _batch(b"".join(self._records), len(self._records), base_offset, leader_epoch, now_ms, 0)


def encode_data_batch(values: Sequence[bytes], base_offset: int, leader_epoch: int, now_ms: int) -> bytes:
    """Encode a batch of records with these values."""
    records = b"".join(encode_record(Record(delta, 0, None, value)) for delta, value in enumerate(values))
    return _batch(records, len(values), base_offset, leader_epoch, now_ms, 0)


def encode_control_batch(
    control_records: Sequence[tuple[int, Message]], base_offset: int, leader_epoch: int, now_ms: int
) -> bytes:
    """Encode a batch of control records, given as (type, message) pairs."""
    encoded = (encode_control_record(type_id, message) for type_id, message in control_records)
    records = b"".join(encode_record(Record(delta, 0, key, value)) for delta, (key, value) in enumerate(encoded))
    return _batch(records, len(control_records), base_offset, leader_epoch, now_ms, CONTROL_FLAG)


def _batch(records: bytes, count: int, base_offset: int, leader_epoch: int, now_ms: int, attributes: int) -> bytes:
    return NewRecordBatch(
        base_offset=base_offset,
        last_offset_delta=count - 1,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        record_count=count,
        records=records,
        attributes=attributes,
        partition_leader_epoch=leader_epoch,
    ).encode()


def control_message(name: str, /, **fields: object) -> Message:
    """Make one of KRaft's control messages ("LeaderChangeMessage"). Raises KeyError for an unknown name."""
    return message_type("control_records", name).new(**fields)


def control_record_of(entry: ControlEntry) -> tuple[int, Message]:
    """Return the type and the message of a control record."""
    if isinstance(entry, LeaderChangeEntry):
        return LEADER_CHANGE, leader_change_message(entry.leader_id, entry.voter_ids, entry.granting_voter_ids)
    if isinstance(entry, KRaftVersionEntry):
        return KRAFT_VERSION, control_message("KRaftVersionRecord", kraft_version=entry.level)
    return KRAFT_VOTERS, _voters_record(entry.voters)


def _voters_record(voters: Voters) -> Message:
    record = message_type("control_records", "VotersRecord")
    classes = record.classes
    return record.new(
        voters=[
            classes["Voter"](
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id,
                endpoints=[classes["Endpoint"](name=at.listener, host=at.host, port=at.port) for at in voter.endpoints],
                kraft_version_feature=classes["KRaftVersionFeature"](
                    min_supported_version=voter.lowest_kraft_version, max_supported_version=voter.highest_kraft_version
                ),
            )
            for voter in voters
        ]
    )


def control_entries_of(batch: MetadataBatch) -> Iterator[AppendedControl]:
    """Yield those control records of a batch that the raft core needs, with their offsets."""
    for offset, (type_id, _, message) in enumerate(batch.control_records, batch.base_offset):
        if message is None:
            continue
        if type_id == LEADER_CHANGE:
            voter_ids = tuple(voter.voter_id for voter in message.voters)
            granting = tuple(voter.voter_id for voter in message.granting_voters)
            yield AppendedControl(offset, LeaderChangeEntry(message.leader_id, voter_ids, granting))
        elif type_id == KRAFT_VERSION:
            yield AppendedControl(offset, KRaftVersionEntry(message.kraft_version))
        elif type_id == KRAFT_VOTERS:
            yield AppendedControl(offset, VotersEntry(_voters_of(message)))


def _voters_of(message: Message) -> Voters:
    voters = (
        VoterNode(
            ReplicaKey(voter.voter_id, voter.voter_directory_id),
            tuple(ListenerEndpoint(at.name.upper(), at.host, at.port) for at in voter.endpoints),
            voter.kraft_version_feature.min_supported_version,
            voter.kraft_version_feature.max_supported_version,
        )
        for voter in message.voters
    )
    return tuple(sorted(voters, key=lambda voter: voter.key.node_id))


def leader_change_message(leader_id: int, voters: Iterable[int], granting: Iterable[int]) -> Message:
    """Make the LeaderChangeMessage of a leader: the ids of the voters, and of those that voted for it."""
    voter = message_type("control_records", "LeaderChangeMessage").classes["Voter"]
    return control_message(
        "LeaderChangeMessage",
        leader_id=leader_id,
        voters=[voter(voter_id=voter_id) for voter_id in voters],
        granting_voters=[voter(voter_id=voter_id) for voter_id in granting],
    )


class SnapshotBatches:
    """The batches of one snapshot, in this order: `header`, `batches` of records, `footer`."""

    def __init__(self, leader_epoch: int, now_ms: int) -> None:
        self._leader_epoch = leader_epoch
        self._now_ms = now_ms
        self._next_offset = 0

    def header(self, last_timestamp_ms: int, kraft_version: int, voters: Voters) -> bytes:
        """Return the first batch; `last_timestamp_ms` is the timestamp of the last record that the snapshot replaces."""
        header = control_message("SnapshotHeaderRecord", last_contained_log_timestamp=last_timestamp_ms)
        control_records = [(SNAPSHOT_HEADER, header)]
        if kraft_version > 0:
            control_records.append(control_record_of(KRaftVersionEntry(kraft_version)))
        if kraft_version > 0 and voters:
            control_records.append(control_record_of(VotersEntry(voters)))
        return self._control(control_records)

    def footer(self) -> bytes:
        """Return the last batch."""
        return self._control([(SNAPSHOT_FOOTER, control_message("SnapshotFooterRecord"))])

    def batches(self, records: Iterable[Message]) -> Iterator[bytes]:
        """Yield the records in batches of at most MAX_BATCH_BYTES (or of one larger record)."""
        values: list[bytes] = []
        size_bytes = 0
        for record in records:
            value = encode_metadata_record(record)
            if values and size_bytes + len(value) > MAX_BATCH_BYTES:
                yield self._data(values)
                values, size_bytes = [], 0
            values.append(value)
            size_bytes += len(value)
        if values:
            yield self._data(values)

    def _data(self, values: list[bytes]) -> bytes:
        base_offset, self._next_offset = self._next_offset, self._next_offset + len(values)
        return encode_data_batch(values, base_offset, self._leader_epoch, self._now_ms)

    def _control(self, control_records: list[tuple[int, Message]]) -> bytes:
        base_offset, self._next_offset = self._next_offset, self._next_offset + len(control_records)
        return encode_control_batch(control_records, base_offset, self._leader_epoch, self._now_ms)


def decode_batch(header: RecordBatch, body: Buffer) -> MetadataBatch:
    """Decode a batch whose CRC is valid; `body` is what follows its header. Raises FormatError."""
    data: Buffer = body
    if header.attributes & CODEC_MASK:
        from kcli.format.compression import inflate

        data = inflate(header.codec, body, limit=MAX_METADATA_BATCH_BYTES)
    found = read_records(data, header.record_count)
    records: list[Message] = []
    control_records: list[ControlRecord] = []
    for record in found:
        if header.is_control:
            control_records.append(decode_control_record(record.key, record.value))
        else:
            message = CLUSTER_METADATA.decode(None, record.value)[1]
            if message is not None:
                records.append(message)
    last_offset, timestamp_ms = header.last_offset, header.max_timestamp
    epoch, size_bytes = header.partition_leader_epoch, header.size_bytes
    return MetadataBatch(header.base_offset, last_offset, epoch, timestamp_ms, records, control_records, size_bytes)


def _opaque(header: RecordBatch) -> MetadataBatch:
    epoch, timestamp_ms = header.partition_leader_epoch, header.max_timestamp
    return MetadataBatch(header.base_offset, header.last_offset, epoch, timestamp_ms, [], [], header.size_bytes)


def decode_batches(data: Buffer, *, control_only: bool = False) -> Iterator[MetadataBatch]:
    """Check and yield the batches that fill `data`; with `control_only` data batches have no records.

    Raises FormatError, which names the byte, at the first invalid one.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        if len(view) - position < HEADER_BYTES:
            raise CorruptRecordError(f"{len(view) - position} bytes are left, fewer than the header of a batch", position)
        size_bytes = read_header(view, position).batch_length + LOG_OVERHEAD_BYTES
        if not HEADER_BYTES <= size_bytes <= len(view) - position:
            raise CorruptRecordError(f"a batch states {size_bytes} bytes; {len(view) - position} are left", position)
        batch = view[position : position + size_bytes]
        header = check_batch(batch)
        if control_only and not header.is_control:
            yield _opaque(header)
        else:
            yield decode_batch(header, batch[HEADER_BYTES:])
        position += size_bytes


def bootstrap_records(features: dict[str, int]) -> list[Message]:
    """Return the first records of a cluster: its metadata.version, then each other feature above level 0 by name."""
    names = sorted(features, key=lambda name: (name != "metadata.version", name))
    return [
        new_record("FeatureLevelRecord", name=name, feature_level=features[name])
        for name in names
        if features[name] > 0 and name != "kraft.version"
    ]
