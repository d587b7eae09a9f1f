"""Apache Kafka judges the quorum: one controller of kcli and two of Kafka elect leaders of both kinds and have the same log.

Kafka halts a process that gets a message against the rules of KRaft; here none does. kcli waits longer than Kafka before an
election: the second to ask for pre-votes wins, since the first asks while the other still believes in the leader.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kcli.server.raft.metadata_batches import decode_batches
from tests.oracle.peer import Peer
from tests.server.quorum_processes import CLUSTER_ID, Controller, Quorum, faults, free_ports, kcli_command

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

KCLI = 1
FORMAT_SECONDS = 120
# The most leaders that are killed until one of each kind has led.
MOST_ELECTIONS = 8


def of_kafka(peer: Peer, home: Path, node_id: int, ports: list[int]) -> Controller:
    """A controller of Kafka, formatted by Kafka's own tool."""
    controller = Controller(home, node_id, ports, [str(peer.script), "java", "kafka.Kafka"])
    command = [
        str(peer.script),
        "java",
        "kafka.tools.StorageTool",
        "format",
        "-t",
        CLUSTER_ID,
        "-c",
        str(controller.properties),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=FORMAT_SECONDS)
    return controller


def test_a_quorum_of_both_kinds(each_kafka: Peer, tmp_path: Path) -> None:
    """Leaders are killed until both kinds have led; then the logs are equal byte by byte."""
    ports = free_ports(3)
    patience = "controller.quorum.fetch.timeout.ms=2500"
    own = Controller(tmp_path, KCLI, ports, kcli_command(), patience).format_by_kcli()
    controllers = [own, *(of_kafka(each_kafka, tmp_path, node_id, ports) for node_id in (2, 3))]
    with Quorum(controllers) as quorum:
        led, epoch = set(), 0
        for _ in range(MOST_ELECTIONS):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            led.add(leader is own)
            if led == {True, False}:
                break
            leader.end()
            quorum.elected(epoch)
            leader.start()
        assert led == {True, False}
    batches = list(decode_batches(quorum.common_log()))
    leaders = {batch.control_records[0].message.leader_id for batch in batches if batch.control_records}  # type: ignore[union-attr]
    assert KCLI in leaders
    assert leaders & {2, 3}
    assert faults([own]) == []
