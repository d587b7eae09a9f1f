"""What the clients of a coordination workload share: the world, the history, the topics, and what the run is doing.

state        what clients do
-----------  ---------------------------------------------------------------------------------------------------
(at first)   everything; members pause, leave and die
is_draining  no new records and no more pauses; members read and commit up to the end of each partition
is_over      clients end
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from kcli.client.client_config import ClientConfig
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import FIND_COORDINATOR, METADATA
from kcli.protocol.message import Message
from kcli.simulator.client import REQUEST_TIMEOUT_MS, Task
from kcli.simulator.coordination.history import NUMBER_MARK, History, topic_name
from kcli.simulator.core_client import CoreClient, WireRequest
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS, World

GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
TIMEOUTS_MS = (300, 1000, REQUEST_TIMEOUT_MS)
REPEATED_SHARE = 0.04
AGAIN_PARTITIONS = 2  # of a topic that is created again and again
REPEATED_AFTER_MS = 3000
ECHO_SUFFIX = "-again"  # in the name of the client that repeats requests
# Of FindCoordinator: from here on it has several keys, and the keys of the share coordinator.
_KEYS_VERSION, _SHARE_VERSION = 4, 6
# The broker or its coordinator is not ready, or another one is; a client asks again.
RETRIABLE = frozenset(
    (
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
        error_codes.CONCURRENT_TRANSACTIONS,
        error_codes.REQUEST_TIMED_OUT,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.NOT_ENOUGH_REPLICAS,
        error_codes.KAFKA_STORAGE_ERROR,
        error_codes.BROKER_NOT_AVAILABLE,
    )
)


class StageTopic(NamedTuple):
    """A topic of the workload; `name` is that of the history."""

    name: str
    topic_id: bytes
    partition_count: int

    @property
    def partitions(self) -> list[TopicPartition]:
        """All its partitions."""
        return [(self.name, index) for index in range(self.partition_count)]


class Stage:
    """See the head of this module; `loses_power`: every write of the brokers is flushed before it is answered.

    `is_core_only`: all clients are cores of kcli's own client, which find the brokers of a cluster; raw ones know one only.
    `life` returns a number that changes when a leader may begin a share partition anew: with each start of a broker, and in a
    cluster with each change of a leader. `least_timeout_ms` is the shortest time that a client gives a broker.
    """

    def __init__(
        self,
        world: World,
        *,
        loses_power: bool,
        is_core_only: bool = False,
        life: Callable[[], int] | None = None,
        least_timeout_ms: int = 0,
    ) -> None:
        self.world = world
        self.loses_power = loses_power
        self.is_core_only = is_core_only
        self.life = life or (lambda: world.start_count)
        self._least_timeout_ms = least_timeout_ms
        self.history = History()
        self.topics: dict[str, StageTopic] = {}
        # The name of a topic that is being created again, and whose new id no client has seen yet.
        self.creating: str | None = None
        self.styles: dict[str | None, bool] = {}  # transactional id -> its producers use transaction.version 2
        self.is_draining = False
        self.is_over = False

    @property
    def now_ms(self) -> int:
        """The virtual time."""
        return self.world.virtual_time.now_ms

    def core_client(
        self, name: str, rng: Random, config: ClientConfig, may_repeat: Callable[[WireRequest], bool]
    ) -> CoreClient:
        """Create a process for a core of kcli's own client; nothing is repeated while the workload drains."""
        return self.world.core_client(name, rng, config, lambda request: not self.is_draining and may_repeat(request))

    def client_config(self, rng: Random) -> ClientConfig:
        """Return random settings that all clients have."""
        return ClientConfig(
            request_timeout_ms=max(rng.choice(TIMEOUTS_MS), self._least_timeout_ms),
            retry_backoff_ms=rng.choice((5, 50)),
            retry_backoff_max_ms=rng.choice((50, 500)),
            reconnect_backoff_ms=rng.choice((5, 50)),
            reconnect_backoff_max_ms=rng.choice((50, 300)),
            socket_connection_setup_timeout_ms=rng.choice(TIMEOUTS_MS),
            metadata_max_age_ms=rng.choice((1000, 300_000)),
            allow_auto_create_topics=False,
        )

    def topic(self, name: str) -> StageTopic | None:
        """Return a topic, or the last one of a name that is created again and again; None if there is none yet."""
        last: StageTopic | None = None
        for topic in self.topics.values():
            if topic_name(topic.name) == name:
                last = topic
        return last

    def look_up(self, caller: Caller, wanted: Mapping[str, int | None]) -> Task[None]:
        """Take those of the topics from the metadata that have their number of partitions; None: any number."""
        request = self.world.request(METADATA, topics=None, allow_auto_topic_creation=False)
        response = yield from caller.call(METADATA, self.world.versions[METADATA][1], request, may_repeat=False)
        for topic in () if response is None else response.topics:
            count = len(topic.partitions)
            if topic.name in wanted and count and wanted[topic.name] in (None, count):
                self.topics[topic.name] = StageTopic(topic.name, bytes(topic.topic_id), count)

    def created(self, topic_id: bytes) -> StageTopic:
        """Take the topic that is being created again: a response has its id."""
        assert self.creating is not None
        number = sum(topic_name(name) == self.creating for name in self.topics) + 1
        made = StageTopic(f"{self.creating}{NUMBER_MARK}{number}", topic_id, AGAIN_PARTITIONS)
        self.topics[made.name] = made
        self.creating = None
        self.world.trace.add("stage", f"{made.name} is created")
        return made

    def live_topics(self) -> list[StageTopic]:
        """Return the topics that exist, if none is being created."""
        return [topic for topic in self.topics.values() if topic.name not in self.history.deleted_ms]

    def topic_name(self, topic_id: bytes) -> str:
        """Return the name of a topic in the history. Raises SimulationFailure."""
        for topic in self.topics.values():
            if topic.topic_id == bytes(topic_id):
                return topic.name
        if self.creating is not None:
            return self.created(bytes(topic_id)).name
        raise SimulationFailure(f"a response has the unknown topic id {bytes(topic_id).hex()}")


