"""Making topics that a client names and nobody made, where auto.create.topics.enable allows it.

The broker asks the controller as a client would: the default partitions and replication factor. A name that is on its way is
not asked for again; the client, who was told UNKNOWN_TOPIC_OR_PARTITION, comes back until the topic is there.

Kafka's own topics have their numbers from keys of their own (offsets.topic.*, transaction.state.log.* and
share.coordinator.state.topic.*), since a number of partitions that coordinators were once found by must never change:

    topic                configs beside segment.bytes
    -------------------  -------------------------------------------------------------------------------------------
    __consumer_offsets   compacted, as the producer compresses
    __transaction_state  compacted, uncompressed, its own min.insync.replicas, no unclean elections
    __share_group_state  kept for ever, as the producer compresses, its own min.insync.replicas
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.protocol.message import Message

_CONTROLLER_DEFAULT = -1
TIMEOUT_MS = 30_000


class _OwnTopic(NamedTuple):
    """One of Kafka's own topics: what its keys begin with, its configs, and whether it has a key for min.insync.replicas."""

    keys: str
    configs: dict[str, str]
    has_min_isr: bool


_OWN_TOPICS = {
    "__consumer_offsets": _OwnTopic("offsets.topic.", {"cleanup.policy": "compact", "compression.type": "producer"}, False),
    "__transaction_state": _OwnTopic(
        "transaction.state.log.",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
        True,
    ),
    "__share_group_state": _OwnTopic(
        "share.coordinator.state.topic.",
        {"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"},
        True,
    ),
}


def _creatable(name: str, config: Any) -> Message:
    """What the controller is asked for; `config` is the broker's."""
    classes = API_KEYS[CREATE_TOPICS].request.classes
    own = _OWN_TOPICS.get(name)
    if own is None:
        return classes["CreatableTopic"](name=name, num_partitions=_CONTROLLER_DEFAULT, replication_factor=_CONTROLLER_DEFAULT)
    configs = {**own.configs, "segment.bytes": str(config[f"{own.keys}segment.bytes"])}
    if own.has_min_isr:
        configs["min.insync.replicas"] = str(config[f"{own.keys}min.isr"])
    return classes["CreatableTopic"](
        name=name,
        num_partitions=config[f"{own.keys}num.partitions"],
        replication_factor=config[f"{own.keys}replication.factor"],
        configs=[classes["CreatableTopicConfig"](name=key, value=value) for key, value in configs.items()],
    )


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
        topics = [_creatable(name, self._broker.config) for name in wanted]

        def created(response: Message | None, now_ms: int) -> None:
            self._under_way.difference_update(wanted)

        self._broker.controller.send(CREATE_TOPICS, api.request.new(topics=topics, timeout_ms=TIMEOUT_MS), created)
