"""The assignments of classic groups of consumers, by topic ids (the bytes: kcli.protocol.consumer_protocol).

An assignment is written in the version of the subscription of its member.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.consumer_protocol import assignment_type, encode_message, read_version
from kcli.protocol.message import Message
from kcli.server.metadata_cache import MetadataCache
from kcli.state.groups import Partitions


def encode_assignment(assigned: Mapping[Uuid, Iterable[int]], subscription: bytes, metadata: MetadataCache) -> bytes:
    """Encode an assignment for the member with this subscription, without topics that are deleted. Raises DecodeError."""
    kind = assignment_type()
    names = {topic_id: metadata.topic_name(topic_id) for topic_id in assigned}
    topics = [
        kind.classes["TopicPartition"](topic=name, partitions=sorted(assigned[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]
    return encode_message(kind, kind.new(assigned_partitions=topics), read_version(subscription))


def partitions_by_id(topics: Iterable[Message], metadata: MetadataCache) -> Partitions:
    """Return the partitions of a subscription or an assignment, without topics that do not exist."""
    ids = metadata.image.topic_ids
    return {ids[topic.topic]: topic.partitions for topic in topics if topic.topic in ids}
