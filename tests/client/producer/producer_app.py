"""A producer's core as a client of a whole node in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcli.client.errors import ClientError
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_config import ProducerConfig
from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, OFFSET_FETCH
from tests.client.clients_of_node import ClientsOfNode, client_of

CONTROL = 0x20  # attribute of a batch


class ProducerApp:
    """A producer of a test; `results` are offsets or errors of its records by their values."""

    def __init__(self, node: ClientsOfNode, name: str, **settings: Any) -> None:
        self.node = node
        self.client, own = client_of(node, name, settings)
        self.lines: list[str] = []
        self.core = ProducerCore(self.client.network, ProducerConfig(**own), self.lines.append)
        self.client.poll = self.core.poll
        self.results: dict[bytes, Any] = {}
        self.waiting = 0  # records that are in no batch yet

    def send(self, topic: str, value: bytes, partition: int = 0, *, waits: bool = False) -> None:
        def delivered(found: Any, error: Any) -> None:
            assert value not in self.results
            self.results[value] = error or found.offset

        def appended(result: ClientError | None, now_ms: int) -> None:
            self.waiting -= 1
            if result is not None:
                self.results[value] = result

        self.waiting += 1
        record = Record(topic, value, partition=partition, on_delivery=delivered)
        self.core.send(record, appended, self.node.now_ms)
        self.node.pump()
        if waits:
            self.node.until(lambda: not self.waiting, 100_000)

    def flush(self) -> None:
        """Wait until all records have a result."""
        self.node.until(lambda: not self.waiting, 100_000)
        assert self.call(self.core.flush) is None

    def call(self, start: Callable[..., None], *args: Any, within_ms: int = 200_000) -> Any:
        """Run a call of the core to its end; return its error or None."""
        found: list[Any] = []
        self.client.network.timer.observe(self.node.now_ms)
        start(*args, lambda result, now_ms: found.append(result), self.node.now_ms)
        self.node.until(lambda: bool(found), within_ms)
        return found[0]

    def kill(self) -> None:
        self.node.remove(self.client)


def values_in_log(node: ClientsOfNode, topic: str, partition: int = 0, *, committed_only: bool = False) -> list[bytes]:
    """The values that a consumer would read, by the log of the node."""
    answer = node.fetch({(topic, partition): 0}, isolation_level=int(committed_only)).result()
    found = answer.responses[0].partitions[0]
    data, values = bytes(found.records), []
    aborted = [(one.first_offset, one.producer_id) for one in found.aborted_transactions or []]
    active: set[int] = set()
    while data:
        size = 12 + int.from_bytes(data[8:12], "big")
        header = check_batch(data[:size])
        active |= {producer_id for first, producer_id in aborted if first == header.base_offset}
        if header.attributes & CONTROL:
            active.discard(header.producer_id)
        elif header.producer_id not in active:
            payload = inflate(header.codec, data[HEADER_BYTES:size], limit=2**24)
            values += [record.value or b"" for record in read_records(payload, header.record_count)]
        data = data[size:]
    return values


def committed_offset(node: ClientsOfNode, group: str, topic: str, partition: int = 0) -> int:
    """The offset that a group has committed, by the node; offsets of open transactions are waited for."""
    kind = API_KEYS[OFFSET_FETCH].request
    of_topic = kind.classes["OffsetFetchRequestTopics"](name=topic, partition_indexes=[partition])
    of_group = kind.classes["OffsetFetchRequestGroup"](group_id=group, topics=[of_topic])
    while True:
        pending = node.send(OFFSET_FETCH, 8, kind.new(groups=[of_group], require_stable=True))
        node.until(lambda pending=pending: pending.answer is not None)
        found = pending.result().groups[0].topics[0].partitions[0]
        if found.error_code != error_codes.UNSTABLE_OFFSET_COMMIT:
            assert found.error_code == 0
            return int(found.committed_offset)
        node.advance(100)
