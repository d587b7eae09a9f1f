"""The bytes in classic groups of consumers: the subscription of a member, and its assignment (Kafka: ConsumerProtocol).

Both begin with an int16, the version. A later version than the latest known one is read as that. An assignment is written in
the version of the subscription of its member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.internal_records import decode_consumer_protocol
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError
from kcli.protocol.message_types import message_type
from kcli.server.metadata_cache import MetadataCache
from kcli.state.groups import Partitions

_VERSION_BYTES = 2
_LATEST_VERSION = 3


def decode_subscription(metadata: bytes) -> Message:
    """Decode the subscription of a member. Raises DecodeError."""
    _version(metadata)
    return decode_consumer_protocol("ConsumerProtocolSubscription", metadata)


def decode_assignment(assignment: bytes) -> Message:
    """Decode the assignment of a member. Raises DecodeError."""
    _version(assignment)
    return decode_consumer_protocol("ConsumerProtocolAssignment", assignment)


def encode_assignment(assigned: Mapping[Uuid, Iterable[int]], subscription: bytes, metadata: MetadataCache) -> bytes:
    """Encode an assignment for the member with this subscription, without topics that are deleted. Raises DecodeError."""
    version = min(_version(subscription), _LATEST_VERSION)
    kind = message_type("control_records", "ConsumerProtocolAssignment")
    names = {topic_id: metadata.topic_name(topic_id) for topic_id in assigned}
    topics = [
        kind.classes["TopicPartition"](topic=name, partitions=sorted(assigned[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]
    return version.to_bytes(_VERSION_BYTES, "big") + kind.encode(kind.new(assigned_partitions=topics), version)


def partitions_by_id(topics: Iterable[Message], metadata: MetadataCache) -> Partitions:
    """Return the partitions of a subscription or an assignment, without topics that do not exist."""
    ids = metadata.image.topic_ids
    return {ids[topic.topic]: topic.partitions for topic in topics if topic.topic in ids}


def _version(data: bytes) -> int:
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if len(data) < _VERSION_BYTES or version < 0:
        raise DecodeError(f"{version} is not a version of the consumer protocol", 0)
    return version
