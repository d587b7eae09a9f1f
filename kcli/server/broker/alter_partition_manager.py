"""Proposes to the controller the ISRs of the partitions that this broker leads (KIP-497; Kafka: DefaultAlterPartitionManager).

One AlterPartition is under way at a time, on a connection of its own; those that are proposed until its answer go together in
the next one. A change of a partition whose last one has no answer is not attempted: its leader gets OPERATION_NOT_ATTEMPTED,
and proposes it again later.

    answer                                            what follows
    ------------------------------------------------  ----------------------------------------------------------------------
    none, or an error of the whole request            the same changes are sent again after RETRY_MS, to the controller that
    (such as STALE_BROKER_EPOCH), or a partition      is known by then
    with NOT_CONTROLLER
    the state or the error of a partition             goes to the partition (kcli.server.replication.partition)
    without the partition                             the change is sent again with the next request
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.kafka_uuid import TopicIdPartition, Uuid
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_PARTITION, API_KEYS
from kcli.protocol.message import Message
from kcli.server.broker.broker_lifecycle import BrokerLifecycleManager
from kcli.server.broker.node_to_controller_channel import NodeToControllerChannelManager
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica import IsrAnswer, IsrChange

RETRY_MS = 50


class _Proposal(NamedTuple):
    """A change that is not answered."""

    partition: Partition
    change: IsrChange


class AlterPartitionManager:
    """The changes of ISRs that the controller has not answered."""

    def __init__(
        self, node_id: int, lifecycle: BrokerLifecycleManager, controller: NodeToControllerChannelManager, timer: Timer
    ) -> None:
        self._node_id = node_id
        self._lifecycle = lifecycle
        self._channel = controller.separate("alter-partition")
        self._timer = timer
        self._proposals: dict[TopicIdPartition, _Proposal] = {}
        self._is_busy = False  # a request is under way, or will be sent

    def propose(self, partition: Partition, change: IsrChange) -> None:
        """Propose a change after the events at hand; the partition's `isr_answered` is called with what has become of it."""
        key = partition.topic_id, partition.index
        if key in self._proposals:
            partition.isr_answered(change, error_codes.OPERATION_NOT_ATTEMPTED)
            return
        self._proposals[key] = _Proposal(partition, change)
        if not self._is_busy:
            self._send_after(0, self._timer.clock_ms)

    def leader_changed(self) -> None:
        """Send the new controller what the earlier one, which may be frozen or cut off, has not answered."""
        self._channel.follow_leader()

    def _send_after(self, delay_ms: int, now_ms: int) -> None:
        self._is_busy = True
        self._timer.schedule(now_ms + delay_ms, self._send)

    def _send(self, now_ms: int) -> None:
        sent = dict(self._proposals)

        def answered(response: Message | None, now_ms: int) -> None:
            if response is None or response.error_code or _names_another_controller(response):
                self._send_after(RETRY_MS, now_ms)
                return
            self._is_busy = False
            self._take(sent, response)
            if self._proposals and not self._is_busy:
                self._send_after(0, now_ms)

        self._channel.send(ALTER_PARTITION, self._request(sent), answered)

    def _request(self, sent: dict[TopicIdPartition, _Proposal]) -> Message:
        type_ = API_KEYS[ALTER_PARTITION].request
        topics: dict[Uuid, list[Message]] = {}
        for (topic_id, index), (_, change) in sent.items():
            own_epoch = self._lifecycle.broker_epoch
            members = [
                type_.classes["BrokerState"](broker_id=member, broker_epoch=own_epoch if member == self._node_id else epoch)
                for member, epoch in change.isr
            ]
            topics.setdefault(topic_id, []).append(
                type_.classes["PartitionData"](
                    partition_index=index,
                    leader_epoch=change.leader_epoch,
                    new_isr_with_epochs=members,
                    partition_epoch=change.partition_epoch,
                )
            )
        found = [
            type_.classes["TopicData"](topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()
        ]
        return type_.new(broker_id=self._node_id, broker_epoch=self._lifecycle.broker_epoch, topics=found)

    def _take(self, sent: dict[TopicIdPartition, _Proposal], response: Message) -> None:
        for topic in response.topics:
            for one in topic.partitions:
                proposal = sent.get((topic.topic_id, one.partition_index))
                if proposal is not None:
                    # Removed first: the partition may propose another change at once.
                    del self._proposals[topic.topic_id, one.partition_index]
                    answer = one.error_code or IsrAnswer(one.leader_epoch, one.partition_epoch, one.isr)
                    proposal.partition.isr_answered(proposal.change, answer)


def _names_another_controller(response: Message) -> bool:
    return any(one.error_code == error_codes.NOT_CONTROLLER for topic in response.topics for one in topic.partitions)
