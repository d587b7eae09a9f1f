"""The names of the topics that a coordinator assigns by their ids.

The client asks for the metadata of a topic by its name. The name of an id that no metadata have is asked for by Metadata with
the id (from version 12 on), until it is known or not assigned any more: a topic that was just created may not be known to the
broker that answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kcli.client.network_client import NetworkClient
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol.apis import API_KEYS, METADATA
from kcli.protocol.message import Message

TopicIdPartitions = Mapping[bytes, frozenset[int]]


class AssignedTopics:
    """Names by ids; `changed(now_ms)` is called after names that were missing came."""

    def __init__(self, network: NetworkClient, changed: Callable[[int], None]) -> None:
        self.names: dict[bytes, str] = {}
        self._network = network
        self._changed = changed
        self._wanted: frozenset[bytes] = frozenset()
        self._is_asking = False

    def want(self, assignment: TopicIdPartitions, now_ms: int) -> None:
        """Have the names of the topics of an assignment found; those of earlier ones are forgotten."""
        self._wanted = frozenset(assignment)
        self.names = {one: name for one, name in self.names.items() if one in self._wanted}
        for topic_id in self._wanted:
            known = self._network.metadata.topic_names.get(topic_id)
            if known is not None:
                self.names[topic_id] = known
        self._ask(now_ms)

    def resolve(self, assignment: TopicIdPartitions) -> tuple[TopicIdPartitions, bool]:
        """Return the part of an assignment whose topics are known, and whether it is the whole."""
        known = {one: partitions for one, partitions in assignment.items() if one in self.names}
        return known, len(known) == len(assignment)

    def _ask(self, now_ms: int) -> None:
        missing = sorted(self._wanted - self.names.keys())
        if not missing or self._is_asking:
            return
        self._is_asking = True
        kind = API_KEYS[METADATA].request
        topics = [kind.classes["MetadataRequestTopic"](topic_id=one, name=None) for one in missing]
        request: Message = kind.new(topics=topics, allow_auto_topic_creation=False)
        self._network.send_to_any(METADATA, request, self._answered)

    def _answered(self, answer: Answer, now_ms: int) -> None:
        self._is_asking = False
        if not isinstance(answer, PeerFailure):
            found = {one.topic_id: one.name for one in answer.topics if not one.error_code and one.name}
            found = {one: name for one, name in found.items() if one in self._wanted}
            self.names |= found
            for name in found.values():
                self._network.metadata.want_topic(name)
            if found:
                self._network.request_update()
                self._changed(now_ms)
        if self._wanted - self.names.keys():
            self._network.timer.schedule(now_ms + self._network.config.retry_backoff_max_ms, self._ask)
