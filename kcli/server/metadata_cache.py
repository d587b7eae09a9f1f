"""The metadata of the cluster as one broker knows it (Kafka: KRaftMetadataCache)."""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import PartitionRegistration

# Version, listener, and whether the client asked for the operations that it may do: on the cluster, on topics.
AnswerKey = tuple[int, str, bool, bool]
MAX_ANSWERS = 8


class EncodedAnswer(NamedTuple):
    """The frame of a response, with the correlation id of one request, and the number of each error code in it."""

    frame: bytearray
    error_codes: dict[int, int]


class MetadataCache:
    """The image of the committed records, and the offset of the last record applied, -1 for none.

    `topics_version` counts the changes of topics, of their partitions and of the racks of brokers. `topic_hashes` are the
    hashes of topics that TopicHashes has computed, by topic id; a change of a topic removes its hash. `client_metrics` are the
    subscriptions of client metrics by name: a part of the image's configurations, which each ApiVersions request asks for.
    `all_topics` are the answers to Metadata requests for all topics since the last change of the image.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.offset = -1
        self.topics_version = 0
        self.topic_hashes: dict[Uuid, bytes] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        self.all_topics: dict[AnswerKey, EncodedAnswer] = {}

    def changed(self) -> None:
        """Drop what was made of the image before a change; an answer that is being made then is not kept."""
        self.all_topics = {}

    def topic_changed(self, topic_id: Uuid | None) -> None:
        """Count a change of a topic or of its partitions; None is a change that may affect all topics."""
        self.topics_version += 1
        if topic_id is None:
            self.topic_hashes.clear()
        else:
            self.topic_hashes.pop(topic_id, None)

    def client_metrics_changed(self) -> None:
        """Read the subscriptions of client metrics from the image again."""
        self.client_metrics = self.image.configs_of("CLIENT_METRICS")

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the name of the topic with that id, None for an unknown id."""
        topic = self.image.topics.get(topic_id)
        return None if topic is None else topic.name

    def partition(self, topic_id: Uuid, index: int) -> PartitionRegistration | None:
        """Return the registration of a partition, None where there is none."""
        topic = self.image.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(index)

    def directory_of(self, topic_id: Uuid, index: int, node_id: int) -> Uuid | None:
        """Return the id of the log directory that the metadata puts a node's replica in, None where it names none."""
        registration = self.partition(topic_id, index)
        if registration is None or node_id not in registration.replicas:
            return None
        position = registration.replicas.index(node_id)
        return registration.directories[position] if position < len(registration.directories) else None
