"""What a client knows of the cluster: nodes, topics, leaders (Kafka: Metadata, ProducerMetadata, ConsumerMetadata).

    what a client wants                call                    what the next Metadata request asks for
    ---------------------------------  ----------------------  ----------------------------------------------------------
    the topics that it produces to     `want_topic(name)`      these topics, until `forget_topic`
    or that it is subscribed to
    a pattern, or a list of all        `want_all_topics`       all topics
    the nodes only                     neither                 no topic

    update            effect
    ----------------  ---------------------------------------------------------------------------------------------------
    Metadata answer   nodes, controller and cluster id are replaced; so are the topics that were asked for. A partition
                      whose leader epoch is older than the known one keeps the known leader, unless the topic has another
                      id (it was deleted and made again)
    `update_leaders`  leaders and nodes that an answer to Produce, Fetch or a share request named (KIP-951); older
                      epochs are ignored
    DescribeCluster   nodes are the controllers, for a client with bootstrap.controllers (KIP-919); it has no topics

`topic_errors` has the error of each topic that was asked for and is not there. kcli.client.network_client sends the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from kcli.client.cluster import NO_EPOCH, NO_LEADER, Cluster, PartitionInfo
from kcli.format.primitives import TopicPartition
from kcli.network.events import PeerAddress, PeerNode
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_CLUSTER, METADATA
from kcli.protocol.message import Message
from kcli.protocol.message_errors import NotInVersionError

NO_CONTROLLER = -1
ZERO_UUID = bytes(16)
CONTROLLER_ENDPOINTS = 2  # the endpoint type of DescribeCluster
_ENDPOINT_TYPES_SINCE = 1

# After an update: the new snapshot, and the time of the client.
UpdateListener = Callable[[Cluster, int], None]


class Node(NamedTuple):
    """A broker; `rack` is None if it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class LeaderIdAndEpoch(NamedTuple):
    """The leader of a partition that an answer named."""

    leader: int
    leader_epoch: int


def controllers_request(version: int) -> Message:
    """Return the DescribeCluster request for the controllers (KIP-919). Raises NotInVersionError."""
    if version < _ENDPOINT_TYPES_SINCE:
        raise NotInVersionError(f"version {version} of DescribeCluster does not have endpoint types")
    return API_KEYS[DESCRIBE_CLUSTER].request.new(endpoint_type=CONTROLLER_ENDPOINTS)


