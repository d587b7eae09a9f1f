"""One member of a share group with librdkafka, as a process: `python -m tests.oracle.clients.share_member ARGUMENTS`.

Arguments, events and the meaning of values are those of LiveShare.java; librdkafka has no acquire mode, and no renewal: it
accepts what is to be renewed.
"""

from __future__ import annotations

import sys
import time

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

from tests.oracle.clients.member_lines import note, run_until_a_line, stopped

POLL_S = 0.1


class Member:
    """The consumer, and what it has acknowledged last for each record."""

    def __init__(self, bootstrap: str, group: str, topic: str, mode: str, acquire_mode: str, lock_ms: str) -> None:
        self._is_explicit = mode == "explicit"
        self._lock_s = int(lock_ms) / 1000
        self._pending: dict[tuple[int, int], int] = {}
        self._consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": mode})
        self._consumer.set_acknowledgement_commit_callback(self._acknowledged)
        self._consumer.subscribe([topic])

    def run(self) -> None:
        read: list[Message] = []
        while not stopped.is_set():
            try:
                if not self._is_explicit:
                    self._begin(read, AcknowledgeType.ACCEPT)
                found = list(self._consumer.poll(POLL_S))
                read = [message for message in found if message.error() is None]
                for message in found:
                    if message.error() is not None:
                        note("error", message.error())
                for message in read:
                    note("got", message.partition(), message.offset(), message.delivery_count())
                if self._is_explicit and read:
                    self._acknowledge(read)
            except KafkaException as error:
                note("error", repr(error))
                read = []
        if not self._is_explicit:
            self._begin(read, AcknowledgeType.ACCEPT)
        self._consumer.close()

    def _acknowledge(self, read: list[Message]) -> None:
        held = []
        for message in read:
            value, is_first = message.value(), message.delivery_count() == 1
            if value == b"hold" and is_first:
                held.append(message)
            elif value == b"poison" or (value == b"release" and is_first):
                self._mark(message, AcknowledgeType.RELEASE)
            else:
                self._mark(message, AcknowledgeType.REJECT if value == b"reject" else AcknowledgeType.ACCEPT)
        self._consumer.commit_sync(10.0)
        if held:
            time.sleep(self._lock_s * 1.3)
            note("slept")
            for message in held:
                self._mark(message, AcknowledgeType.ACCEPT)
            self._consumer.commit_sync(10.0)

    def _mark(self, message: Message, kind: AcknowledgeType) -> None:
        self._begin([message], kind)
        self._consumer.acknowledge(message, kind)

    def _begin(self, messages: list[Message], kind: AcknowledgeType) -> None:
        for message in messages:
            partition, offset = message.partition(), message.offset()
            self._pending[partition, offset] = int(kind)
            note("acking", partition, offset, int(kind))

    def _acknowledged(self, offsets: dict[TopicPartition, set[int]], error: KafkaException | None) -> None:
        if error is not None:
            note("error", repr(error))
        for partition, found in offsets.items():
            for offset in found:
                kind = self._pending.get((partition.partition, offset), 0)
                note("failed" if error is not None else "acked", partition.partition, offset, kind)


def main() -> None:
    run_until_a_line(Member(*sys.argv[1:]).run)


if __name__ == "__main__":
    main()
