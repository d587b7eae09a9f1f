"""Topics that are created when a client names them, if auto.create.topics.enable allows it (Kafka: AutoTopicCreationManager).

The broker sends the controller a CreateTopics with the default partitions and replication factor. A name that is being created
is not requested again; its clients are answered UNKNOWN_TOPIC_OR_PARTITION and ask again until the topic exists. A refusal by
the controller is logged once for each name and error, and the name is not requested again for REFUSED_PAUSE_MS. The error of a
node that is not the controller (any more) is no refusal: the next request of a client is sent to the new one.

The internal topics of streams groups (KIP-1071) are requested in the same way whatever auto.create.topics.enable is, with the
partitions, replicas and configs of the group's topology; the errors of the last requests are in the answers to its members.

Kafka's own topics have keys of their own for these numbers (offsets.topic.*, transaction.state.log.* and
share.coordinator.state.topic.*), since the number of partitions decides which broker coordinates a group and must not change:

    topic                configs in addition to segment.bytes
    -------------------  -------------------------------------------------------------------------------------------
    __consumer_offsets   compacted, with the producer's compression
    __transaction_state  compacted, uncompressed, its own min.insync.replicas, no unclean elections
    __share_group_state  kept forever, with the producer's compression, its own min.insync.replicas
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.protocol.message import Message
from kcli.server.broker.node_to_controller_channel import NodeToControllerChannelManager
from kcli.server.config.server_config import ConfigReader
from kcli.server.log_lines import WarningLine
from kcli.state.groups import InternalTopic

_CONTROLLER_DEFAULT = -1
TIMEOUT_MS = 30_000
REFUSED_PAUSE_MS = 10_000
# The number of names whose refusal is remembered; clients choose the names, so it needs a limit.
MAX_REFUSED = 1_000
# The number of names in one log line.
MAX_NAMED = 5


class _OwnTopic(NamedTuple):
    """One of Kafka's own topics: the prefix of its keys, its configs, and those that have a key of the broker."""

    keys: str
    configs: dict[str, str]
    broker_keys: dict[str, str]


