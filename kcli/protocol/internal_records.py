"""The records of Kafka's internal topics, decoded to messages, and to the text of kafka-dump-log.

    topic                    key                              value
    -----------------------  -------------------------------  --------------------------------------------------------
    __consumer_offsets       int16 record type, then the      int16 version, then the value message in that version;
    __transaction_state      key message (never flexible)     no value: the key's entry is deleted
    __share_group_state
    __cluster_metadata       none                             a frame: unsigned varints 1 (of the frame itself), record
    __remote_log_metadata                                     type, version, then the message, which ends the value

`encode_framed` encodes such a value. `decode` returns messages or raises FormatError; `describe` returns Kafka's text,
including its error messages. They differ because kafka-dump-log is too tolerant: it reads a metadata record with an unknown
version as the newest known version.

kafka-dump-log prints __remote_log_metadata records as the toString of Kafka's Java objects, not as JSON. The constructors of
these objects raise exceptions for some records, so the same records raise errors here, with the same messages.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from functools import cache

from kcli.format.java_text import json_text
from kcli.format.primitives import Buffer, write_unsigned_varint
from kcli.protocol.codec_support import read_int32_varint
from kcli.protocol.compiler import MessageType
from kcli.protocol.json_values import JsonValue, to_dict
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, MessageError, MissingKeyError, UnknownRecordTypeError
from kcli.protocol.message_types import message_type, record_types

FRAME_VERSION = 1
_INT16 = struct.Struct(">h")
_VERSION_BYTES = 2
_INT16_MAX = 0x7FFF
CONSUMER_PROTOCOL_TYPE = "consumer"

DecodedRecord = tuple[Message | None, Message | None]
DescribedRecord = tuple[str | None, str | None]


class Decoder(ABC):
    """Decodes the records of one internal topic."""

    topic: str

    @abstractmethod
    def decode(self, key: Buffer | None, value: Buffer | None) -> DecodedRecord:
        """Decode a record; return key message or None, value message or None (a tombstone has no value).

        Raises MessageError.
        """

    @abstractmethod
    def describe(self, offset: int, key: Buffer | None, value: Buffer | None) -> DescribedRecord:
        """Return what kafka-dump-log prints after `key: ` and `payload: `; None if it does not print it.

        Raises MissingKeyError if Kafka's tool would stop with an exception at the record.
        """

    @abstractmethod
    def describe_unreadable(self, offset: int, key: Buffer | None, java_message: str) -> DescribedRecord:
        """Return the same for a record whose value cannot be read; `java_message` is the message of Java's exception."""

    def to_dict(self, message: Message) -> dict[str, JsonValue]:
        """Return a key or value message as the JSON object that kafka-dump-log prints."""
        return to_dict(message)


