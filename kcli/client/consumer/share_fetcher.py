"""Fetches and acknowledgements of a share consumer: one request at a time to each broker (Kafka: ShareConsumeRequestManager).

    to a broker                                          is sent
    ---------------------------------------------------  ---------------------------------------------------------------------
    ShareFetch, with what is to be acknowledged          while a poll waits for records, and none is here
    ShareAcknowledge                                     for a commit; for renewals, and for partitions that are not assigned
                                                         any more, as they cannot be part of a fetch
    ShareAcknowledge with epoch -1                       when the consumer is closed

    an answer                                            then
    ---------------------------------------------------  ---------------------------------------------------------------------
    SHARE_SESSION_NOT_FOUND, _LIMIT_REACHED,             the next request begins a new session; acknowledgements under way
    INVALID_SHARE_SESSION_EPOCH, no answer               have failed
    any other error of the whole answer                  the request is sent again after the backoff; the application gets an
                                                         error that stays
    an error of a partition                              the metadata are asked for; the partition is fetched again after the
                                                         backoff. The new leader may be named in the answer (KIP-951). The
                                                         application gets errors that stay, and CORRUPT_MESSAGE

Records are acquired for a time: they are fetched only when they are wanted. An acknowledgement goes to the broker that the
record came from. Each one has one result, which `resulted` gets. `session_lost` gets the broker whose session is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from kcli.client.cluster import NO_LEADER
from kcli.client.consumer.share_config import ShareConsumerConfig
from kcli.client.consumer.share_membership import ShareMembership
from kcli.client.consumer.share_records import AcknowledgeType, Run, ShareFetched, ShareRecord, runs_of
from kcli.client.consumer.share_session import PartitionId, ShareSession
from kcli.client.errors import AuthenticationError, ClientError, FetchedRecordError, KafkaError
from kcli.client.metadata import LeaderIdAndEpoch, Node
from kcli.client.network_client import NetworkClient, failure_error
from kcli.client.serializers import Deserializer
from kcli.format.primitives import TopicPartition
from kcli.format.record_scan import RecordColumns
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from kcli.protocol.message import Message

SESSION_ERRORS = frozenset(
    (error_codes.SHARE_SESSION_NOT_FOUND, error_codes.INVALID_SHARE_SESSION_EPOCH, error_codes.SHARE_SESSION_LIMIT_REACHED)
)
COLUMN_ROWS = 1024
# Partition, its acknowledgements by offset, and the error of all of them.
Resulted = Callable[[PartitionId, TopicPartition, dict[int, int], ClientError | None, int], None]
Flushed = Callable[[dict[TopicPartition, ClientError | None], int], None]


class _Said:
    """Acknowledgements of one partition."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.kinds: dict[int, int] = {}
        self.gaps: list[Run] = []

    def runs(self) -> list[Run]:
        """Return them for a request."""
        return runs_of(self.kinds, self.gaps)


Saying = dict[PartitionId, _Said]


class _Flush:
    """A commit: it is done when all acknowledgements that were there at its start have results."""

    def __init__(self, done: Flushed) -> None:
        self.done = done
        self.waits_for: set[int] = set()
        self.results: dict[TopicPartition, ClientError | None] = {}


