"""The hash of a group's topics, which its record keeps: a group rebalances when it changes (Kafka: Utils.computeGroupHash).

    hash of     XXH3 of these, little-endian
    ----------  --------------------------------------------------------------------------------------------------------
    a topic     int8 0 | id: two int64 | name | int32 partitions | for each partition: int32 number, for each rack of its
                replicas, sorted: int32 length, text
    a group     the int64 of each topic that exists, by name; 0 without such a topic

A text is UTF-16 and an int32 with its length in characters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import xxhash

from kcli.format.kafka_uuid import Uuid
from kcli.server.metadata_cache import MetadataCache
from kcli.state.metadata_values import Topic

_MAGIC = 0
_SIGN = 1 << 63


class TopicHashes:
    """The hashes of the topics of `metadata`, which keeps them until a topic changes."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def group_hash(self, names: Iterable[str]) -> int:
        """Return the hash of a group that is subscribed to these topics; names without a topic do not count."""
        ids, hashes = self._metadata.image.topic_ids, self._metadata.topic_hashes
        parts = []
        for name in sorted(names):
            topic_id = ids.get(name)
            if topic_id is not None:
                parts.append(hashes.get(topic_id) or self._add(topic_id))
        return _signed(xxhash.xxh3_64_intdigest(b"".join(parts))) if parts else 0

    def add(self, name: str) -> bool:
        """Compute the hash of a topic; return False if it was known, or there is no such topic."""
        topic_id = self._metadata.image.topic_ids.get(name)
        if topic_id is None or topic_id in self._metadata.topic_hashes:
            return False
        self._add(topic_id)
        return True

    def _add(self, topic_id: Uuid) -> bytes:
        found = struct.pack("<Q", xxhash.xxh3_64_intdigest(self._encode(self._metadata.image.topics[topic_id])))
        self._metadata.topic_hashes[topic_id] = found
        return found

    def _encode(self, topic: Topic) -> bytes:
        brokers = self._metadata.image.brokers
        parts = [struct.pack("<b", _MAGIC), topic.topic_id[7::-1], topic.topic_id[:7:-1], _text(topic.name)]
        parts.append(struct.pack("<i", len(topic.partitions)))
        for index in range(len(topic.partitions)):
            parts.append(struct.pack("<i", index))
            replicas = topic.partitions[index].replicas if index in topic.partitions else ()
            racks = [brokers[replica].rack for replica in replicas if replica in brokers]
            parts += [struct.pack("<i", len(rack)) + _text(rack) for rack in sorted(rack for rack in racks if rack is not None)]
        return b"".join(parts)


def _text(text: str) -> bytes:
    encoded = text.encode("utf-16-le", "surrogatepass")
    return encoded + struct.pack("<i", len(encoded) // 2)


def _signed(value: int) -> int:
    return value - 2 * _SIGN if value & _SIGN else value
