"""A producer's core as a client of a whole node in virtual time, whose connection ends at the request that a test names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcli.client.errors import ClientError
from kcli.client.producer.producer import ProducerCore, Record
from kcli.client.producer.producer_config import ProducerConfig
from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from kcli.network.events import SendRequest
from kcli.server.events import Connection
from tests.client.clients_of_node import Client, ClientsOfNode, _Link

CONTROL = 0x20  # attribute of a batch
BEFORE, AFTER = "before the broker has it", "before the client has its answer"


class FaultyNode(ClientsOfNode):
    """A node that ends all connections of its clients at request number `cut_at`, counted from 1."""

    cut_at = 0
    cut = BEFORE

    def begin_counting(self, cut_at: int, cut: str) -> None:
        self.request_count, self.cut_at, self.cut = 0, cut_at, cut
        self._cut_request: SendRequest | None = None

    request_count = 0
    _cut_request: SendRequest | None = None

    def _send_for(self, client: Client, effect: SendRequest) -> None:
        if effect.has_answer and effect.request_id not in client.network.peers.outstanding:
            return  # its connection has ended since
        self.request_count += 1
        if self.request_count == self.cut_at and self.cut == BEFORE:
            self._link_to(client, effect)
            self.disconnect(client)
            return
        if self.request_count == self.cut_at:
            self._cut_request = effect
        super()._send_for(client, effect)

    def _link_to(self, client: Client, effect: SendRequest) -> None:
        """Make the connection, which then ends: the client waits for its answer."""
        if self._link(client, effect.peer) is None:
            link = _Link(client, effect.peer, self.connection())
            self._links[link.connection.connection_id] = link

    def _answered(self, connection: Connection, frame: bytes) -> None:
        link = self._links.get(connection.connection_id)
        if link is not None and link.under_way is not None and link.under_way is self._cut_request:
            self._cut_request = None
            self.disconnect(link.client)
            return
        super()._answered(connection, frame)


class ProducerApp:
    """A producer of a test; `results` are offsets or errors of its records by their values."""

    def __init__(self, node: ClientsOfNode, name: str, **settings: Any) -> None:
        self.node = node
        self.client = node.add(Client(name, node.now_ms))
        self.lines: list[str] = []
        self.core = ProducerCore(self.client.network, ProducerConfig(**settings), self.lines.append)
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