class ShareFetcher:
    """The requests of one share consumer; `is_wanted` says that a poll waits for records."""

    def __init__(
        self,
        network: NetworkClient,
        config: ShareConsumerConfig,
        membership: ShareMembership,
        errors: deque[ClientError],
        resulted: Resulted,
        session_lost: Callable[[int], None],
    ) -> None:
        self.is_wanted = False
        self.lock_timeout_ms: int | None = None
        self.buffer: deque[ShareFetched] = deque()
        self._network = network
        self._config = config
        self._membership = membership
        self._errors = errors
        self._resulted = resulted
        self._session_lost = session_lost
        self._columns = RecordColumns(COLUMN_ROWS)
        self._sessions: dict[int, ShareSession] = {}
        self._pending: dict[int, Saying] = {}  # by broker
        self._flushes: list[_Flush] = []
        self._retry_ms: dict[int | PartitionId, int] = {}  # of a broker or a partition after an error
        self._is_closing = False
        self._unread: FetchedRecordError | None = None  # to be raised after the records before it were returned

    # ---------------------------------------------------------------------------------------------------------- calls

    def acknowledge(self, node_id: int, partition_id: PartitionId, partition: TopicPartition, kinds: Mapping[int, int]) -> None:
        """Take acknowledgements by offset; the next request to the broker has them."""
        self._said(node_id, partition_id, partition).kinds |= kinds

    def _said(self, node_id: int, partition_id: PartitionId, partition: TopicPartition) -> _Said:
        return self._pending.setdefault(node_id, {}).setdefault(partition_id, _Said(partition))

    def _said_of(self, fetched: ShareFetched) -> _Said:
        return self._said(fetched.node_id, (fetched.topic_id, fetched.partition[1]), fetched.partition)

    def unsaid_partitions(self) -> set[TopicPartition]:
        """Return the partitions with acknowledgements that are not sent yet."""
        return {one.partition for saying in self._pending.values() for one in saying.values()}

    def flush(self, done: Flushed, now_ms: int) -> None:
        """Send all acknowledgements, and call `done` when all have results."""
        flush = _Flush(done)
        flush.waits_for = {node_id for node_id, saying in self._pending.items() if saying}
        flush.waits_for |= {node_id for node_id, session in self._sessions.items() if session.is_saying}
        if not flush.waits_for:
            done({}, now_ms)
            return
        self._flushes.append(flush)
        self.poll(now_ms)

    def take(
        self, most: int, now_ms: int, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
    ) -> list[tuple[ShareFetched, ShareRecord]]:
        """Return up to `most` records. Raises FetchedRecordError if the next one cannot be read.

        Records whose lock has expired in the meantime are dropped: the broker gives them to another member, or again here.
        """
        taken: list[tuple[ShareFetched, ShareRecord]] = []
        self.buffer = deque(one for one in self.buffer if one.expires_ms > now_ms)
        while self.buffer and len(taken) < most and self._unread is None:
            fetched = self.buffer[0]
            try:
                taken += ((fetched, one) for one in fetched.take(most - len(taken), key_deserializer, value_deserializer))
            except FetchedRecordError as error:
                self._unread = error
            except BaseException:
                for one, record in taken:
                    self._said_of(one).kinds[record.offset] = AcknowledgeType.RELEASE
                raise
            finally:
                said = self._said_of(fetched)
                said.gaps += fetched.take_gaps()
                said.kinds |= fetched.take_refused()
            if fetched.is_drained:
                self.buffer.popleft()
        if self._unread is not None and not taken:
            unread, self._unread = self._unread, None
            raise unread
        return taken

    def keep_unread(self, error: FetchedRecordError) -> None:
        """Keep the error of a record for the next call of `take`."""
        self._unread = error

    def close(self, done: Flushed, now_ms: int) -> None:
        """Send the last acknowledgements and end the sessions; what is still acquired is released."""
        self._is_closing = True
        self.is_wanted = False
        self.buffer.clear()
        flush = _Flush(done)
        flush.waits_for = {node_id for node_id, one in self._sessions.items() if not one.is_new or one.is_under_way}
        if not flush.waits_for:
            done({}, now_ms)
            return
        self._flushes.append(flush)
        self.poll(now_ms)

    # -------------------------------------------------------------------------------------------------------- requests

    def poll(self, now_ms: int) -> None:
        """Send what is due."""
        wanted = self._wanted_by_node(now_ms) if self.is_wanted and not self.buffer else {}
        for node_id in sorted({*self._sessions, *self._pending, *wanted}):
            session = self._sessions.setdefault(node_id, ShareSession())
            if not session.is_under_way:
                self._advance(node_id, session, wanted.get(node_id, frozenset()), now_ms)

    def _wanted_by_node(self, now_ms: int) -> dict[int, frozenset[PartitionId]]:
        by_node: dict[int, set[PartitionId]] = {}
        cluster = self._network.metadata.cluster
        for topic_id, numbers in self._membership.assigned_partitions.items():
            for number in numbers:
                leader = cluster.leader_for(self._membership.name_of(topic_id), number)
                if leader == NO_LEADER:
                    if not self._network.is_update_wanted:
                        self._network.request_update()
                elif self._retry_ms.get((topic_id, number), 0) <= now_ms and self._retry_ms.get(leader, 0) <= now_ms:
                    by_node.setdefault(leader, set()).add((topic_id, number))
        return {node_id: frozenset(found) for node_id, found in by_node.items()}

    def _advance(self, node_id: int, session: ShareSession, wanted: frozenset[PartitionId], now_ms: int) -> None:
        """Send the next request to a broker, if one is due."""
        said = {one: found for one, found in self._pending.get(node_id, {}).items() if found.kinds or found.gaps}
        if said and session.is_new:
            self._pending.pop(node_id)
            error = KafkaError(error_codes.SHARE_SESSION_NOT_FOUND, "the session in which the records were acquired is over")
            self._settle(said, lambda partition_id: error, now_ms)
            said = {}
        if self._is_closing:
            if not session.is_new:
                self._acknowledge(node_id, session, said, now_ms, is_last=True)
            else:
                self._answered_node(node_id, now_ms)
            return
        is_renewing = any(kind == AcknowledgeType.RENEW for one in said.values() for kind in one.kinds.values())
        is_flushing = any(node_id in flush.waits_for for flush in self._flushes)
        if said and (is_renewing or is_flushing or (wanted and not said.keys() <= wanted)):
            self._acknowledge(node_id, session, said, now_ms)
        elif wanted:
            self._fetch(node_id, session, wanted, said)
        elif is_flushing:
            self._answered_node(node_id, now_ms)

    def _fetch(self, node_id: int, session: ShareSession, wanted: frozenset[PartitionId], said: Saying) -> None:
        self._pending.pop(node_id, None)
        session.is_under_way, session.is_saying = True, bool(said)
        runs = {partition_id: found.runs() for partition_id, found in said.items()}
        membership = self._membership
        request = session.fetch_request(membership.group_id, membership.member_id, self._config, wanted, runs)
        answered = partial(self._fetched, node_id, session, wanted, said)
        timeout_ms = self._network.config.request_timeout_ms + self._config.fetch_max_wait_ms
        self._network.send(node_id, SHARE_FETCH, request, answered, timeout_ms)

    def _acknowledge(self, node_id: int, session: ShareSession, said: Saying, now_ms: int, is_last: bool = False) -> None:
        self._pending.pop(node_id, None)
        session.is_under_way, session.is_saying = True, bool(said)
        runs = {partition_id: found.runs() for partition_id, found in said.items()}
        membership = self._membership
        request = session.acknowledge_request(membership.group_id, membership.member_id, runs, is_last)
        self._network.send(node_id, SHARE_ACKNOWLEDGE, request, partial(self._acknowledged, node_id, session, said, is_last))

    # --------------------------------------------------------------------------------------------------------- answers

    def _acknowledged(
        self, node_id: int, session: ShareSession, said: Saying, is_last: bool, answer: Answer, now_ms: int
    ) -> None:
        found = self._checked(node_id, session, said, answer, SHARE_ACKNOWLEDGE, now_ms)
        if found is not None:
            parts = {(topic.topic_id, part.partition_index): part for topic in found.responses for part in topic.partitions}
            self._take_leaders(found, parts, now_ms)
            errors = {one: _error(part.error_code, part.error_message) for one, part in parts.items()}
            self._settle(said, partial(_result_of, errors), now_ms)
        if is_last:
            session.reset()
        self._answered_node(node_id, now_ms)

    def _fetched(
        self,
        node_id: int,
        session: ShareSession,
        wanted: frozenset[PartitionId],
        said: Saying,
        answer: Answer,
        now_ms: int,
    ) -> None:
        found = self._checked(node_id, session, said, answer, SHARE_FETCH, now_ms)
        if found is not None:
            self.lock_timeout_ms = found.acquisition_lock_timeout_ms or self.lock_timeout_ms
            parts = {(topic.topic_id, part.partition_index): part for topic in found.responses for part in topic.partitions}
            self._take_leaders(found, parts, now_ms)
            errors = {one: _error(part.acknowledge_error_code, part.acknowledge_error_message) for one, part in parts.items()}
            self._settle(said, partial(_result_of, errors), now_ms)
            for partition_id, part in parts.items():
                if part.error_code:
                    self._partition_failed(partition_id, part, now_ms)
                elif part.acquired_records and partition_id in wanted:
                    self._take_records(node_id, partition_id, part, now_ms)
        self._answered_node(node_id, now_ms)

    def _checked(
        self, node_id: int, session: ShareSession, said: Saying, answer: Answer, api_key: int, now_ms: int
    ) -> Message | None:
        """Return an answer without an error of the whole; otherwise all acknowledgements have the error."""
        session.is_under_way = session.is_saying = False
        if isinstance(answer, PeerFailure):
            error: ClientError = failure_error(answer, api_key)
            self._lose_session(node_id, session)
        elif answer.error_code:
            error = KafkaError(answer.error_code, answer.error_message or "the share session")
            if answer.error_code in SESSION_ERRORS:
                self._lose_session(node_id, session)
            else:
                session.succeeded()
        else:
            session.succeeded()
            return answer
        self._settle(said, lambda partition_id: error, now_ms)
        if not error.is_retriable and not isinstance(error, AuthenticationError):  # that is reported already
            self._errors.append(error)
        self._wait(node_id, now_ms)
        self._network.request_update()
        return None

    def _lose_session(self, node_id: int, session: ShareSession) -> None:
        """Begin a new session; the broker has released what was acquired in the old one."""
        session.reset()
        self._session_lost(node_id)
        self.buffer = deque(one for one in self.buffer if one.node_id != node_id)

    def _wait(self, what: int | PartitionId, now_ms: int) -> None:
        at_ms = now_ms + self._network.config.retry_backoff_ms
        self._retry_ms[what] = at_ms
        self._network.timer.schedule(at_ms, self.poll)

    def _take_leaders(self, answer: Message, parts: Mapping[PartitionId, Message], now_ms: int) -> None:
        names = self._membership.topics.names
        leaders = {
            (names[topic_id], number): LeaderIdAndEpoch(part.current_leader.leader_id, part.current_leader.leader_epoch)
            for (topic_id, number), part in parts.items()
            if topic_id in names and part.current_leader.leader_id != NO_LEADER
        }
        if leaders and answer.node_endpoints:
            nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in answer.node_endpoints]
            self._network.metadata.update_leaders(leaders, nodes, now_ms)

    def _partition_failed(self, partition_id: PartitionId, part: Message, now_ms: int) -> None:
        error = KafkaError(part.error_code, part.error_message or "records of a share group cannot be fetched")
        self._wait(partition_id, now_ms)
        self._network.request_update()
        is_hidden = error.is_retriable or error.code == error_codes.UNKNOWN_SERVER_ERROR
        if not is_hidden or error.code == error_codes.CORRUPT_MESSAGE:  # as Kafka; a damaged log would look like an empty one
            self._errors.append(error)

    def _take_records(self, node_id: int, partition_id: PartitionId, part: Message, now_ms: int) -> None:
        topic_id, number = partition_id
        partition = (self._membership.topics.names.get(topic_id, ""), number)
        acquired = [Run(run.first_offset, run.last_offset, run.delivery_count) for run in part.acquired_records]
        records = memoryview(part.records or b"")
        fetched = ShareFetched(partition, topic_id, node_id, records, acquired, self._columns, self._config.check_crcs)
        if self.lock_timeout_ms:
            fetched.expires_ms = now_ms + self.lock_timeout_ms
        self.buffer.append(fetched)

    # --------------------------------------------------------------------------------------------------------- results

    def _settle(self, said: Saying, error_of: Callable[[PartitionId], ClientError | None], now_ms: int) -> None:
        for partition_id, found in said.items():
            error = error_of(partition_id)
            for flush in self._flushes:
                if error is not None or found.partition not in flush.results:
                    flush.results[found.partition] = error
            if found.kinds:
                self._resulted(partition_id, found.partition, found.kinds, error, now_ms)

    def _answered_node(self, node_id: int, now_ms: int) -> None:
        """End the commits that waited for this broker, unless it has to be sent more for them."""
        session = self._sessions.get(node_id)
        if self._pending.get(node_id) or (self._is_closing and session is not None and not session.is_new):
            return
        for flush in self._flushes.copy():
            flush.waits_for.discard(node_id)
            if not flush.waits_for:
                self._flushes.remove(flush)
                flush.done(flush.results, now_ms)


def _error(code: int, message: str | None) -> ClientError | None:
    return KafkaError(code, message or "the acknowledgement") if code else None


def _result_of(errors: Mapping[PartitionId, ClientError | None], partition_id: PartitionId) -> ClientError | None:
    if partition_id not in errors:
        return ClientError("the broker did not answer the acknowledgement of this partition")
    return errors[partition_id]
