"""Requests of share groups for the tests of a whole node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.apis import API_KEYS, SHARE_ACKNOWLEDGE, SHARE_FETCH
from kcli.protocol.message import Message
from kcli.server.events import Connection
from tests.server.whole_node import Pending, WholeNode

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4

# (first offset, last offset, types) of one partition.
Acks = Sequence[tuple[int, int, Sequence[int]]]
Target = tuple[Uuid, int]


def _topics(api: int, named: Mapping[Target, Acks]) -> list[Message]:
    classes = API_KEYS[api].request.classes
    topic_struct, struct = (
        ("FetchTopic", "FetchPartition") if api == SHARE_FETCH else ("AcknowledgeTopic", "AcknowledgePartition")
    )
    make = classes["AcknowledgementBatch"]
    topics: dict[Uuid, Message] = {}
    for (topic_id, index), acks in named.items():
        batches = [make(first_offset=first, last_offset=last, acknowledge_types=list(types)) for first, last, types in acks]
        if topic_id not in topics:
            topics[topic_id] = classes[topic_struct](topic_id=topic_id, partitions=[])
        topics[topic_id].partitions.append(classes[struct](partition_index=index, acknowledgement_batches=batches))
    return list(topics.values())


def share_fetch_request(named: Mapping[Target, Acks], epoch: int, forgotten: Iterable[Target] = (), **fields: Any) -> Message:
    """A ShareFetchRequest."""
    make = API_KEYS[SHARE_FETCH].request.classes["ForgottenTopic"]
    given: dict[str, Any] = {
        "group_id": "group",
        "member_id": "member",
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": 500,
        "batch_size": 500,
    }
    return API_KEYS[SHARE_FETCH].request.new(
        **(given | fields),
        share_session_epoch=epoch,
        topics=_topics(SHARE_FETCH, named),
        forgotten_topics_data=[make(topic_id=topic_id, partitions=[index]) for topic_id, index in forgotten],
    )


def share_acknowledge_request(named: Mapping[Target, Acks], epoch: int, **fields: Any) -> Message:
    """A ShareAcknowledgeRequest."""
    given: dict[str, Any] = {"group_id": "group", "member_id": "member"}
    return API_KEYS[SHARE_ACKNOWLEDGE].request.new(
        **(given | fields), share_session_epoch=epoch, topics=_topics(SHARE_ACKNOWLEDGE, named)
    )


class ShareMember:
    """A member of a share group with its session on one connection; partitions are named by topic id and index."""

    def __init__(self, node: WholeNode, member_id: str = "member", group_id: str = "group", version: int = 2) -> None:
        self.node = node
        self.member_id = member_id
        self.group_id = group_id
        self.version = version
        self.connection: Connection = node.connection()
        self.epoch = 0

    def _ids(self) -> dict[str, Any]:
        return {"member_id": self.member_id, "group_id": self.group_id}

    def begin_fetch(self, named: Iterable[Target] | Mapping[Target, Acks] = (), **fields: Any) -> Pending:
        """Send a ShareFetch of the session's next epoch."""
        acks = named if isinstance(named, Mapping) else dict.fromkeys(named, ())
        epoch = fields.pop("epoch", self.epoch)
        self.epoch = epoch + 1 if epoch >= 0 else 0
        request = share_fetch_request(acks, epoch, **(self._ids() | fields))
        return self.node.send(SHARE_FETCH, self.version, request, self.connection)

    def fetch(self, named: Iterable[Target] | Mapping[Target, Acks] = (), **fields: Any) -> Message:
        """Fetch, and wait for the answer."""
        pending = self.begin_fetch(named, **fields)
        self.node.until(lambda: pending.answer is not None)
        return pending.result()

    def acknowledge(self, named: Mapping[Target, Acks], **fields: Any) -> Message:
        """Acknowledge, and wait for the answer."""
        epoch = fields.pop("epoch", self.epoch)
        self.epoch = epoch + 1 if epoch >= 0 else 0
        request = share_acknowledge_request(named, epoch, **(self._ids() | fields))
        pending = self.node.send(SHARE_ACKNOWLEDGE, self.version, request, self.connection)
        self.node.until(lambda: pending.answer is not None)
        return pending.result()


def acquired_of(answer: Message) -> dict[int, list[tuple[int, int, int]]]:
    """The acquired ranges of a ShareFetchResponse by partition index."""
    return {
        part.partition_index: [
            (range_.first_offset, range_.last_offset, range_.delivery_count) for range_ in part.acquired_records
        ]
        for topic in answer.responses
        for part in topic.partitions
    }


def codes_of(answer: Message) -> dict[int, int]:
    """The error codes by partition index."""
    return {part.partition_index: part.error_code for topic in answer.responses for part in topic.partitions}