_OWN_TOPICS = {
    "__consumer_offsets": _OwnTopic(
        "offsets.topic.",
        {"cleanup.policy": "compact", "compression.type": "producer"},
        {"segment.bytes": "offsets.topic.segment.bytes"},
    ),
    "__transaction_state": _OwnTopic(
        "transaction.state.log.",
        {"cleanup.policy": "compact", "compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
        {"segment.bytes": "transaction.state.log.segment.bytes", "min.insync.replicas": "transaction.state.log.min.isr"},
    ),
    "__share_group_state": _OwnTopic(
        "share.coordinator.state.topic.",
        {"cleanup.policy": "delete", "compression.type": "producer", "retention.ms": "-1"},
        {
            "segment.bytes": "share.coordinator.state.topic.segment.bytes",
            "min.insync.replicas": "share.coordinator.state.topic.min.isr",
        },
    ),
}


def _creatable(name: str, config: ConfigReader) -> Message:
    """Return the topic of a CreateTopics request."""
    classes = API_KEYS[CREATE_TOPICS].request.classes
    own = _OWN_TOPICS.get(name)
    if own is None:
        return classes["CreatableTopic"](name=name, num_partitions=_CONTROLLER_DEFAULT, replication_factor=_CONTROLLER_DEFAULT)
    configs = own.configs | {name: str(config[key]) for name, key in own.broker_keys.items()}
    return classes["CreatableTopic"](
        name=name,
        num_partitions=config[f"{own.keys}num.partitions"],
        replication_factor=config[f"{own.keys}replication.factor"],
        configs=[classes["CreatableTopicConfig"](name=key, value=value) for key, value in configs.items()],
    )


def _creatable_internal(topic: InternalTopic) -> Message:
    """Return an internal topic of a streams group for a CreateTopics request."""
    classes = API_KEYS[CREATE_TOPICS].request.classes
    return classes["CreatableTopic"](
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or _CONTROLLER_DEFAULT,
        configs=[classes["CreatableTopicConfig"](name=key, value=value) for key, value in topic.configs],
    )


class _Refusal(NamedTuple):
    """The controller's error for a name, its text, and when the name may be requested again."""

    error_code: int
    text: str
    until_ms: int


class AutoTopicCreationManager:
    """The topics that one broker has requested. `report` writes a line of the node's log."""

    def __init__(
        self, config: ConfigReader, controller: NodeToControllerChannelManager, timer: Timer, report: Callable[[str], None]
    ) -> None:
        self._config = config
        self._controller = controller
        self._timer = timer
        self._report = report
        self._in_flight: set[str] = set()
        self._refused: dict[str, _Refusal] = {}

    def create(self, names: Iterable[str]) -> None:
        """Request topics of these names from the controller."""
        topics = [_creatable(name, self._config) for name in self._wanted(names)]
        self._request(topics, REFUSED_PAUSE_MS, "auto.create.topics.enable")

    def create_internal(self, topics: Iterable[InternalTopic], pause_ms: int) -> None:
        """Request internal topics of streams groups; a name that is refused is not requested again for `pause_ms`."""
        by_name = {topic.name: topic for topic in topics}
        self._request([_creatable_internal(by_name[name]) for name in self._wanted(by_name)], pause_ms, "streams group")

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Return the texts of the controller's errors for names that are not requested again yet."""
        now_ms = self._timer.clock_ms
        return {name: self._refused[name].text for name in names if self._is_paused(name, now_ms)}

    def _wanted(self, names: Iterable[str]) -> list[str]:
        now_ms = self._timer.clock_ms
        return [name for name in dict.fromkeys(names) if name not in self._in_flight and not self._is_paused(name, now_ms)]

    def _request(self, topics: list[Message], pause_ms: int, reason: str) -> None:
        if not topics:
            return
        wanted = [topic.name for topic in topics]
        self._in_flight.update(wanted)

        def created(response: Message | None, now_ms: int) -> None:
            self._in_flight.difference_update(wanted)
            self._handle_results(response.topics if response is not None else (), now_ms + pause_ms, reason)

        request = API_KEYS[CREATE_TOPICS].request.new(topics=topics, timeout_ms=TIMEOUT_MS)
        self._controller.send(CREATE_TOPICS, request, created)

    def _is_paused(self, name: str, now_ms: int) -> bool:
        refusal = self._refused.get(name)
        return refusal is not None and now_ms < refusal.until_ms

    def _reason_of(self, name: str, reason: str) -> str:
        """Return why a topic was requested; for an internal one the setting that its creation depends on."""
        own = _OWN_TOPICS.get(name)
        key = "" if own is None else f"{own.keys}replication.factor"
        return f"{key}={self._config[key]}" if key else reason

    def _handle_results(self, topics: Iterable[Message], until_ms: int, reason: str) -> None:
        """Remember the refusals, and log those that are new: one line for each error."""
        by_code: dict[tuple[int, str], list[Message]] = {}
        for topic in topics:
            known, code = self._refused.pop(topic.name, None), topic.error_code
            if code in (error_codes.NONE, error_codes.TOPIC_ALREADY_EXISTS, error_codes.NOT_CONTROLLER):
                continue
            text = topic.error_message or error_codes.NAMES.get(code, str(code))
            self._refused[topic.name] = _Refusal(code, text, until_ms)
            if known is None or known.error_code != code:
                by_code.setdefault((code, self._reason_of(topic.name, reason)), []).append(topic)
        while len(self._refused) > MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        for (code, why), refused in by_code.items():
            error, names = error_codes.NAMES.get(code, code), [topic.name for topic in refused]
            more = f" and {len(names) - MAX_NAMED} others" if len(names) > MAX_NAMED else ""
            what = f"topic {', '.join(names[:MAX_NAMED])}{more} cannot be created automatically ({why})"
            message = f": {refused[0].error_message}" if refused[0].error_message else ""
            self._report(WarningLine(f"{what}: {error}{message}", topic=names[0], error=error))