class CoordinatorDecoder(Decoder):
    """The topics of the three coordinators, whose records have a typed key and a versioned value."""

    def __init__(self, topic: str, file: str) -> None:
        self.topic = topic
        self._file = file
        self._types_by_number: dict[int, tuple[MessageType, MessageType]] = {}  # those that were met

    def decode(self, key: Buffer | None, value: Buffer | None) -> DecodedRecord:
        """See Decoder.decode."""
        key_type, value_type = self._types(key)
        return self._decode(key_type, key, value_type, value)

    def encode(self, key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
        """Encode a record as key and value, the twin of `decode`; the value in its `schema_version`. Raises EncodeError."""
        key_type = message_type(self._file, key.STRUCT.name)
        encoded = _INT16.pack(key_type.key) + key_type.encode(key, 0)
        if value is None:
            return encoded, None
        version = value.schema_version
        return encoded, _INT16.pack(version) + message_type(self._file, value.STRUCT.name).encode(value, version)

    def _types(self, key: Buffer | None) -> tuple[MessageType, MessageType]:
        """Return the types of a record's key and value, from the first int16 of the key."""
        if key is None:
            raise MissingKeyError(f"a record of {self.topic} without a key")
        record_type = _read_int16(key, "key")
        types = self._types_by_number.get(record_type)
        if types is None:
            key_type = record_types(self._file, "coordinator-key").get(record_type)
            value_type = record_types(self._file, "coordinator-value").get(record_type)
            if key_type is None or value_type is None:
                raise UnknownRecordTypeError(record_type)
            types = self._types_by_number[record_type] = key_type, value_type
        return types

    @staticmethod
    def _decode(
        key_type: MessageType, key: Buffer | None, value_type: MessageType, value: Buffer | None
    ) -> tuple[Message, Message | None]:
        # Kafka uses the record type as the version of the key's schema too; its error messages contain it.
        key_message = _decode_behind_int16(key_type, key or b"", 0, key_type.key, "key")
        if value is None:
            return key_message, None
        version = _read_int16(value, "value")
        if not value_type.schema.versions.has(version):
            raise DecodeError(f"Found an unknown record version {version} for {value_type.key} type", 0)
        return key_message, _decode_behind_int16(value_type, value, version, version, "value")

    def describe(self, offset: int, key: Buffer | None, value: Buffer | None) -> DescribedRecord:
        """See Decoder.describe."""
        try:
            key_type, value_type = self._types(key)
            key_message, value_message = self._decode(key_type, key, value_type, value)
        except MissingKeyError as error:
            raise _missing_key(offset) from error
        except UnknownRecordTypeError as error:
            return f"Unknown record type {error.record_type} at offset {offset}, skipping.", None
        except DecodeError as error:
            return f"Error at offset {offset}, skipping. {error.java_message}", None
        key_text = f'{{"type":"{key_type.key}","data":{key_type.json(key_message)}}}'
        if value_message is None:
            return key_text, "<DELETE>"
        shown = self._json(value_type, value_message)
        return key_text, f'{{"version":"{value_message.schema_version}","data":{shown}}}'

    def describe_unreadable(self, offset: int, key: Buffer | None, java_message: str) -> DescribedRecord:
        """See Decoder.describe_unreadable."""
        if key is None:
            raise _missing_key(offset)
        return f"Error at offset {offset}, skipping. {java_message}", None

    def _json(self, found: MessageType, message: Message) -> str:
        return found.json(message)


def _missing_key(offset: int) -> MissingKeyError:
    text = f"Failed to decode message at offset {offset} using the specified decoder"
    return MissingKeyError(f"{text} (message had a missing key)")


class GroupDecoder(CoordinatorDecoder):
    """__consumer_offsets, whose classic members contain bytes of an embedded protocol."""

    def __init__(self) -> None:
        super().__init__("__consumer_offsets", "group_records")

    def to_dict(self, message: Message) -> dict[str, JsonValue]:
        """Return the message as JSON; the subscription and assignment of a consumer are decoded if possible."""
        out = to_dict(message)
        if _is_consumers_group(message):
            for member, shown in zip(message.members, out["members"]):
                shown["subscription"] = _shown("ConsumerProtocolSubscription", member.subscription, shown["subscription"])
                shown["assignment"] = _shown("ConsumerProtocolAssignment", member.assignment, shown["assignment"])
        return out

    def _json(self, found: MessageType, message: Message) -> str:
        return json_text(self.to_dict(message)) if _is_consumers_group(message) else found.json(message)


def _is_consumers_group(message: Message) -> bool:
    return message.STRUCT.name == "GroupMetadataValue" and bool(message.protocol_type == CONSUMER_PROTOCOL_TYPE)


def _shown(name: str, data: bytes, otherwise: JsonValue) -> JsonValue:
    """Return the embedded bytes of a consumer as JSON, or `otherwise` if they are not a message `name`."""
    try:
        return to_dict(decode_consumer_protocol(name, data))
    except DecodeError:
        return otherwise


def decode_consumer_protocol(name: str, data: Buffer) -> Message:
    """Decode "ConsumerProtocolSubscription" or "ConsumerProtocolAssignment" bytes, which begin with an int16 version.

    A newer version is read as the newest known one, as Kafka's consumers do. Raises DecodeError.
    """
    version = _read_int16(data, name)
    return _decode_any_version(message_type("control_records", name), data, version, _VERSION_BYTES)[0]


class FramedDecoder(Decoder):
    """A topic whose values are framed messages; keys are ignored."""

    def __init__(self, topic: str, file: str) -> None:
        self.topic = topic
        self._file = file
        self._types_by_number: dict[int, tuple[MessageType, MessageType]] = {}  # those that were met

    def decode(self, key: Buffer | None, value: Buffer | None) -> DecodedRecord:
        """See Decoder.decode; the key message is always None."""
        data = _framed(value)
        found, version, at = self._read_frame(data)
        message, at = found.decode(data, version, at)
        self._check_end(found, data, at)
        return None, message

    def _read_frame(self, value: Buffer) -> tuple[MessageType, int, int]:
        """Read the frame before the message; return the type, the version and the position of the message."""
        frame_version, at = _read_frame_varint(value, 0, "frame version")
        if frame_version == 0:
            raise DecodeError(
                "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview "
                "release of KRaft in 2.8 to newer versions are not supported."
            )
        if frame_version != FRAME_VERSION:
            raise DecodeError(
                f"Could not deserialize metadata record due to unknown frame version {frame_version}"
                f"(only frame version {FRAME_VERSION} is supported)"
            )
        record_type, at = _read_frame_varint(value, at, "type")
        version, at = _read_frame_varint(value, at, "version")
        found = record_types(self._file, "metadata").get(record_type)
        if found is None:
            raise UnknownRecordTypeError(record_type)
        return found, version, at

    @staticmethod
    def _check_end(found: MessageType, value: Buffer, at: int) -> None:
        if at < len(value):
            raise DecodeError(f"Found {len(value) - at} byte(s) of garbage after {found.key}", at)

    def _decode_as_kafka_does(self, value: Buffer | None) -> tuple[MessageType, Message, int]:
        """Decode a value; return the type, the message and the version in the frame, which may be unknown.

        Raises DecodeError with Kafka's text.
        """
        data = _framed(value)
        try:
            found, version, at = self._read_frame(data)
        except UnknownRecordTypeError as error:
            java = "org.apache.kafka.common.errors.UnsupportedVersionException: Unknown metadata id"
            raise DecodeError(error.message, None, f"{java} {error.record_type}") from error
        try:
            message, at = _decode_any_version(found, data, version, at)
        except DecodeError as error:
            raise DecodeError(error.message, None, f"Failed to deserialize record with type {found.key}") from error
        self._check_end(found, data, at)
        return found, message, version


class ClusterMetadataDecoder(FramedDecoder):
    """__cluster_metadata and its snapshots."""

    def __init__(self) -> None:
        super().__init__("__cluster_metadata", "metadata_records")

    def describe(self, offset: int, key: Buffer | None, value: Buffer | None) -> DescribedRecord:
        """See Decoder.describe."""
        try:
            found, message, version = self._decode_as_kafka_does(value)
        except DecodeError as error:
            return self.describe_unreadable(offset, key, error.java_message)
        shown = found.json(message)
        return None, f'{{"type":"{record_type_name(found)}","version":{version},"data":{shown}}}'

    def describe_unreadable(self, offset: int, key: Buffer | None, java_message: str) -> DescribedRecord:
        """See Decoder.describe_unreadable."""
        return None, f"Error at {offset}, skipping. {java_message}"


class RemoteLogMetadataDecoder(FramedDecoder):
    """__remote_log_metadata, of the topic-based manager that Kafka ships for tiered storage."""

    def __init__(self) -> None:
        super().__init__("__remote_log_metadata", "remote_log_records")

    def describe(self, offset: int, key: Buffer | None, value: Buffer | None) -> DescribedRecord:
        """See Decoder.describe."""
        try:
            if value is None:
                raise DecodeError("a record without a value", None, _NO_REMOTE_VALUE)
            text = remote_log_text(self._decode_as_kafka_does(value)[1])
        except DecodeError as error:
            return self.describe_unreadable(offset, key, error.java_message)
        return None, text

    def describe_unreadable(self, offset: int, key: Buffer | None, java_message: str) -> DescribedRecord:
        """See Decoder.describe_unreadable."""
        return None, f"Error at offset {offset}, skipping. {java_message}"


# The message of the JVM's NullPointerException.
_NO_REMOTE_VALUE = (
    'Cannot invoke "java.nio.ByteBuffer.remaining()" because the return value of '
    '"org.apache.kafka.common.record.internal.Record.value()" is null'
)


@cache
def record_type_name(found: MessageType) -> str:
    """Return the name of a metadata record type in Kafka's enum: TOPIC_RECORD for TopicRecord."""
    out = found.name[0]
    for letter in found.name[1:]:
        out += f"_{letter}" if letter.isupper() else letter.upper()
    return out


def _read_int16(data: Buffer, what: str) -> int:
    if len(data) < _VERSION_BYTES:
        text = f"Could not read version from {what}'s buffer."
        raise DecodeError(f"a {what} of {len(data)} bytes has no version", 0, text)
    number: int = _INT16.unpack_from(data)[0]
    return number


def _decode_behind_int16(found: MessageType, data: Buffer, version: int, stated: int | None, what: str) -> Message:
    """Decode the message after the first int16 of a key or value; bytes after the message are ignored, as in Kafka."""
    try:
        return found.decode(data, version, _VERSION_BYTES)[0]
    except DecodeError as error:
        text = f"Could not read record with version {stated} from {what}'s buffer due to: {error.java_message}."
        raise DecodeError(error.message, error.position, text) from error


def _decode_any_version(found: MessageType, data: Buffer, version: int, at: int) -> tuple[Message, int]:
    """Decode a message in the known version that is nearest to `version`; return it and the position after it.

    Kafka's generated readers do the same: only those of inner structs check the version. Raises DecodeError.
    """
    lowest, highest = found.schema.versions
    message, at = found.decode(data, min(max(version, lowest), highest), at)
    if version > highest and any(_holds_struct(getattr(message, field.attribute)) for field in found.schema.root.fields):
        raise DecodeError(f"Can't read version {version} of a struct of {found.name}", at)
    return message, at


def _holds_struct(value: object) -> bool:
    return isinstance(value, Message) or (isinstance(value, list) and len(value) > 0 and isinstance(value[0], Message))


def _framed(value: Buffer | None) -> Buffer:
    if value is None:
        raise DecodeError("a record without a value", None, "Error while reading frame version")
    return value


def _read_frame_varint(value: Buffer, at: int, what: str) -> tuple[int, int]:
    """Read a number of the frame, converted to an int16 as by Kafka; return it and the position after it."""
    try:
        number, at = read_int32_varint(value, at)
    except (IndexError, MessageError) as error:
        raise DecodeError(f"Error while reading {what}", at) from error
    if number > _INT16_MAX:
        raise DecodeError(f"Value for {what} was too large.", at)
    return ((number + 0x8000) & 0xFFFF) - 0x8000, at


def encode_framed(found: MessageType, message: Message, version: int | None = None) -> bytes:
    """Encode the value of a record of a framed topic, in `version`, or in the message's version.

    Raises EncodeError for values that the version cannot represent, and UnsupportedVersionError.
    """
    version = message.schema_version if version is None else version
    head = (FRAME_VERSION, found.key or 0, version)
    return b"".join(map(write_unsigned_varint, head)) + found.encode(message, version)


OFFSETS = GroupDecoder()
TRANSACTION_LOG = CoordinatorDecoder("__transaction_state", "transaction_records")
SHARE_GROUP_STATE = CoordinatorDecoder("__share_group_state", "share_records")
CLUSTER_METADATA = ClusterMetadataDecoder()
REMOTE_LOG_METADATA = RemoteLogMetadataDecoder()

_BY_TOPIC: dict[str, Decoder] = {
    decoder.topic: decoder for decoder in (OFFSETS, TRANSACTION_LOG, SHARE_GROUP_STATE, CLUSTER_METADATA, REMOTE_LOG_METADATA)
}


def decoder_for_topic(topic_name: str) -> Decoder | None:
    """Return the decoder for the records of an internal topic, or None for any other topic."""
    return _BY_TOPIC.get(topic_name)


SEGMENT_STATES = {
    0: "COPY_SEGMENT_STARTED",
    1: "COPY_SEGMENT_FINISHED",
    2: "DELETE_SEGMENT_STARTED",
    3: "DELETE_SEGMENT_FINISHED",
}
PARTITION_DELETE_STATES = {
    0: "DELETE_PARTITION_MARKED",
    1: "DELETE_PARTITION_STARTED",
    2: "DELETE_PARTITION_FINISHED",
}


def remote_log_text(message: Message) -> str:
    """Return the text of a message of any of the four types. Raises DecodeError for one that Kafka's classes reject."""
    return {
        "RemoteLogSegmentMetadataRecord": _segment,
        "RemoteLogSegmentMetadataUpdateRecord": _segment_update,
        "RemotePartitionDeleteMetadataRecord": _partition_delete,
        "RemoteLogSegmentMetadataSnapshotRecord": _segment_snapshot,
    }[message.STRUCT.name](message)


def _segment(message: Message) -> str:
    if message.start_offset < 0:
        raise DecodeError(
            f"Unexpected start offset = {message.start_offset}. StartOffset for a remote segment cannot be negative"
        )
    if message.end_offset < message.start_offset:
        raise DecodeError(
            f"Unexpected end offset = {message.end_offset}. EndOffset for a remote segment cannot be less than "
            f"startOffset = {message.start_offset}"
        )
    return (
        f"RemoteLogSegmentMetadata{{remoteLogSegmentId={_segment_id(message)}, startOffset={message.start_offset}, "
        f"endOffset={message.end_offset}, brokerId={message.broker_id}, maxTimestampMs={message.max_timestamp_ms}, "
        f"eventTimestampMs={message.event_timestamp_ms}, segmentLeaderEpochs={_leader_epochs(message)}, "
        f"segmentSizeInBytes={message.segment_size_in_bytes}, customMetadata={_custom_metadata(message)}, "
        f"state={_segment_state(message)}, txnIdxEmpty={_bool(message.txn_index_empty)}}}"
    )


def _segment_update(message: Message) -> str:
    return (
        f"RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_segment_id(message)}, "
        f"customMetadata={_custom_metadata(message)}, state={_segment_state(message)}, "
        f"eventTimestampMs={message.event_timestamp_ms}, brokerId={message.broker_id}}}"
    )


def _partition_delete(message: Message) -> str:
    state = PARTITION_DELETE_STATES.get(message.remote_partition_delete_state)
    if state is None:
        raise DecodeError(f"no state {message.remote_partition_delete_state}", None, "null")
    return (
        f"RemotePartitionDeleteMetadata{{topicPartition={_topic_partition(message.topic_id_partition)}, state={state}, "
        f"eventTimestampMs={message.event_timestamp_ms}, brokerId={message.broker_id}}}"
    )


def _segment_snapshot(message: Message) -> str:
    state = _segment_state(message)
    return (
        f"RemoteLogSegmentMetadataSnapshot{{segmentId={message.segment_id}, startOffset={message.start_offset}, "
        f"endOffset={message.end_offset}, maxTimestampMs={message.max_timestamp_ms}, "
        f"segmentLeaderEpochs={_leader_epochs(message)}, segmentSizeInBytes={message.segment_size_in_bytes}, "
        f"customMetadata={_custom_metadata(message)}, state={state}, txnIdxEmpty={_bool(message.txn_index_empty)}}}"
    )


def _segment_id(message: Message) -> str:
    segment = message.remote_log_segment_id
    return f"RemoteLogSegmentId{{topicIdPartition={_topic_partition(segment.topic_id_partition)}, id={segment.id}}}"


def _topic_partition(entry: Message) -> str:
    return f"{entry.id}:{entry.name}-{entry.partition}"


def _leader_epochs(message: Message) -> str:
    epochs = {entry.leader_epoch: entry.offset for entry in message.segment_leader_epochs}
    if not epochs:
        raise DecodeError("segmentLeaderEpochs can not be null or empty")
    return "{" + ", ".join(f"{epoch}={epochs[epoch]}" for epoch in sorted(epochs)) + "}"


def _custom_metadata(message: Message) -> str:
    if message.custom_metadata is None:
        return "Optional.empty"
    return f"Optional[CustomMetadata{{{len(message.custom_metadata)} bytes}}]"


def _segment_state(message: Message) -> str:
    state = SEGMENT_STATES.get(message.remote_log_segment_state)
    if state is None:
        raise DecodeError("state can not be null")
    return state


def _bool(value: bool) -> str:
    return "true" if value else "false"
