"""Making topics that a client names and nobody made, where auto.create.topics.enable allows it.

The broker asks the controller as a client would: the default partitions and replication factor. A name that is on its way is
not asked for again; the client, who was told UNKNOWN_TOPIC_OR_PARTITION, comes back until the topic is there. A refusal of
the controller is logged, once for each name and error, and the name is not asked for again for REFUSED_PAUSE_MS.

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

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.protocol.message import Message
from kcli.server.log_lines import WarningLine

_CONTROLLER_DEFAULT = -1
TIMEOUT_MS = 30_000
REFUSED_PAUSE_MS = 10_000
# Of so many names the refusal is remembered: clients choose them.
MAX_REFUSED = 1_000
MAX_NAMED = 5


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


class _Refusal(NamedTuple):
    """The controller's error for a name, and when it may be asked again."""

    error_code: int
    until_ms: int


class TopicCreation:
    """The topics that one broker has asked for."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._under_way: set[str] = set()
        self._refused: dict[str, _Refusal] = {}

    def create(self, names: Iterable[str]) -> None:
        """Ask for topics of these names."""
        now_ms = self._broker.timer.clock_ms
        wanted = [name for name in dict.fromkeys(names) if name not in self._under_way and not self._is_paused(name, now_ms)]
        if not wanted:
            return
        self._under_way.update(wanted)
        api = API_KEYS[CREATE_TOPICS]
        topics = [_creatable(name, self._broker.config) for name in wanted]

        def created(response: Message | None, now_ms: int) -> None:
            self._under_way.difference_update(wanted)
            self._note(response.topics if response is not None else (), now_ms)

        self._broker.controller.send(CREATE_TOPICS, api.request.new(topics=topics, timeout_ms=TIMEOUT_MS), created)

    def _is_paused(self, name: str, now_ms: int) -> bool:
        refusal = self._refused.get(name)
        return refusal is not None and now_ms < refusal.until_ms

    def _note(self, topics: Iterable[Message], now_ms: int) -> None:
        """Take the controller's answers; the refusals that are new are logged, those of one error in one line."""
        news: dict[int, list[Message]] = {}
        for topic in topics:
            known, code = self._refused.pop(topic.name, None), topic.error_code
            if code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS):
                continue
            self._refused[topic.name] = _Refusal(code, now_ms + REFUSED_PAUSE_MS)
            if known is None or known.error_code != code:
                news.setdefault(code, []).append(topic)
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        for code, refused in news.items():
            error, names = error_codes.NAMES.get(code, code), [topic.name for topic in refused]
            more = f" and {len(names) - MAX_NAMED} others" if len(names) > MAX_NAMED else ""
            what = f"topic {', '.join(names[:MAX_NAMED])}{more} cannot be created automatically (auto.create.topics.enable)"
            message = f": {refused[0].error_message}" if refused[0].error_message else ""
            self._broker.tell(WarningLine(f"{what}: {error}{message}", topic=names[0], error=error))
