"""The text of __remote_log_metadata records in kafka-dump-log: the toString of Kafka's Java objects instead of JSON.

The constructors of these objects raise exceptions for some records, so the same records raise errors here, with the same
messages.
"""

from __future__ import annotations

from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError

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
