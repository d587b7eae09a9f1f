"""The share session of one consumer with one broker (KIP-932; Kafka: ShareSessionHandler).

    epoch      the request
    ---------  ----------------------------------------------------------------------------------------------------------------
    0          begins a session with all partitions; it cannot acknowledge
    1, 2, ...  changes the partitions, and may acknowledge
    -1         acknowledges and ends the session: what is still acquired is released

After an error of the session, or without an answer, the next request begins a new one. The broker releases what the old one had
acquired, so acknowledgements that were under way have failed, or their result is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.client.consumer.share_config import ACQUIRE_MODES, ShareConsumerConfig
from kcli.client.consumer.share_records import AcknowledgeType, Run
from kcli.protocol.apis import API_KEYS, SHARE_ACKNOWLEDGE, SHARE_FETCH
from kcli.protocol.message import Message

INITIAL_EPOCH, FINAL_EPOCH = 0, -1
MAX_EPOCH = 2**31 - 1

PartitionId = tuple[bytes, int]
Acknowledgements = Mapping[PartitionId, Iterable[Run]]


class ShareSession:
    """The epoch and the partitions that the broker knows.

    `is_under_way`: a request has no answer yet; `is_saying`: it has acknowledgements.
    """

    def __init__(self) -> None:
        self.epoch = INITIAL_EPOCH
        self.partitions: frozenset[PartitionId] = frozenset()
        self.is_under_way = False
        self.is_saying = False

    @property
    def is_new(self) -> bool:
        """Whether the broker has no session yet."""
        return self.epoch == INITIAL_EPOCH

    def reset(self) -> None:
        """Begin a new session with the next request."""
        self.epoch = INITIAL_EPOCH
        self.partitions = frozenset()

    def succeeded(self) -> None:
        """Take an answer that leaves the session as it is."""
        self.epoch = self.epoch + 1 if self.epoch < MAX_EPOCH else 1

    def fetch_request(
        self, group_id: str, member_id: str, config: ShareConsumerConfig, wanted: frozenset[PartitionId], said: Acknowledgements
    ) -> Message:
        """Return a ShareFetch for the partitions that are wanted now."""
        kind = API_KEYS[SHARE_FETCH].request
        listed = (wanted - self.partitions) | said.keys()
        forgotten = self.partitions - wanted
        self.partitions = wanted
        return kind.new(
            group_id=group_id,
            member_id=member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            max_records=config.max_poll_records,
            batch_size=config.max_poll_records,
            share_acquire_mode=ACQUIRE_MODES[config.share_acquire_mode.lower()],
            topics=_topics(kind.classes["FetchTopic"], kind.classes["FetchPartition"], kind.classes, listed, said),
            forgotten_topics_data=[
                kind.classes["ForgottenTopic"](topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in _by_topic(forgotten).items()
            ],
        )

    def acknowledge_request(self, group_id: str, member_id: str, said: Acknowledgements, is_last: bool) -> Message:
        """Return a ShareAcknowledge."""
        kind = API_KEYS[SHARE_ACKNOWLEDGE].request
        is_renewing = any(run.value == AcknowledgeType.RENEW for runs in said.values() for run in runs)
        return kind.new(
            group_id=group_id,
            member_id=member_id,
            share_session_epoch=FINAL_EPOCH if is_last else self.epoch,
            is_renew_ack=is_renewing,
            topics=_topics(
                kind.classes["AcknowledgeTopic"], kind.classes["AcknowledgePartition"], kind.classes, said.keys(), said
            ),
        )


def _by_topic(partitions: Iterable[PartitionId]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return found


def _topics(
    of_topic: type[Message],
    of_partition: type[Message],
    classes: Mapping[str, type[Message]],
    listed: Iterable[PartitionId],
    said: Acknowledgements,
) -> list[Message]:
    of_batch = classes["AcknowledgementBatch"]

    def batches(partition: PartitionId) -> list[Message]:
        return [
            of_batch(first_offset=run.first, last_offset=run.last, acknowledge_types=[int(run.value)])
            for run in said.get(partition, ())
        ]

    return [
        of_topic(
            topic_id=topic_id,
            partitions=[
                of_partition(partition_index=number, acknowledgement_batches=batches((topic_id, number))) for number in numbers
            ],
        )
        for topic_id, numbers in _by_topic(listed).items()
    ]
