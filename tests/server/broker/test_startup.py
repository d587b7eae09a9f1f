"""Protects what a broker does with the metadata log: its own work does not grow with the batches, and it follows the leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.network.events import NodeRole, PeerNode
from kcli.network.timing_wheel import Timer
from kcli.protocol.apis import ALTER_PARTITION, API_VERSIONS
from kcli.server.broker.alter_partition_manager import RETRY_MS, AlterPartitionManager
from kcli.server.broker.startup import CATCH_UP_CHECK_MS, BrokerStartup
from kcli.server.replication.replica import IsrChange
from tests.network.test_peers import api_versions
from tests.server.broker.test_node_to_controller_channel import Channel


class Nothing:
    """A part of the broker that is not asked here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: None


class Metadata:
    """A metadata log that is never caught up with."""

    leader_id = 1
    checks = 0

    def register(self, listener: object) -> None:
        pass

    def is_caught_up(self) -> bool:
        self.checks += 1
        return False


def test_one_check_waits_whatever_the_number_of_batches() -> None:
    """Each batch asks at once; between batches there is one check at a time, not one for each batch that has come."""
    timer, metadata = Timer(0), Metadata()
    broker: Any = SimpleNamespace(timer=timer, publisher=Nothing(), lifecycle=Nothing(), report=print)
    startup = BrokerStartup(broker, metadata)
    startup.begin(0)
    for now_ms in range(1, 101):
        for _ in range(20):
            startup.on_commit(None, now_ms)  # type: ignore[arg-type]
        timer.advance(now_ms)
    assert metadata.checks == 100
    for now_ms in range(101, 101 + 10 * CATCH_UP_CHECK_MS):
        timer.advance(now_ms)
    assert metadata.checks <= 111


def test_changes_of_isrs_go_to_the_next_controller_if_the_earlier_one_is_frozen() -> None:
    """At once: the connection to the earlier one, which stays open without an answer, is closed."""
    channel, versions = Channel(2), api_versions({f"_{ALTER_PARTITION}": (2, 3)})
    lifecycle: Any = SimpleNamespace(broker_epoch=5)
    manager = AlterPartitionManager(1, lifecycle, channel.channel, channel.peers.timer)
    metadata: Any = Metadata()
    broker: Any = SimpleNamespace(controller=channel.channel, alter_partition=manager)
    startup = BrokerStartup(broker, metadata)
    partition: Any = SimpleNamespace(topic_id=Uuid(b"t" * 16), index=0)
    manager.propose(partition, IsrChange(0, 0, [(1, -1)], frozenset({1, 2}), False))
    channel.advance(0)
    channel.serve(API_VERSIONS, 4, versions, 2, "alter-partition")
    (request,) = channel.take()
    assert request.peer.destination == PeerNode(2, NodeRole.CONTROLLER, "alter-partition")
    channel.controller_id = 3
    startup.on_leader_change(3, 1, channel.now_ms)
    channel.advance(RETRY_MS)
    channel.serve(API_VERSIONS, 4, versions, 3, "alter-partition")
    (request,) = channel.take()
    assert request.peer.destination == PeerNode(3, NodeRole.CONTROLLER, "alter-partition")
    assert int.from_bytes(request.frame[4:6], "big") == ALTER_PARTITION
