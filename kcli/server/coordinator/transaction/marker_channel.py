"""Sends the markers of ended transactions to the leaders of their partitions (Kafka: TransactionMarkerChannelManager).

    state of a partition                  what is done
    ------------------------------------  --------------------------------------------------------------------------------
    has a leader that can be reached      its marker is sent with those of other transactions in one WriteTxnMarkers, of at
                                          most _MOST_PARTITIONS: neither the leader nor this broker is to be held up for long
    has no such leader                    checked again after RETRY_MS
    is deleted                            needs no marker

    answer for a partition                what is done
    ------------------------------------  --------------------------------------------------------------------------------
    NONE                                  the partition is done
    UNSUPPORTED_FOR_MESSAGE_FORMAT,       the same: it has no batch of the transaction
      UNSUPPORTED_VERSION
    INVALID_PRODUCER_EPOCH,               no more markers are sent, until the next load: another coordinator, or a later
      TRANSACTION_COORDINATOR_FENCED      epoch of the producer, should end the transaction
    any other, or no answer               sent again after RETRY_MS, to the leader of then

When all partitions are done, the transaction is completed. Transactions of a partition of __transaction_state that this broker
no longer leads are dropped; the next leader sends their markers again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from kcli.format.primitives import TopicPartition
from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, WRITE_TXN_MARKERS
from kcli.protocol.message import Message
from kcli.server.coordinator.transaction.transitions import PREPARE_COMMIT
from kcli.server.log_lines import WarningLine
from kcli.server.metadata_cache import MetadataCache
from kcli.state.transaction_state import TransactionMetadata

RETRY_MS = 100
_MOST_PARTITIONS = 100  # of a request
_DONE = frozenset((error_codes.NONE, error_codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, error_codes.UNSUPPORTED_VERSION))
_FENCED = frozenset((error_codes.INVALID_PRODUCER_EPOCH, error_codes.TRANSACTION_COORDINATOR_FENCED))


class EndingTransaction:
    """A transaction of partition `index` of __transaction_state; the partitions in `left` have no marker yet."""

    __slots__ = ("coordinator_epoch", "entry", "index", "left")

    def __init__(self, index: int, coordinator_epoch: int, entry: TransactionMetadata) -> None:
        self.index = index
        self.coordinator_epoch = coordinator_epoch
        self.entry = entry
        self.left = dict.fromkeys(sorted(entry.partitions))  # a set would send them in a different order in each process


# The partitions of each transaction whose markers one request has, or will have.
_Markers = dict[EndingTransaction, list[TopicPartition]]


class TransactionMarkerChannelManager:
    """The markers that one broker has to send. `complete` is called when those of a transaction are all written.

    `listener` is the listener that brokers use for each other, `report` writes a line of the node's log.
    """

    def __init__(
        self,
        metadata: MetadataCache,
        peers: Peers,
        listener: str,
        timer: Timer,
        request_timeout_ms: int,
        complete: Callable[[EndingTransaction], None],
        report: Callable[[str], None],
    ) -> None:
        self._metadata = metadata
        self._peers = peers
        self._listener = listener
        self._timer = timer
        self._request_timeout_ms = request_timeout_ms
        self._complete = complete
        self._report = report
        self._ending: dict[str, EndingTransaction] = {}
        self._queues: dict[int, _Markers] = {}  # by broker

    def add(self, ending: EndingTransaction) -> None:
        """Send the markers of a transaction, and then complete it."""
        self._ending[ending.entry.transactional_id] = ending
        self._enqueue(ending, ending.left)
        self._complete_if_done(ending)

    def add_later(self, ending: EndingTransaction) -> None:
        """Complete a transaction whose markers are written after RETRY_MS: its record could not be appended."""
        self._ending[ending.entry.transactional_id] = ending
        self._timer.schedule(self._timer.clock_ms + RETRY_MS, partial(self._retry, ending, ()))

    def drop_partition(self, index: int) -> None:
        """Drop the transactions of a partition of __transaction_state."""
        self._ending = {name: ending for name, ending in self._ending.items() if ending.index != index}

    def left(self, entry: TransactionMetadata) -> Iterable[TopicPartition] | None:
        """Return the partitions whose markers are not written yet; None if this broker does not end that transaction."""
        ending = self._ending.get(entry.transactional_id)
        return ending.left if ending is not None and ending.entry == entry else None

    def _is_current(self, ending: EndingTransaction) -> bool:
        return self._ending.get(ending.entry.transactional_id) is ending

    def _enqueue(self, ending: EndingTransaction, partitions: Iterable[TopicPartition]) -> None:
        unreachable: list[TopicPartition] = []
        image, now_ms = self._metadata.image, self._timer.clock_ms
        for topic, index in list(partitions):
            found = image.topic(topic)
            registration = None if found is None else found.partitions.get(index)
            if registration is None:
                ending.left.pop((topic, index), None)
                continue
            leader = image.brokers.get(registration.leader)
            if leader is None or leader.is_fenced:
                unreachable.append((topic, index))
                continue
            queue = self._queues.get(registration.leader)
            if queue is None:
                queue = self._queues[registration.leader] = {}
                self._timer.schedule(now_ms, partial(self._send, registration.leader))
            queue.setdefault(ending, []).append((topic, index))
        if unreachable:
            self._timer.schedule(now_ms + RETRY_MS, partial(self._retry, ending, unreachable))

    def _retry(self, ending: EndingTransaction, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        if self._is_current(ending):
            self._enqueue(ending, partitions)
            self._complete_if_done(ending)

    def _send(self, node_id: int, now_ms: int) -> None:
        """Send what is queued for a broker; what one request cannot take is sent after the events at hand."""
        queue, markers, room = self._queues[node_id], _Markers(), _MOST_PARTITIONS
        while queue and room:
            ending = next(iter(queue))
            parts = queue.pop(ending)
            if self._is_current(ending):
                markers[ending] = parts[:room]
                if len(parts) > room:
                    queue[ending] = parts[room:]
                room -= len(markers[ending])
        if queue:
            self._timer.schedule(now_ms, partial(self._send, node_id))
        else:
            del self._queues[node_id]
        if not markers:
            return
        api = API_KEYS[WRITE_TXN_MARKERS]
        message = api.request.new(markers=[_marker(ending, partitions) for ending, partitions in markers.items()])
        deadline_ms = now_ms + self._request_timeout_ms
        node = PeerNode(node_id, NodeRole.BROKER)
        self._peers.send(node, self._listener, WRITE_TXN_MARKERS, message, partial(self._answered, markers), deadline_ms)

    def _answered(self, markers: _Markers, answer: Answer, now_ms: int) -> None:
        codes: dict[tuple[int, str, int], int] = {}
        if not isinstance(answer, PeerFailure):
            codes = {
                (marker.producer_id, topic.name, part.partition_index): part.error_code
                for marker in answer.markers
                for topic in marker.topics
                for part in topic.partitions
            }
        for ending, partitions in markers.items():
            if self._is_current(ending):
                by_partition = {where: codes.get((ending.entry.producer_id, *where)) for where in partitions}
                self._take_codes(ending, by_partition, now_ms)

    def _take_codes(self, ending: EndingTransaction, codes: dict[TopicPartition, int | None], now_ms: int) -> None:
        name = ending.entry.transactional_id
        again: list[TopicPartition] = []
        for where, code in codes.items():
            if code in _DONE:
                ending.left.pop(where, None)
            elif code in _FENCED:
                del self._ending[name]
                error = error_codes.NAMES[code or 0]
                text = (
                    f"{where[0]}-{where[1]} refuses the marker of transactional id {name} ({error}): the transaction stays in "
                    f"{ending.entry.state} until another coordinator ends it, and read_committed consumers wait for that"
                )
                self._report(WarningLine(text, transactional_id=name, topic=where[0], partition=where[1], error=error))
                return
            else:
                again.append(where)
        if again:
            self._timer.schedule(now_ms + RETRY_MS, partial(self._retry, ending, again))
        self._complete_if_done(ending)

    def _complete_if_done(self, ending: EndingTransaction) -> None:
        if not ending.left:
            del self._ending[ending.entry.transactional_id]
            self._complete(ending)


def _marker(ending: EndingTransaction, partitions: Iterable[TopicPartition]) -> Message:
    classes, entry = API_KEYS[WRITE_TXN_MARKERS].request.classes, ending.entry
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    topics = [classes["WritableTxnMarkerTopic"](name=name, partition_indexes=indexes) for name, indexes in by_topic.items()]
    return classes["WritableTxnMarker"](
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        transaction_result=entry.state == PREPARE_COMMIT,
        topics=topics,
        coordinator_epoch=ending.coordinator_epoch,
        transaction_version=entry.client_transaction_version,
    )
