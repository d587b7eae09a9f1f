"""One member of a share group with kcli's client, as a process: `python -m tests.oracle.clients.kcli_share_member ARGUMENTS`.

Arguments, events and the meaning of values are those of LiveShare.java.
"""

from __future__ import annotations

import sys
import time

from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError
from kcli.client.shell.share_consumer import ShareConsumer
from kcli.format.primitives import TopicPartition
from tests.oracle.clients.member_lines import note, run_until_a_line, stopped

POLL_S = 0.1


class Member:
    """The consumer, and what it has acknowledged last for each record."""

    def __init__(self, bootstrap: str, group: str, topic: str, mode: str, acquire_mode: str, lock_ms: str) -> None:
        self._is_explicit = mode == "explicit"
        self._lock_s = int(lock_ms) / 1000
        self._pending: dict[tuple[int, int], int] = {}
        self._renewed: set[tuple[int, int]] = set()
        self._consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": mode,
                "share.acquire.mode": acquire_mode,
                "max.poll.records": 20,
            }
        )
        self._consumer.set_acknowledgement_commit_callback(self._acknowledged)
        self._consumer.subscribe([topic])

    def run(self) -> None:
        read: list[ShareRecord] = []
        while not stopped.is_set():
            if not self._is_explicit:
                self._begin(read, AcknowledgeType.ACCEPT)
            try:
                read = self._consumer.poll(POLL_S)
                for record in read:
                    note("got", record.partition, record.offset, record.delivery_count)
                if self._is_explicit and read:
                    self._acknowledge(read)
            except ClientError as error:
                note("error", repr(error))
                read = []
        if not self._is_explicit:
            self._begin(read, AcknowledgeType.ACCEPT)
        self._consumer.close()

    def _acknowledge(self, read: list[ShareRecord]) -> None:
        held, renewed = [], []
        for record in read:
            is_first = record.delivery_count == 1
            if record.value == b"hold" and is_first:
                held.append(record)
            elif record.value == b"renew":
                renewed.append(record)
            elif record.value == b"poison" or (record.value == b"release" and is_first):
                self._mark(record, AcknowledgeType.RELEASE)
            else:
                self._mark(record, AcknowledgeType.REJECT if record.value == b"reject" else AcknowledgeType.ACCEPT)
        self._consumer.commit_sync(10.0)
        if renewed:
            self._sleep(0.6)
            for record in renewed:
                place = record.partition, record.offset
                is_renewed = place in self._renewed
                self._renewed ^= {place}
                self._mark(record, AcknowledgeType.ACCEPT if is_renewed else AcknowledgeType.RENEW)
            self._consumer.commit_sync(10.0)
        if held:
            self._sleep(1.3)
            for record in held:
                self._mark(record, AcknowledgeType.ACCEPT)
            self._consumer.commit_sync(10.0)

    def _sleep(self, locks: float) -> None:
        time.sleep(self._lock_s * locks)
        note("slept")

    def _mark(self, record: ShareRecord, kind: AcknowledgeType) -> None:
        self._begin([record], kind)
        self._consumer.acknowledge(record, kind)

    def _begin(self, records: list[ShareRecord], kind: AcknowledgeType) -> None:
        for record in records:
            self._pending[record.partition, record.offset] = int(kind)
            note("acking", record.partition, record.offset, int(kind))

    def _acknowledged(self, partition: TopicPartition, offsets: frozenset[int], error: ClientError | None) -> None:
        if error is not None:
            note("error", repr(error))
        for offset in sorted(offsets):
            kind = self._pending.get((partition[1], offset), 0)
            note("failed" if error is not None else "acked", partition[1], offset, kind)


def main() -> None:
    run_until_a_line(Member(*sys.argv[1:]).run)


if __name__ == "__main__":
    main()
