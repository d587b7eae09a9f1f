"""The fetchers of one broker: they copy the records of partitions from their leaders (Kafka: ReplicaFetcherManager,
AbstractFetcherThread, ReplicaFetcherThread).

A fetcher has the partitions of one leader, of which a hash of the topic and the partition chooses one of num.replica.fetchers.
It has a connection of its own, one request under way, and a session with its leader (kcli.network.fetch_session): a partition
without news costs nothing. Versions are negotiated by ApiVersions as on each connection of kcli.network.peers; a follower of
Kafka derives them from metadata.version. All brokers with topic ids have the version of Fetch in which the leader answers with
the end of a diverging log (12), so that no follower asks for the ends of leader epochs by OffsetsForLeaderEpoch.

    state of a partition   what happens
    ---------------------  --------------------------------------------------------------------------------------------------
    Fetching               the leader is asked from the log end on, with the epoch of the last record, or from the high
                           watermark, to which a log without leader epochs is truncated first (KIP-101)
    Waiting                a flush that flush.messages asks for runs, since the next fetch acknowledges these records; or the
                           offsets of the leader are asked for
    Delayed                after an error, or a failure of the connection, for at most replica.fetch.backoff.ms
    failed                 it is fetched again after its next leader epoch

A throttled partition that is behind is not asked for while follower.replication.throttled.rate is exceeded
(kcli.server.replication.replication_quota); this is checked again every THROTTLE_CHECK_MS.

    answer                     what follows
    -------------------------  ----------------------------------------------------------------------------------------------
    records                    they are appended as they are, up to a batch of a later leader epoch than the leader's; the
                               high watermark is the leader's, limited to [log start, log end], and may fall; the log start
                               is the leader's, at most the high watermark
    a diverging epoch          without an end: truncated to the fetch offset. The epoch is known here: truncated to the end
                               that both have of it. Otherwise to the end of the epoch before, and asked again (KIP-279)
    OFFSET_OUT_OF_RANGE        ListOffsets asks for the leader's end; a log behind it is truncated to it. Otherwise for its
                               start; a log before it begins again there, any other goes on at its end
    FENCED_LEADER_EPOCH        failed: this broker has the older metadata; logged at DEBUG, as it happens to many partitions
                               with each election
    any other error, corrupt   Delayed
      or impossible records
    an error of the disk, and  failed
      any unexpected one

A leader that does not know a new topic, epoch or its role yet learns of it in a moment: so the first delay is FIRST_DELAY_MS,
and each further one in a row is twice as long, up to replica.fetch.backoff.ms, where Kafka waits that long at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple

from kcli.format.java_text import java_hash
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import read_header
from kcli.log.append_paths import LogAppendInfo
from kcli.log.errors import AppendError, UnexpectedAppendOffsetError
from kcli.log.unified_log import UnifiedLog
from kcli.network.events import NodeRole, PeerNode
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.fetch_session import FetchAnswerError, FetchLimits, FetchPartition, FetchSession, FetchSessionError
from kcli.network.peer_request import Answer, AnswerCallback, PeerFailure, Request
from kcli.network.peers import Peers
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH, LIST_OFFSETS
from kcli.protocol.message import Message
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.server_config import ServerConfig
from kcli.server.log_lines import DebugLine, Line, WarningLine, fault_line
from kcli.server.metrics.broker_metrics import BrokerMetrics
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.replication_quota import ReplicationQuota
from kcli.server.scheduler import Scheduler, SliceBudget

FIRST_DELAY_MS = 20
THROTTLE_CHECK_MS = 100
FETCHERS_KEY = "num.replica.fetchers"
_LATEST, _EARLIEST = -1, -2  # timestamps of ListOffsets
_NO_EPOCH = -1
# Errors that pass as soon as both brokers have the same metadata: they are not reported.
_PASSING = frozenset(
    (
        error_codes.UNKNOWN_LEADER_EPOCH,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.INCONSISTENT_TOPIC_ID,
    )
)
# The estimated work of a slice: for each partition, and for its bytes.
_PARTITION_US, _BYTES_A_US = 30, 500


class FetcherSettings(NamedTuple):
    """The settings of all fetchers, in ms and bytes."""

    wait_max_ms: int
    min_bytes: int
    response_max_bytes: int
    max_bytes: int  # of a partition
    backoff_ms: int
    socket_timeout_ms: int

    @classmethod
    def of(cls, config: ServerConfig) -> FetcherSettings:
        """Return the settings of a broker."""
        return cls(
            config.get_int("replica.fetch.wait.max.ms"),
            config.get_int("replica.fetch.min.bytes"),
            config.get_int("replica.fetch.response.max.bytes"),
            config.get_int("replica.fetch.max.bytes"),
            config.get_int("replica.fetch.backoff.ms"),
            config.get_int("replica.socket.timeout.ms"),
        )


class FollowerState(Enum):
    """What a fetcher does about a partition; see the table of this module."""

    FETCHING = "Fetching"
    WAITING = "Waiting"
    DELAYED = "Delayed"


class Follower:
    """A partition that a fetcher follows: `offset` is fetched next, `lag` is None before the first answer."""

    __slots__ = ("failures", "lag", "last_fetched_epoch", "leader_epoch", "offset", "partition", "state")

    def __init__(self, partition: Partition, log: UnifiedLog) -> None:
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state = FollowerState.FETCHING
        self.failures = 0  # in a row
        self.lag: int | None = None
        self.restart(log)

    def restart(self, log: UnifiedLog) -> None:
        """Go on at the end of the log, which may have been truncated."""
        latest = log.leader_epochs.latest_epoch
        self.last_fetched_epoch = _NO_EPOCH if latest is None else latest
        self.offset = log.log_end_offset

    @property
    def name(self) -> str:
        """Topic and partition for a line."""
        return f"{self.partition.topic}-{self.partition.index}"


class ReplicaFetcherManager:
    """The fetchers of one broker. `broker_epoch()` returns the epoch of its registration, -1 before that.

    `listener` is the listener that brokers use for each other; `scheduler` runs the broker's own work.
    """

    def __init__(
        self,
        config: DynamicConfig,
        replica_manager: ReplicaManager,
        peers: Peers,
        listener: str,
        scheduler: Scheduler,
        metrics: BrokerMetrics,
        broker_epoch: Callable[[], int],
        quota: ReplicationQuota,
    ) -> None:
        self.replica_manager = replica_manager
        self.peers = peers
        self.listener = listener
        self.scheduler = scheduler
        self.metrics = metrics
        self.settings = FetcherSettings.of(config.static)
        self.broker_epoch = broker_epoch
        self.quota = quota
        self.failed: dict[TopicPartition, None] = {}  # partitions that wait for their next leader epoch
        self.fetchers: dict[tuple[int, int], ReplicaFetcher] = {}  # by leader and number
        self._by_partition: dict[TopicPartition, ReplicaFetcher] = {}
        self._count = config.get_int(FETCHERS_KEY)
        config.watch((FETCHERS_KEY,), self._resize)

    def follow(self, partition: Partition, now_ms: int) -> None:
        """Fetch a partition from its leader, if it has one and this broker has a log of it, in its present leader epoch."""
        self.stop([partition.key])
        log = partition.log
        if log is None or partition.leader_id < 0 or partition.is_leader:
            return
        if log.leader_epochs.latest_epoch is None and log.log_end_offset > log.high_watermark:
            try:
                self.truncate(partition, log, log.high_watermark, "it has no leader epochs", now_ms)
            except OSError as error:
                self.replica_manager.handle_log_dir_failure(partition, error)
                return
            self.end_truncations(now_ms)
        self._add(partition, log, now_ms)

    def _add(self, partition: Partition, log: UnifiedLog, now_ms: int) -> None:
        key = partition.key
        number = (31 * java_hash(key[0]) + key[1] & 0x7FFF_FFFF) % self._count
        found = partition.leader_id, number
        fetcher = self.fetchers.get(found)
        if fetcher is None:
            fetcher = self.fetchers[found] = ReplicaFetcher(self, *found)
        self._by_partition[key] = fetcher
        fetcher.add(Follower(partition, log), log, now_ms)

    def stop(self, keys: Iterable[TopicPartition]) -> None:
        """Fetch partitions no more: this broker leads them, or has no replica of them any more."""
        for key in keys:
            self.failed.pop(key, None)
            fetcher = self._by_partition.pop(key, None)
            if fetcher is not None:
                fetcher.remove(key)

    def fail(self, follower: Follower, reason: str) -> None:
        """Fetch a partition no more until its next leader epoch, and report it; `reason` is a line, or the end of one."""
        self.stop([follower.partition.key])
        self.failed[follower.partition.key] = None
        if not isinstance(reason, Line):
            text = f"{follower.name} is not copied from broker {follower.partition.leader_id} until its next leader epoch"
            reason = WarningLine(f"{text}: {reason}", **follower_fields(follower), error=reason)
        self.report(reason)

    def close(self) -> None:
        """Stop all fetchers: the logs are about to close."""
        self.stop(list(self._by_partition))
        for fetcher in list(self.fetchers.values()):
            fetcher.drop_if_idle(self.peers.timer.clock_ms)

    def report(self, line: str) -> None:
        """Write a line of the node's log."""
        self.replica_manager.report(line)

    def truncate(self, partition: Partition, log: UnifiedLog, offset: int, reason: str, now_ms: int) -> None:
        """Remove the records of a partition from `offset` on; `reason` completes "because". Raises OSError."""
        if offset < log.log_end_offset:
            text = f"{partition.topic}-{partition.index} is truncated from offset {log.log_end_offset} to {offset}: {reason}"
            if offset < log.high_watermark:
                text += f"; records below its high watermark, {log.high_watermark}, are removed"
            self.report(Line(text, topic=partition.topic, partition=partition.index, offset=offset))
        self.replica_manager.log_manager.truncate(log, offset, now_ms)

    def end_truncations(self, now_ms: int) -> None:
        """Write the checkpoints after truncations."""
        self.replica_manager.log_manager.write_truncated()
        self.replica_manager.take_log_flushes(now_ms)

    def _resize(self, config: ServerConfig) -> None:
        """Distribute the partitions to another number of fetchers."""
        self._count = config.get_int(FETCHERS_KEY)
        followers = [follower for fetcher in self.fetchers.values() for follower in fetcher.followers.values()]
        for follower in followers:
            self.stop([follower.partition.key])
            log = follower.partition.log
            if log is not None:
                self._add(follower.partition, log, self.peers.timer.clock_ms)


