"""Reports to the controller which log directory a replica is in (KIP-858; Kafka: AssignmentsManager).

A broker with one log directory has nothing to report: the controller knows it from the registration. With several, the broker
chooses the directory of a new replica, and a replica can move. The controller must know the directory, because it elects other
leaders when a directory goes offline. Changes are sent together, after ASSIGN_AFTER_MS, and repeated until the controller has
accepted them.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import TopicIdPartition, Uuid
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol.apis import API_KEYS, ASSIGN_REPLICAS_TO_DIRS
from kcli.protocol.message import Message
from kcli.server.broker.broker_lifecycle import BrokerLifecycleManager
from kcli.server.broker.node_to_controller_channel import NodeToControllerChannelManager

ASSIGN_AFTER_MS = 10
RETRY_MS = 200
# The largest number of replicas in one request.
MAX_REPLICAS = 2000


class AssignmentsManager:
    """The assignments that the broker `node_id` has not yet reported."""

    def __init__(
        self, node_id: int, lifecycle: BrokerLifecycleManager, controller: NodeToControllerChannelManager, timer: Timer
    ) -> None:
        self._node_id = node_id
        self._lifecycle = lifecycle
        self._controller = controller
        self._timer = timer
        self._pending: dict[TopicIdPartition, Uuid] = {}
        self._task: TimerTask | None = None
        self._is_asking = False

    def assign(self, topic_id: Uuid, partition: int, directory_id: Uuid, now_ms: int) -> None:
        """Report that a replica is in another directory than the controller has recorded."""
        self._pending[topic_id, partition] = directory_id
        self._send_later(now_ms + ASSIGN_AFTER_MS)

    def _send_later(self, at_ms: int) -> None:
        if self._task is None and not self._is_asking:
            self._task = self._timer.schedule(at_ms, self._send)

    def _send(self, now_ms: int) -> None:
        self._task = None
        if not self._pending:
            return
        if self._lifecycle.broker_epoch < 0:
            self._send_later(now_ms + RETRY_MS)
            return
        sent = dict(list(self._pending.items())[:MAX_REPLICAS])
        self._is_asking = True

        def answered(response: Message | None, now_ms: int) -> None:
            self._is_asking = False
            if response is not None and response.error_code == 0:
                for replica, directory_id in sent.items():
                    if self._pending.get(replica) == directory_id:
                        del self._pending[replica]
            if self._pending:
                self._send_later(now_ms + RETRY_MS)

        self._controller.send(ASSIGN_REPLICAS_TO_DIRS, self._request(sent), answered)

    def _request(self, sent: dict[TopicIdPartition, Uuid]) -> Message:
        type_ = API_KEYS[ASSIGN_REPLICAS_TO_DIRS].request
        by_directory: dict[Uuid, dict[Uuid, list[int]]] = {}
        for (topic_id, partition), directory_id in sent.items():
            by_directory.setdefault(directory_id, {}).setdefault(topic_id, []).append(partition)
        directories = []
        for directory_id, topics in by_directory.items():
            named = [
                type_.classes["TopicData"](
                    topic_id=topic_id,
                    partitions=[type_.classes["PartitionData"](partition_index=partition) for partition in partitions],
                )
                for topic_id, partitions in topics.items()
            ]
            directories.append(type_.classes["DirectoryData"](id=directory_id, topics=named))
        return type_.new(broker_id=self._node_id, broker_epoch=self._lifecycle.broker_epoch, directories=directories)
