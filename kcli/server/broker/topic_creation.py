"""Making topics that a client names and nobody made, where auto.create.topics.enable allows it.

The broker asks the controller as a client would: the default partitions and replication factor. A name that is on its way is
not asked for again; the client, who was told UNKNOWN_TOPIC_OR_PARTITION, comes back until the topic is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.protocol.message import Message

_CONTROLLER_DEFAULT = -1
TIMEOUT_MS = 30_000


class TopicCreation:
    """The topics that one broker has asked for."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._under_way: set[str] = set()

    def create(self, names: Iterable[str]) -> None:
        """Ask for topics of these names."""
        wanted = [name for name in dict.fromkeys(names) if name not in self._under_way]
        if not wanted:
            return
        self._under_way.update(wanted)
        api = API_KEYS[CREATE_TOPICS]
        make = api.request.classes["CreatableTopic"]
        topics = [
            make(name=name, num_partitions=_CONTROLLER_DEFAULT, replication_factor=_CONTROLLER_DEFAULT) for name in wanted
        ]

        def created(response: Message | None, now_ms: int) -> None:
            self._under_way.difference_update(wanted)

        self._broker.controller.send(CREATE_TOPICS, api.request.new(topics=topics, timeout_ms=TIMEOUT_MS), created)