class Caller:
    """Sends the requests of one client, one at a time, in random versions and with random timeouts.

    Some requests are sent a second time on another connection, up to REPEATED_AFTER_MS later.
    """

    def __init__(self, stage: Stage, name: str, rng: Random) -> None:
        self.name = name
        self.was_stray = False  # the last request may be executed once more
        self.was_sent = False  # there was a connection for it
        self.was_repeated = False
        self._stage = stage
        self._rng = rng
        self._client = stage.world.client(name)
        self._echo = stage.world.client(name + ECHO_SUFFIX)

    def version(self, key: int, lowest: int = 0, highest: int = 1 << 15) -> int:
        """Choose a version of an API between two."""
        low, high = self._stage.world.versions[key]
        high = min(high, highest)
        return high if self._rng.random() < 0.5 else self._rng.randint(max(low, lowest), high)

    def call(
        self, key: int, version: int, request: Message, *, wait_ms: int = 0, may_repeat: bool = True
    ) -> Task[Message | None]:
        """Send a request; return the response, or None if there was none within `wait_ms` and a random time."""
        self.was_repeated = may_repeat and self._rng.random() < REPEATED_SHARE and not self._stage.is_draining
        if self.was_repeated:
            delay_ms = self._rng.randrange(REPEATED_AFTER_MS)

            def repeat() -> None:
                self._echo.send(key, version, request)

            self._stage.world.virtual_time.after(delay_ms, repeat)
        timeout_ms = wait_ms + self._rng.choice(TIMEOUTS_MS)
        pending = self._client.send(key, version, request, timeout_ms=timeout_ms)
        self.was_sent = not pending.is_done
        response = yield pending
        self.was_stray = self.was_repeated or (self.was_sent and response is None)
        return response

    def disconnect(self) -> None:
        """Close the connection."""
        self._client.disconnect()

    def find_coordinator(self, key_type: int, key: str) -> Task[None]:
        """Ask for a coordinator until the broker has one. Raises SimulationFailure."""
        world = self._stage.world
        yield from world.negotiate_versions(self._client)
        while not self._stage.is_over:
            version = self.version(FIND_COORDINATOR, _SHARE_VERSION if key_type == SHARE_KEY else 1)
            fields = {"coordinator_keys": [key]} if version >= _KEYS_VERSION else {"key": key}
            request = world.request(FIND_COORDINATOR, key_type=key_type, **fields)
            response = yield from self.call(FIND_COORDINATOR, version, request, may_repeat=False)
            if response is not None:
                code = response.coordinators[0].error_code if version >= _KEYS_VERSION else response.error_code
                if not code:
                    return
                self.check(code, "FindCoordinator")
            yield PAUSE_MS

    def check(self, code: int, what: str, allowed: frozenset[int] = RETRIABLE) -> None:
        """Raise SimulationFailure for an error code that is not allowed."""
        if code and code not in allowed:
            name = error_codes.NAMES.get(code, str(code))
            raise SimulationFailure(f"{self.name}: {what} returned error {name}")