class Metadata:
    """The newest knowledge of one client."""

    def __init__(self, allow_auto_create_topics: bool = False) -> None:
        self.cluster = Cluster()
        self.nodes: dict[int, Node] = {}
        self.cluster_id: str | None = None
        self.controller_id = NO_CONTROLLER
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        self.internal_topics: frozenset[str] = frozenset()
        self.topic_errors: dict[str, int] = {}
        self.update_count = 0
        self.allow_auto_create_topics = allow_auto_create_topics
        self._wanted: set[str] = set()
        self._wants_all = False
        self._listeners: list[UpdateListener] = []

    # ------------------------------------------------------------------------------------------------ what is asked for

    @property
    def wanted_topics(self) -> frozenset[str]:
        """The topics that were asked for by name."""
        return frozenset(self._wanted)

    def want_topic(self, name: str) -> bool:
        """Ask for a topic; return whether it is new, so that an update should be requested."""
        is_new = name not in self._wanted
        self._wanted.add(name)
        return is_new

    def forget_topic(self, name: str) -> None:
        """Ask for a topic no longer."""
        self._wanted.discard(name)
        self.topic_errors.pop(name, None)

    def want_all_topics(self, wanted: bool) -> None:
        """Ask for all topics, or for those by name again."""
        self._wants_all = wanted

    def request(self, version: int) -> Message:
        """Return the request for what is wanted, for a version of Metadata."""
        kind = API_KEYS[METADATA].request
        may_create = self.allow_auto_create_topics or version < 4
        if self._wants_all:
            return kind.new(topics=[] if version == 0 else None, allow_auto_topic_creation=may_create)
        of_topic = kind.classes["MetadataRequestTopic"]
        topics = [of_topic(name=name) for name in sorted(self._wanted)]
        return kind.new(topics=topics, allow_auto_topic_creation=may_create)

    def add_listener(self, listener: UpdateListener) -> None:
        """Have a function called after each update."""
        self._listeners.append(listener)

    # ---------------------------------------------------------------------------------------------------------- updates

    def update(self, response: Message, now_ms: int) -> None:
        """Take an answer to Metadata."""
        self.nodes = {node.node_id: Node(node.node_id, node.host, node.port, node.rack) for node in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self.topic_errors = {}
        partitions: list[PartitionInfo] = []
        internal = set()
        old_ids, self.topic_ids = self.topic_ids, {}
        for topic in response.topics:
            if topic.error_code:
                if topic.name is not None:
                    self.topic_errors[topic.name] = topic.error_code
                continue
            if topic.topic_id != ZERO_UUID:
                self.topic_ids[topic.name] = topic.topic_id
            if topic.is_internal:
                internal.add(topic.name)
            is_same = old_ids.get(topic.name, topic.topic_id) == topic.topic_id
            partitions += (self._newer(topic.name, partition, is_same) for partition in topic.partitions)
        self.topic_names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        self.internal_topics = frozenset(internal)
        self._replace(partitions, now_ms)

    def update_controllers(self, response: Message, now_ms: int) -> None:
        """Take an answer to DescribeCluster of a controller: the nodes are the controllers, and there are no topics."""
        self.nodes = {node.broker_id: Node(node.broker_id, node.host, node.port) for node in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller_id = response.controller_id
        self._replace((), now_ms)

    def _newer(self, topic: str, found: Message, is_same_topic: bool) -> PartitionInfo:
        """Return a partition of an answer, or the known one if that is newer."""
        known = self.cluster.partition(topic, found.partition_index) if is_same_topic else None
        if known is not None and NO_EPOCH < found.leader_epoch < known.leader_epoch:
            return known
        has_leader = found.leader_id in self.nodes and found.error_code != error_codes.LEADER_NOT_AVAILABLE
        return PartitionInfo(
            topic,
            found.partition_index,
            found.leader_id if has_leader else NO_LEADER,
            found.leader_epoch,
            tuple(found.replica_nodes),
            tuple(found.isr_nodes),
            tuple(found.offline_replicas),
        )

    def update_leaders(
        self, leaders: Mapping[TopicPartition, LeaderIdAndEpoch], nodes: Iterable[Node], now_ms: int
    ) -> set[TopicPartition]:
        """Take leaders that an answer named; return the partitions whose leader changed."""
        self.nodes.update({node.node_id: node for node in nodes})
        changed = {}
        for (topic, partition), named in leaders.items():
            known = self.cluster.partition(topic, partition)
            if known is None or named.leader not in self.nodes or named.leader_epoch <= known.leader_epoch:
                continue
            changed[topic, partition] = known._replace(leader=named.leader, leader_epoch=named.leader_epoch)
        if changed:
            self._replace([changed.get(one[:2], one) for one in self.cluster.partitions], now_ms)
        return set(changed)

    def add_node(self, node_id: int, host: str, port: int) -> None:
        """Take the address of a broker that an answer named."""
        known = self.nodes.get(node_id)
        if known is None or (known.host, known.port) != (host, port):
            self.nodes[node_id] = Node(node_id, host, port, None if known is None else known.rack)

    def _replace(self, partitions: Iterable[PartitionInfo], now_ms: int) -> None:
        self.cluster = Cluster(partitions)
        self.update_count += 1
        for listener in self._listeners:
            listener(self.cluster, now_ms)

    # ------------------------------------------------------------------------------------------------------- addresses

    def address_of(self, node: PeerNode, listener: str) -> PeerAddress | None:
        """Return the address of a broker; `listener` only separates its connections."""
        found = self.nodes.get(node.node_id)
        return None if found is None else PeerAddress(found.host, found.port)