def follower_fields(follower: Follower) -> dict[str, object]:
    """Return the fields of a line about a follower."""
    return {"topic": follower.partition.topic, "partition": follower.partition.index, "leader": follower.partition.leader_id}


class ReplicaFetcher:
    """Fetcher `number` of a leader. `requests` and `bytes_read` count its answers."""

    def __init__(self, manager: ReplicaFetcherManager, leader_id: int, number: int) -> None:
        self.leader_id = leader_id
        self.number = number
        self.followers: dict[TopicPartition, Follower] = {}
        self.requests = self.bytes_read = 0
        self._manager = manager
        self._peers = manager.peers
        self._timer = manager.peers.timer
        self._leader = PeerNode(leader_id, NodeRole.BROKER, f"fetcher-{number}")
        self.client_id = f"broker-{manager.replica_manager.node_id}-{self._leader.channel}"
        self._session = FetchSession()
        self._changed: dict[TopicPartition, None] = {}  # since the last request
        self._asked: dict[TopicPartition, None] = {}  # the partitions of the session
        self._offsets_wanted: dict[TopicPartition, int] = {}  # the timestamps that ListOffsets asks for
        self._is_asking = self._is_woken = False
        self._resume_ms = 0  # no request before, after a failure of the connection

    def add(self, follower: Follower, log: UnifiedLog, now_ms: int) -> None:
        """Fetch a partition from the end of its log on."""
        self.followers[follower.partition.key] = follower
        self._change(follower)
        self._flush(follower, log, now_ms)

    def remove(self, key: TopicPartition) -> None:
        """Fetch a partition no more; an answer that has it is not used."""
        del self.followers[key]
        self._offsets_wanted.pop(key, None)
        self._changed[key] = None
        if not self.followers:
            self._timer.schedule(self._timer.clock_ms, self.drop_if_idle)

    def drop_if_idle(self, now_ms: int) -> None:
        """Close the connection if nothing is left to fetch."""
        if not self.followers and self._manager.fetchers.get((self.leader_id, self.number)) is self:
            del self._manager.fetchers[self.leader_id, self.number]
            self._peers.close(self._leader, self._manager.listener)

    def _change(self, follower: Follower) -> None:
        """Have the next request say what is fetched of a partition now."""
        self._changed[follower.partition.key] = None
        if not self._is_asking and not self._is_woken:
            self._is_woken = True
            self._timer.schedule(self._timer.clock_ms, self._ask)

    # -------------------------------------------------------------------------------------------------------- requests

    def _ask(self, now_ms: int) -> None:
        """Send the next request, if none is under way and there is anything to fetch."""
        self._is_woken = False
        if self._is_asking or now_ms < self._resume_ms:
            return
        if self._offsets_wanted:
            self._ask_offsets(now_ms)
        changed, self._changed = self._changed, {}
        for key in changed:
            follower = self.followers.get(key)
            is_fetched = follower is not None and follower.state is FollowerState.FETCHING
            if follower is not None and is_fetched and self._is_to_wait(follower, now_ms):
                self._timer.schedule(now_ms + THROTTLE_CHECK_MS, partial(self._throttled, follower))
                is_fetched = False
            if follower is not None and is_fetched and follower.partition.log is not None:
                self._asked[key] = None
                self._session.put(key, self._wanted(follower, follower.partition.log))
            elif key in self._asked:
                del self._asked[key]
                self._session.remove(key)
        if not self._asked:
            return
        self._is_asking = True
        settings = self._manager.settings
        limits = FetchLimits(
            settings.wait_max_ms,
            settings.min_bytes,
            settings.response_max_bytes,
            replica_id=self._manager.replica_manager.node_id,
            replica_epoch=self._manager.broker_epoch(),
        )
        request = partial(self._session.next_request, limits)
        self._send(FETCH, request, self._answered, now_ms)

    def _is_to_wait(self, follower: Follower, now_ms: int) -> bool:
        """Return whether a partition is throttled now; one that has the leader's records is not, as in Kafka."""
        quota = self._manager.quota
        return follower.lag != 0 and quota.is_throttled(follower.partition.key) and quota.is_exceeded(now_ms)

    def _throttled(self, follower: Follower, now_ms: int) -> None:
        if self.followers.get(follower.partition.key) is follower:
            self._change(follower)

    def _wanted(self, follower: Follower, log: UnifiedLog) -> FetchPartition:
        return FetchPartition(
            follower.partition.topic_id,
            follower.offset,
            self._manager.settings.max_bytes,
            follower.leader_epoch,
            follower.last_fetched_epoch,
            log.log_start_offset,
        )

    def _ask_offsets(self, now_ms: int) -> None:
        """Ask for the ends or starts of the leader's logs."""
        wanted, self._offsets_wanted = self._offsets_wanted, {}
        kind = API_KEYS[LIST_OFFSETS].request
        topics: dict[str, list[Message]] = {}
        for (topic, index), timestamp in wanted.items():
            epoch = self.followers[topic, index].leader_epoch
            one = kind.classes["ListOffsetsPartition"]
            topics.setdefault(topic, []).append(one(partition_index=index, current_leader_epoch=epoch, timestamp=timestamp))
        named = [kind.classes["ListOffsetsTopic"](name=name, partitions=found) for name, found in topics.items()]
        message = kind.new(replica_id=self._manager.replica_manager.node_id, topics=named)
        followers = {key: self.followers[key] for key in wanted}
        self._send(LIST_OFFSETS, message, partial(self._offsets_answered, wanted, followers), now_ms)

    # --------------------------------------------------------------------------------------------------------- answers

    def _answered(self, answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            self._session.failed()
            self._pause(now_ms)
            return
        self.requests += 1
        asked = self._session.partitions
        try:
            found = self._session.answered(answer)
        except FetchAnswerError as error:
            if isinstance(error, FetchSessionError):
                text = f"the fetch session with broker {self.leader_id} is made again: {error}"
                self._manager.report(Line(text, broker=self.leader_id))
                self._is_asking = False
                self._ask(now_ms)
            else:
                text = f"an answer of broker {self.leader_id} to Fetch is not used: {error}"
                self._manager.report(WarningLine(text, broker=self.leader_id, error=error))
                self._pause(now_ms)
            return
        self._manager.scheduler.run(self._take_all(found, asked, now_ms), now_ms, self._taken)

    def _send(self, api_key: int, request: Request, answered: AnswerCallback, now_ms: int) -> None:
        deadline_ms = now_ms + self._manager.settings.socket_timeout_ms
        self._peers.send(self._leader, self._manager.listener, api_key, request, answered, deadline_ms)

    def _pause(self, now_ms: int) -> None:
        """Ask again after replica.fetch.backoff.ms: the connection has failed."""
        self._is_asking = False
        self._resume_ms = now_ms + self._manager.settings.backoff_ms
        self._timer.schedule(self._resume_ms, self._ask)

    def _take_all(
        self, found: list[tuple[TopicPartition, Message]], asked: Mapping[TopicPartition, FetchPartition], now_ms: int
    ) -> Iterator[None]:
        """Take the parts of an answer, in time slices."""
        budget = SliceBudget()
        for key, answer in found:
            follower = self.followers.get(key)
            if follower is not None and _is_current(follower, asked[key]):
                size = len(answer.records or b"")
                self.bytes_read += size
                self._take(follower, answer, now_ms)
                if budget.is_spent(_PARTITION_US + size // _BYTES_A_US):
                    yield
                    now_ms = self._manager.scheduler.now_ms

    def _taken(self, now_ms: int) -> None:
        self._manager.end_truncations(now_ms)
        self._is_asking = False
        self._ask(now_ms)

    def _take(self, follower: Follower, answer: Message, now_ms: int) -> None:
        """Take an answer for a partition; an unexpected error ends its fetches, as in Kafka, and not those of others."""
        log = follower.partition.log
        try:
            if log is None:
                self._manager.fail(follower, "its log directory is offline")
            elif answer.error_code:
                self._refused(follower, answer.error_code, now_ms)
            elif answer.diverging_epoch.epoch >= 0:
                self._diverged(follower, log, answer, now_ms)
            elif answer.records and log.log_end_offset != follower.offset:
                text = f"its log ends at offset {log.log_end_offset}, but records from {follower.offset} on were asked for"
                self._manager.fail(follower, text)
            else:
                self._append(follower, log, answer, now_ms)
        except Exception as error:
            self._failed(follower, error)

    def _failed(self, follower: Follower, error: Exception) -> None:
        if isinstance(error, OSError):
            self._manager.fail(follower, str(error))
            self._manager.replica_manager.handle_log_dir_failure(follower.partition, error)
        else:
            what = f"copying {follower.name} from broker {self.leader_id}"
            self._manager.fail(follower, fault_line(what, error, "; it is not copied until its next leader epoch"))

    def _append(self, follower: Follower, log: UnifiedLog, answer: Message, now_ms: int) -> None:
        """Append records, and follow the leader's high watermark and log start. Raises OSError."""
        manager = self._manager
        if answer.records:
            try:
                info = self._append_records(follower, log, memoryview(answer.records), now_ms)
            except AppendError as error:
                text = f"records of broker {self.leader_id} for {follower.name} from offset {follower.offset} on are not used"
                manager.report(WarningLine(f"{text}, and fetched again: {error}", **follower_fields(follower), error=error))
                self._delay(follower, now_ms)
                return
            manager.metrics.replication_bytes_in += info.size_bytes
            if manager.quota.is_throttled(follower.partition.key):
                manager.quota.record(info.size_bytes, now_ms)
            follower.offset, follower.last_fetched_epoch = log.log_end_offset, info.last_epoch
        follower.failures = 0
        self._follow_offsets(follower, log, answer, now_ms)
        self._flush(follower, log, now_ms)

    def _follow_offsets(self, follower: Follower, log: UnifiedLog, answer: Message, now_ms: int) -> None:
        """Take over the leader's high watermark and log start."""
        before = log.high_watermark, log.log_start_offset
        follower.lag = max(0, answer.high_watermark - follower.offset)
        log.update_high_watermark(answer.high_watermark)
        if answer.log_start_offset > log.log_start_offset:
            log.maybe_increment_log_start_offset(min(answer.log_start_offset, log.high_watermark))
        if answer.records or before != (log.high_watermark, log.log_start_offset):
            self._change(follower)
            self._manager.replica_manager.records_appended(follower.partition.key, now_ms)

    def _append_records(self, follower: Follower, log: UnifiedLog, records: memoryview, now_ms: int) -> LogAppendInfo:
        """Append records. Raises AppendError and OSError."""
        log_manager = self._manager.replica_manager.log_manager
        wall_ms = self._timer.wall.at(now_ms)
        try:
            return log.append_as_follower(records, wall_ms, follower.leader_epoch)
        except UnexpectedAppendOffsetError:
            base_offset = read_header(records).base_offset
            if log.log_end_offset != log.log_start_offset or base_offset >= log.log_end_offset:
                raise
            # The leader's log begins in the middle of a batch, after DeleteRecords.
            log_manager.truncate_fully(log, base_offset, now_ms, log.log_start_offset)
            return log.append_as_follower(records, wall_ms, follower.leader_epoch)

    def _flush(self, follower: Follower, log: UnifiedLog, now_ms: int) -> None:
        """Flush what flush.messages asks for before the next fetch, which acknowledges the records."""
        if log.committable_offset() >= log.log_end_offset:
            return
        self._wait(follower)

        def flushed(error: OSError | None, now_ms: int) -> None:
            if self.followers.get(follower.partition.key) is not follower:
                return
            present = follower.partition.log
            if present is None or (error is not None and present is log):
                self._manager.fail(follower, str(error or "its log directory is offline"))
                return
            self._fetch_again(follower)
            if present is not log:
                self._flush(follower, present, now_ms)  # the replica has moved to another log directory

        self._manager.replica_manager.flush_log(log, flushed, now_ms)

    # ---------------------------------------------------------------------------------------------------------- states

    def _wait(self, follower: Follower) -> None:
        follower.state = FollowerState.WAITING
        self._change(follower)

    def _fetch_again(self, follower: Follower) -> None:
        follower.state = FollowerState.FETCHING
        self._change(follower)

    def _delay(self, follower: Follower, now_ms: int) -> None:
        """Ask for a partition again a little later."""
        follower.state = FollowerState.DELAYED
        self._change(follower)
        backoff_ms = self._manager.settings.backoff_ms
        delay_ms = ExponentialBackoff(min(FIRST_DELAY_MS, backoff_ms), backoff_ms, 0.0).delay_ms(
            follower.failures, self._peers.rng
        )
        follower.failures += 1

        def ended(now_ms: int) -> None:
            if self.followers.get(follower.partition.key) is follower:
                self._fetch_again(follower)

        self._timer.schedule(now_ms + delay_ms, ended)

    def _refused(self, follower: Follower, code: int, now_ms: int) -> None:
        """Take an error of the leader, in the follower's present leader epoch."""
        if code == error_codes.OFFSET_OUT_OF_RANGE:
            self._want_offset(follower, _LATEST)
        elif code == error_codes.FENCED_LEADER_EPOCH:
            text = f"broker {self.leader_id} has a later leader epoch of {follower.name} than {follower.leader_epoch}"
            text = f"{text}: it is copied again with newer metadata"
            self._manager.fail(follower, DebugLine(text, **follower_fields(follower)))
        elif code == error_codes.OFFSET_MOVED_TO_TIERED_STORAGE:
            self._manager.fail(follower, "the leader has moved its records to tiered storage, which kcli does not serve")
        else:
            if code not in _PASSING:
                name = error_codes.NAMES.get(code, str(code))
                text = f"broker {self.leader_id} answers {name} to fetches of {follower.name}: asking again"
                self._manager.report(WarningLine(text, **follower_fields(follower), error=name))
            self._delay(follower, now_ms)

    # ------------------------------------------------------------------------------------------------------ truncation

    def _diverged(self, follower: Follower, log: UnifiedLog, answer: Message, now_ms: int) -> None:
        """Truncate a log whose last records the leader does not have. Raises OSError."""
        epoch, leader_end = answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset
        known_epoch, known_end = log.leader_epochs.end_offset_for(epoch, log.log_end_offset)
        if leader_end < 0:
            offset = follower.offset
        elif known_end < 0:
            offset = leader_end
        elif known_epoch != epoch:
            offset = known_end
        else:
            offset = min(known_end, leader_end)
        reason = f"leader epoch {epoch} ends at {leader_end} in the log of broker {self.leader_id}"
        self._truncate(follower, log, min(offset, log.log_end_offset), reason, now_ms)
        if known_epoch == epoch and answer.high_watermark >= 0:
            # The logs are the same up to here. The leader does not send its high watermark again before it moves.
            self._follow_offsets(follower, log, answer, now_ms)

    def _truncate(self, follower: Follower, log: UnifiedLog, offset: int, reason: str, now_ms: int) -> None:
        self._manager.truncate(follower.partition, log, offset, reason, now_ms)
        self._restart(follower, log)

    def _restart(self, follower: Follower, log: UnifiedLog) -> None:
        follower.restart(log)
        self._fetch_again(follower)

    def _want_offset(self, follower: Follower, timestamp: int) -> None:
        self._offsets_wanted[follower.partition.key] = timestamp
        self._wait(follower)

    def _offsets_answered(
        self, wanted: dict[TopicPartition, int], followers: dict[TopicPartition, Follower], answer: Answer, now_ms: int
    ) -> None:
        """Take the ends or starts of the leader's logs."""
        found: dict[TopicPartition, Message] = {}
        if not isinstance(answer, PeerFailure):
            found = {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}
        for key, timestamp in wanted.items():
            follower, one = followers[key], found.get(key)
            if self.followers.get(key) is not follower:
                continue
            log = follower.partition.log
            if log is None:
                self._manager.fail(follower, "its log directory is offline")
            elif one is None:
                self._delay(follower, now_ms)
            elif one.error_code:
                self._refused(follower, one.error_code, now_ms)
            else:
                try:
                    self._take_offset(follower, log, timestamp, one.offset, now_ms)
                except Exception as error:
                    self._failed(follower, error)
        self._manager.end_truncations(now_ms)

    def _take_offset(self, follower: Follower, log: UnifiedLog, timestamp: int, offset: int, now_ms: int) -> None:
        """Bring a log that is outside of the leader's log into it. Raises OSError."""
        if timestamp == _LATEST and offset >= log.log_end_offset:
            self._want_offset(follower, _EARLIEST)
        elif timestamp == _LATEST:
            self._truncate(follower, log, offset, f"the log of broker {self.leader_id} ends there", now_ms)
        else:
            if offset > log.log_end_offset:
                text = f"{follower.name} begins again at offset {offset}: the log of broker {self.leader_id} begins there"
                self._manager.report(Line(text, **follower_fields(follower), offset=offset))
                self._manager.replica_manager.log_manager.truncate_fully(log, offset, now_ms)
            self._restart(follower, log)


def _is_current(follower: Follower, asked: FetchPartition) -> bool:
    """Return whether an answer is for what is fetched of a partition now."""
    return (
        follower.state is FollowerState.FETCHING
        and follower.offset == asked.fetch_offset
        and follower.leader_epoch == asked.current_leader_epoch
        and follower.partition.topic_id == asked.topic_id
    )
