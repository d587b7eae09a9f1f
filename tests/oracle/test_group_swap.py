"""Protects groups that move between Apache Kafka and kcli with their directory: members, generations and offsets go on.

A member of a classic group joins under one broker, sends heartbeats and commits under the other, and back again; both brokers
describe the group alike. `kcli verify` finds nothing wrong at each stop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from tests.oracle.brokers import KcliBroker, broker_at
from tests.oracle.peer import Peer
from tests.oracle.test_group_answers import Broker, assigned, beat, commit, fetch, join, protocols, sync
from tests.oracle.test_swap import DYNAMIC, assert_sound

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

PROPERTIES = DYNAMIC + "group.initial.rebalance.delay.ms=0\noffsets.topic.num.partitions=3\n"
LONG = {"session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 300_000}
MEMBER = {"generation_id_or_member_epoch": 1, "member_id": "m1"}
STATIC_MEMBER = {"generation_id_or_member_epoch": 1, "member_id": "m2", "group_instance_id": "i"}


class Client(Broker):
    """A client of a broker whose topics and members may have been made by another one."""

    def __init__(self, address: str, before: Client | None) -> None:
        super().__init__(address)
        if before is None:
            self.set_up()
            return
        self.topic_names, self.members = before.topic_names, before.members
        self.wait_until_served()

    def wait_until_served(self) -> None:
        """Ask until all partitions of the coordinator are loaded: every group is found."""
        while any(self.commit_code(f"warm-{at}") for at in range(20)):
            pass

    def join_members(self) -> None:
        """Two groups with a member each, one of them static."""
        self.ask(apis.JOIN_GROUP, 9, **join("dynamic", **LONG))
        joined = self.ask(apis.JOIN_GROUP, 9, **join("dynamic", member_id="m1", protocols=protocols("range", "other"), **LONG))
        assert (joined["error_code"], joined["generation_id"]) == (0, 1)
        assert self.ask(apis.SYNC_GROUP, 5, **sync("dynamic", assignments=assigned(m1=b"all")))["error_code"] == 0
        joined = self.ask(apis.JOIN_GROUP, 9, **join("static", group_instance_id="i", **LONG))
        assert (joined["error_code"], joined["member_id"]) == (0, "m2")
        fields = {"member_id": "m2", "group_instance_id": "i"}
        assert self.ask(apis.SYNC_GROUP, 5, **sync("static", assignments=assigned(m2=b"i"), **fields))["error_code"] == 0

    def commit_all(self, label: str) -> None:
        """Commit as the members, and as a consumer without a group."""
        for fields in (
            commit("dynamic", 8, 0, 1, metadata=label, **MEMBER),
            commit("static", 8, 2, metadata=label, **STATIC_MEMBER),
            commit("simple", 8, 0, metadata=label),
        ):
            answer = self.ask(apis.OFFSET_COMMIT, 8, **fields)
            assert {part["error_code"] for part in answer["topics"][0]["partitions"]} == {0}

    def seen(self) -> Any:
        """What the broker says of the groups; the members are alive."""
        assert self.ask(apis.HEARTBEAT, 4, **beat("dynamic"))["error_code"] == 0
        assert self.ask(apis.HEARTBEAT, 4, **beat("static", member_id="m2", group_instance_id="i"))["error_code"] == 0
        names = ("dynamic", "static", "simple")
        return (
            self.ask(apis.DESCRIBE_GROUPS, 5, groups=list(names)),
            [self.ask(apis.OFFSET_FETCH, 8, **fetch(name, 8, None)) for name in names],
        )


def test_groups_that_begin_under_kcli(kafka_peer: Peer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kcli = KcliBroker(tmp_path / "kcli", properties=PROPERTIES, data=data)
    with kcli:
        client = Client(kcli.bootstrap, None)
        client.join_members()
        client.commit_all("first")
        before = client.seen()
    assert_sound(kafka_peer, data)
    with broker_at(kafka_peer, tmp_path / "kafka", PROPERTIES, data) as bootstrap:
        client = Client(bootstrap, client)
        assert client.seen() == before
        client.commit_all("second")
        before = client.seen()
    assert_sound(kafka_peer, data)
    with kcli:
        client = Client(kcli.bootstrap, client)
        assert client.seen() == before
        client.commit_all("third")
        again = client.ask(apis.JOIN_GROUP, 9, **join("static", group_instance_id="i", **LONG))
        assert (again["error_code"], again["member_id"]) == (0, "m3"), "the static member came back"
    assert_sound(kafka_peer, data)


def test_groups_that_begin_under_kafka(kafka_peer: Peer, tmp_path: Path) -> None:
    data = tmp_path / "data"
    kcli = KcliBroker(tmp_path / "kcli", properties=PROPERTIES, data=data)
    with kcli:
        pass  # it formats the directory
    with broker_at(kafka_peer, tmp_path / "kafka", PROPERTIES, data) as bootstrap:
        client = Client(bootstrap, None)
        client.join_members()
        client.commit_all("first")
        before = client.seen()
    with kcli:
        client = Client(kcli.bootstrap, client)
        assert client.seen() == before
        client.commit_all("second")
        before = client.seen()
    assert_sound(kafka_peer, data)
    with broker_at(kafka_peer, tmp_path / "kafka-again", PROPERTIES, data) as bootstrap:
        client = Client(bootstrap, client)
        assert client.seen() == before
        client.commit_all("third")
    assert_sound(kafka_peer, data)
