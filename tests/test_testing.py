"""Protects `kcli.testing.Cluster`, which other projects' tests rely on: what it starts, what it leaves, and how it fails.

docs/cluster.md has its example, which tests/test_cluster_page.py runs.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kcli.client import Admin, NewTopic, Producer
from kcli.client.admin.operation import value_of
from kcli.server.supervisor.control import NodeState
from kcli.testing import Cluster, ClusterError
from tests.server.live import PATIENCE_S, wait_for

pytestmark = pytest.mark.ci


def test_a_record_survives_the_kill_of_its_leader(tmp_path: Path) -> None:
    """The next leader has it, and the killed node gets it back; a directory that was named keeps all for the next start."""
    settings = {"broker.session.timeout.ms": 2000, "num.partitions": 1}
    with Cluster(brokers=3, settings=settings, directory=tmp_path / "kept") as cluster:
        client = {"bootstrap.servers": cluster.bootstrap_servers, "default.api.timeout.ms": 60_000}
        with Admin(client) as admin, Producer(client) as producer:
            assert value_of(admin.create_topics([NewTopic("t")])["t"]).replication_factor == 3
            producer.send("t", b"kept")
            producer.flush(PATIENCE_S)

            def partition() -> tuple[int, int]:
                (described,) = admin.describe_topics(["t"]).values()
                one = described.partitions[0]  # type: ignore[union-attr]
                return one.leader, len(one.isr)

            leader, _ = partition()
            cluster.kill(leader)
            assert cluster.state(leader) == NodeState.STOPPED
            wait_for(lambda: partition()[0] not in (leader, -1))
            assert value_of(admin.list_offsets({("t", 0): -1})["t", 0]).offset == 1
            cluster.start(leader)
            wait_for(lambda: partition()[1] == 3)
        cluster.check()
    with Cluster(brokers=3, settings=settings, directory=tmp_path / "kept") as cluster:
        assert cluster.bootstrap_servers == client["bootstrap.servers"]
        assert cluster.leader in (1, 2, 3)


def test_a_temporary_directory_is_removed(tmp_path: Path) -> None:
    """And a node that dies by itself is not started again, but reported."""
    with Cluster(brokers=1, controllers=1) as cluster:
        assert {node["node"]: node["roles"] for node in cluster.status()["nodes"]} == {1: "broker", 101: "controller"}
        os.kill(cluster.status()["nodes"][0]["pid"], signal.SIGKILL)
        wait_for(lambda: cluster.state(1) == NodeState.DIED)
        with pytest.raises(ClusterError, match=r"node-1 died: signal SIGKILL; .*log has the reason"):
            cluster.check()
        assert "node-1 died: signal SIGKILL" in cluster.log()
    assert not cluster.directory.exists()


def test_what_cannot_start_is_an_error_with_the_log() -> None:
    """An unknown setting, and a number of brokers that no machine has; nothing is left."""
    for cluster, sentence in (
        (Cluster(settings={"no.such.key": 1}), "exit code 2.*no.such.key"),
        (Cluster(brokers=1000), "exit code 2.*1 to 100 brokers"),
    ):
        with pytest.raises(ClusterError, match=sentence), cluster:
            pass
        assert not cluster.directory.exists()
