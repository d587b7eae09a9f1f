"""What the group coordinator has the persister do with the states of share groups (KIP-932; Kafka: GroupCoordinatorService).

operation   steps
----------  -----------------------------------------------------------------------------------------------------------
initialize  after a heartbeat: the states of new partitions are made; the group takes them as initialized if all were made,
            and as not being initialized any more if one was not. Partitions that are new in a topic which the group already
            reads begin at offset 0, as in Kafka 4.4: by share.auto.offset.reset=latest their first records would be lost
alter       the same in the epoch of an empty group, with start offsets; errors are those of partitions. Answered when the
            group has taken them as initialized
delete      the states of a group, or of topics of one, are deleted, and then the group, or the topics' place in it
describe    the start offsets are read, and the ends of the partitions from their leaders

lag = end offset - start offset - number of offsets above the start whose delivery is complete; -1 if one is not known
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kcli.format.kafka_uuid import TopicIdPartition, Uuid
from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, LIST_OFFSETS
from kcli.protocol.message import Message
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.group.group_records import ShareIndexes
from kcli.server.coordinator.group.share_group_manager import Initialization, ShareGroupManager
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.server.log_lines import WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.server.outstanding import Gather
from kcli.server.replication.share_persister import ShareKey, SharePersister, ShareSummary

_NO_OFFSET = -1
_LATEST = -1  # the timestamp of ListOffsets for the end
_CLIENT = -1  # the replica id of a client
_Response = TypeVar("_Response")
Codes = dict[TopicIdPartition, int]


class ShareOffset(NamedTuple):
    """The start offset and the lag of a partition, -1 if they are not known."""

    start_offset: int = _NO_OFFSET
    leader_epoch: int = 0
    lag: int = _NO_OFFSET
    error_code: int = error_codes.NONE


class WriteGroup(Protocol):
    """What executes operations on the share groups of a shard."""

    def __call__(
        self,
        group_id: str,
        operation: Callable[[ShareGroupManager], Decision[_Response]],
        respond: Respond[_Response],
    ) -> None:
        """Execute an operation; see CoordinatorRuntime.write."""
        ...


def _gather(
    keys: Iterable[TopicIdPartition],
    call: Callable[[TopicIdPartition, Callable[[object], None]], None],
    done: Callable[[dict[TopicIdPartition, object]], None],
) -> None:
    """Begin a call for each partition, with what takes its result; `done` gets the results when each is there."""
    results: dict[TopicIdPartition, object] = {}
    wanted = sorted(set(keys))
    gather = Gather(len(wanted), lambda: done(results))

    def take(key: TopicIdPartition, result: object) -> None:
        results[key] = result
        gather.done()

    for key in wanted:
        call(key, partial(take, key))


def _flat(partitions: ShareIndexes) -> list[TopicIdPartition]:
    return [(topic_id, index) for topic_id, indexes in partitions.items() for index in indexes]


class ShareGroupStates:
    """The states of the share groups that this broker coordinates. `listener` is the one that brokers use for each other.

    `write` executes operations on the group's shard; `report` writes a line of the node's log.
    """

    def __init__(
        self,
        persister: SharePersister,
        metadata: MetadataCache,
        config: ConfigReader,
        peers: Peers,
        listener: str,
        timer: Timer,
        write: WriteGroup,
        report: Callable[[str], None],
    ) -> None:
        self._persister = persister
        self._metadata = metadata
        self._config = config
        self._peers = peers
        self._listener = listener
        self._timer = timer
        self._write = write
        self._report = report
        self._making: Counter[tuple[str, TopicIdPartition]] = Counter()  # with other partitions, until all are made

    # ------------------------------------------------------------------------------------------------------ initialize

    def initialize(self, wanted: Initialization) -> None:
        """Make the states of new partitions. Those of a topic that the group already read begin at offset 0 (KAFKA-20742).

        A state that is being made already is left out: the group repeats what takes long, and a call that is executed when
        members have acknowledged records would begin the state anew. Kafka's coordinator sends it.
        """
        partitions: ShareIndexes = {}
        for key in _flat(wanted.partitions):
            if not self._making[wanted.group_id, key]:
                partitions.setdefault(key[0], set()).add(key[1])
        if not partitions:
            return
        wanted = wanted._replace(partitions=partitions)
        starts = {key: 0 for key in _flat(wanted.partitions) if key[0] in wanted.known_topics}
        self._make(wanted, starts, partial(self._made, wanted))

    def _make(self, wanted: Initialization, starts: Mapping[TopicIdPartition, int], done: Callable[[Codes], None]) -> None:
        def make(key: TopicIdPartition, take: Callable[[object], None]) -> None:
            where = ShareKey(wanted.group_id, *key)
            self._persister.initialize(where, wanted.state_epoch, starts.get(key, _NO_OFFSET), take)

        def made(results: dict[TopicIdPartition, object]) -> None:
            self._making -= making
            done(_codes(results))

        making = Counter((wanted.group_id, key) for key in _flat(wanted.partitions))
        self._making += making
        _gather(_flat(wanted.partitions), make, made)

    def _made(self, wanted: Initialization, codes: Codes) -> None:
        failed = next((code for code in codes.values() if code), error_codes.NONE)
        if failed:
            self._abandon(wanted, failed)
        else:
            self._complete(wanted, lambda error: None)

    def _complete(self, wanted: Initialization, done: Callable[[CoordinatorError | None], None]) -> None:
        def completed(result: CoordinatorError | None, now_ms: int) -> None:
            if result is not None:
                self._abandon(wanted, result.code)
            done(result)

        self._write(wanted.group_id, lambda shares: shares.complete_initialization(wanted), completed)

    def _abandon(self, wanted: Initialization, code: int) -> None:
        error = error_codes.NAMES.get(code, str(code))
        text = f"cannot initialize partitions of share group {wanted.group_id}: {error}; its next heartbeat tries again"
        self._report(WarningLine(text, group=wanted.group_id, error=error))
        self._write(wanted.group_id, lambda shares: shares.abandon_initialization(wanted), _ignore)

    def alter(
        self, group_id: str, starts: Mapping[TopicIdPartition, int], respond: Callable[[Codes | CoordinatorError], None]
    ) -> None:
        """Set the start offsets of an empty group; respond with the error codes of partitions.

        The response waits until the group has taken the partitions as initialized. Otherwise its next heartbeat could
        initialize them again, at other offsets. Kafka's coordinator does not wait.
        """
        partitions: ShareIndexes = {}
        for topic_id, index in starts:
            partitions.setdefault(topic_id, set()).add(index)

        def begun(wanted: Initialization | CoordinatorError, now_ms: int) -> None:
            if isinstance(wanted, CoordinatorError):
                respond(wanted)
            else:
                self._make(wanted, starts, partial(made, wanted))

        def made(wanted: Initialization, codes: Codes) -> None:
            if any(codes.values()) or not codes:
                respond(codes)
            else:
                self._complete(wanted, lambda error: respond(codes if error is None else error))

        self._write(group_id, lambda shares: shares.begin_alteration(group_id, partitions), begun)

    # ---------------------------------------------------------------------------------------------------------- delete

    def delete_group(self, group_id: str, respond: Callable[[int], None]) -> None:
        """Delete the states of a group that is to be deleted; NONE if it is not a share group."""

        def begun(found: ShareIndexes | CoordinatorError, now_ms: int) -> None:
            if isinstance(found, CoordinatorError):
                respond(error_codes.NONE if found.code == error_codes.GROUP_ID_NOT_FOUND else found.code)
            else:
                self._delete(group_id, found, deleted)

        def deleted(codes: Codes) -> None:
            respond(next((code for code in codes.values() if code), error_codes.NONE))

        self._write(group_id, lambda shares: shares.begin_deletion(group_id), begun)

    def _delete(self, group_id: str, partitions: ShareIndexes, done: Callable[[Codes], None]) -> None:
        def delete(key: TopicIdPartition, take: Callable[[object], None]) -> None:
            self._persister.delete(ShareKey(group_id, *key), take)

        _gather(_flat(partitions), delete, lambda results: done(_codes(results)))

    def delete_offsets(
        self, group_id: str, topic_ids: list[Uuid], respond: Callable[[dict[Uuid, int] | CoordinatorError], None]
    ) -> None:
        """Delete the states of topics of an empty group; respond with error codes, none for a topic without states."""

        def begun(found: ShareIndexes | CoordinatorError, now_ms: int) -> None:
            if isinstance(found, CoordinatorError):
                respond(found)
            else:
                self._delete(group_id, found, partial(deleted, list(found)))

        def deleted(topics: list[Uuid], codes: Codes) -> None:
            by_topic = dict.fromkeys(topics, error_codes.NONE)
            for (topic_id, _), code in codes.items():
                by_topic[topic_id] = by_topic[topic_id] or code
            done = [topic_id for topic_id, code in by_topic.items() if not code]

            def completed(result: CoordinatorError | None, now_ms: int) -> None:
                respond(by_topic if result is None else result)

            if done:
                self._write(group_id, lambda shares: shares.complete_offset_deletion(group_id, done), completed)
            else:
                respond(by_topic)

        self._write(group_id, lambda shares: shares.begin_offset_deletion(group_id, topic_ids), begun)

    # -------------------------------------------------------------------------------------------------------- describe

    def initialized(self, group_id: str, respond: Callable[[ShareIndexes | CoordinatorError], None]) -> None:
        """Respond with the partitions of a group that have states."""
        self._write(group_id, lambda shares: Decision(shares.initialized(group_id)), lambda result, now_ms: respond(result))

    def describe(
        self,
        group_id: str,
        partitions: Iterable[TopicIdPartition],
        respond: Callable[[dict[TopicIdPartition, ShareOffset]], None],
    ) -> None:
        """Read the start offsets and lags of partitions."""

        def read(key: TopicIdPartition, take: Callable[[object], None]) -> None:
            self._persister.read_summary(ShareKey(group_id, *key), take)

        def summarized(results: dict[TopicIdPartition, object]) -> None:
            found = {key: summary for key, summary in results.items() if isinstance(summary, ShareSummary)}
            wanted = [key for key, one in found.items() if _NO_OFFSET not in (one.start_offset, one.delivery_complete_count)]
            _gather(wanted, self._find_end, partial(finish, results, found))

        def finish(
            results: dict[TopicIdPartition, object],
            found: dict[TopicIdPartition, ShareSummary],
            ends: dict[TopicIdPartition, object],
        ) -> None:
            respond({key: _described(found.get(key), ends.get(key)) for key in results})

        _gather(partitions, read, summarized)

    def _find_end(self, key: TopicIdPartition, take: Callable[[object], None]) -> None:
        """Ask the leader of a partition for its end; `take` gets a partition of a ListOffsets response, or an error code."""
        topic_id, index = key
        topic = self._metadata.image.topics.get(topic_id)
        if topic is None or index not in topic.partitions:
            take(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            return
        leader = topic.partitions[index].leader
        if leader < 0:
            take(error_codes.LEADER_NOT_AVAILABLE)
            return
        request = API_KEYS[LIST_OFFSETS].request
        asked = request.classes["ListOffsetsPartition"](partition_index=index, timestamp=_LATEST)
        named = request.classes["ListOffsetsTopic"](name=topic.name, partitions=[asked])
        message = request.new(replica_id=_CLIENT, topics=[named])

        def answered(answer: Answer, now_ms: int) -> None:
            take(error_codes.NETWORK_EXCEPTION if isinstance(answer, PeerFailure) else answer.topics[0].partitions[0])

        deadline_ms = self._timer.clock_ms + self._config.get_int("request.timeout.ms")
        self._peers.send(PeerNode(leader, NodeRole.BROKER), self._listener, LIST_OFFSETS, message, answered, deadline_ms)


def _codes(results: dict[TopicIdPartition, object]) -> Codes:
    return {key: code if isinstance(code, int) else error_codes.NONE for key, code in results.items()}


def _described(summary: ShareSummary | None, end: object) -> ShareOffset:
    """Return the answer for a partition; like Kafka's, one whose summary could not be read has no error code."""
    if summary is None:
        return ShareOffset()
    if end is None:
        return ShareOffset(summary.start_offset, summary.leader_epoch)
    code = end if isinstance(end, int) else end.error_code if isinstance(end, Message) else error_codes.NONE
    if code or not isinstance(end, Message):
        return ShareOffset(_DEFAULT_START, error_code=code)
    lag = end.offset - summary.start_offset - summary.delivery_complete_count
    return ShareOffset(summary.start_offset, summary.leader_epoch, lag)


_DEFAULT_START = 0  # of an answer with an error code


def _ignore(result: CoordinatorError | None, now_ms: int) -> None:
    """Do nothing: the initialization is repeated after a time."""
