"""Protects the metrics of a quorum of three controllers: names as of Kafka's, and values that are true on leader and followers,
before and after an election; and those of the metadata on a node that is only a broker. fixtures/metrics/kafka-controllers.txt
has the names that Apache Kafka showed in these situations.
"""

from __future__ import annotations

import re
import signal
import urllib.request
from collections import defaultdict
from fnmatch import fnmatchcase
from functools import partial
from math import isnan
from pathlib import Path

import pytest

from kcli.server.metrics.catalog import METRICS
from tests.oracle.metric_names import CONTROLLERS_FIXTURE, IS_RUNNING, OF_METADATA, names_of
from tests.server.live import wait_for
from tests.server.metrics.metrics_page import MISSING
from tests.server.quorum_processes import Controller, Quorum, faults, free_ports, kcli_command
from tests.server.serving import SECONDS

RAFT, CONTROLLER = "kafka_server_raft_metrics_", "kafka_controller_kafkacontroller_"
OWN = {name for metric in METRICS for name in (metric.name, f"{metric.name}_count")}
OPERATIONS = f"{CONTROLLER}eventqueueoperationsstartedcount"


def of_kafka(role: str) -> set[str]:
    """The names that Kafka shows in a role, without those that docs/metrics.md lists as missing."""
    lines = [line.split() for line in CONTROLLERS_FIXTURE.read_text().splitlines()]
    missing = [f"kafka_{pattern}" for group in MISSING for pattern in group.patterns]
    names = {name for of, name, _ in lines if of == role}
    return {name for name in names if not any(fnmatchcase(name, pattern) for pattern in missing)}


class Scrapes:
    """The metrics of controllers, as often as they were read; `ever` has the highest value of each that was a number."""

    def __init__(self) -> None:
        self.ever: dict[int, dict[str, float]] = defaultdict(dict)
        self.names: dict[int, set[str]] = {}

    def read(self, controller: Controller) -> dict[str, float]:
        """Read the metrics without labels."""
        url = re.findall(r"http://\S+", controller.log())[-1]
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            text = answer.read().decode()
        names = {line.split()[0] for line in names_of(text).splitlines()}
        self.names[controller.node_id] = {name for name in names if OF_METADATA.match(name) and not name.endswith("_sum")}
        values = {name: float(value) for name, value in re.findall(r"^(kafka_\w+) (\S+)$", text, re.MULTILINE)}
        ever = self.ever[controller.node_id]
        for name, value in values.items():
            if not isnan(value):
                ever[name] = max(value, ever.get(name, value))
        return values

    def is_settled(self, controller: Controller, leader: Controller, epoch: int) -> bool:
        """Return whether a controller shows the leader, and what followed from that."""
        now, ever, is_leader = self.read(controller), self.ever[controller.node_id], controller is leader
        above_zero = [f"{RAFT}append_records_rate", OPERATIONS] if is_leader else [f"{RAFT}fetch_records_rate"]
        shown = now[f"{RAFT}current_leader"], now[f"{RAFT}log_end_epoch"], now[f"{CONTROLLER}activecontrollercount"]
        has_committed = not is_leader or f"{RAFT}commit_latency_max" in ever
        return shown == (leader.node_id, epoch, is_leader) and has_committed and all(ever[name] > 0 for name in above_zero)


def check_values(now: dict[str, float], ever: dict[str, float], controller: Controller, leader: Controller, epoch: int) -> None:
    """The values of one scrape agree with each other and with the role."""
    is_leader = controller is leader
    assert now[f"{RAFT}current_epoch"] == epoch
    assert now[f"{RAFT}number_of_voters"] == 3
    assert now[f"{RAFT}number_unknown_voter_connections"] == 0
    assert 0 < now[f"{RAFT}high_watermark"] <= now[f"{RAFT}log_end_offset"]
    assert now[f"{CONTROLLER}lastcommittedrecordoffset"] < now[f"{RAFT}high_watermark"]
    assert now[f"{CONTROLLER}lastcommittedrecordoffset"] <= now[f"{CONTROLLER}lastappliedrecordoffset"]
    assert now[f"{CONTROLLER}newactivecontrollerscount"] >= 1
    assert now[f"{CONTROLLER}metadataerrorcount"] == 0
    if is_leader:
        assert now[f"{RAFT}current_vote"] == controller.node_id
        assert now[f"{RAFT}number_of_observers"] == 0
        assert now[f"{RAFT}uncommitted_voter_change"] == 0
        assert now[f"{CONTROLLER}lastappliedrecordlagms"] == 0
        assert ever[f"{RAFT}election_latency_max"] >= ever[f"{RAFT}election_latency_avg"] >= 0
    else:
        assert now[f"{CONTROLLER}lastcommittedrecordoffset"] == now[f"{CONTROLLER}lastappliedrecordoffset"]
        assert isnan(now[f"{RAFT}commit_latency_avg"])
        assert now[f"{RAFT}append_records_rate"] == 0


@pytest.mark.ci
def test_a_quorum_shows_its_metrics_before_and_after_an_election(tmp_path: Path) -> None:
    ports = free_ports(3)
    command = [*kcli_command(), "--metrics-port", "0"]
    patience = "controller.quorum.fetch.timeout.ms=60000"  # no election that the test does not want
    controllers = [Controller(tmp_path, node_id, ports, command, patience).format_by_kcli() for node_id in (1, 2, 3)]
    with Quorum(controllers) as quorum:
        epoch = 0
        for _ in range(2):
            leader = quorum.elected(epoch)
            epoch = leader.election.leader_epoch
            up = [one for one in controllers if one.process is not None]
            scrapes = Scrapes()
            for one in up:
                wait_for(partial(scrapes.is_settled, one, leader, epoch))
            for one in up:
                check_values(scrapes.read(one), scrapes.ever[one.node_id], one, leader, epoch)
                assert scrapes.names[one.node_id] & OWN == of_kafka("leader" if one is leader else "follower")
            leader.end(signal.SIGTERM)
    assert faults(controllers) == []


@pytest.mark.ci
def test_a_broker_shows_what_it_has_of_the_metadata(tmp_path: Path) -> None:
    """It fetches the log as an observer; the leader counts it."""
    port, broker_port = free_ports(2)
    command = [*kcli_command(), "--metrics-port", "0"]
    controller = Controller(tmp_path, 1, [port], command).format_by_kcli()
    broker = Controller(tmp_path, 2, [port], command, broker_port=broker_port).format_by_kcli()
    scrapes = Scrapes()
    name, offset = IS_RUNNING.split()[0], "kafka_server_broker_metadata_metrics_last_applied_record_offset"

    def is_running() -> bool:
        now = scrapes.read(broker) if "http://" in broker.log() else {}
        return now.get(name) == 3 and scrapes.ever[2][f"{RAFT}fetch_records_rate"] > 0

    with Quorum([controller, broker]):
        wait_for(is_running)
        of_broker, of_leader = scrapes.read(broker), scrapes.read(controller)
        assert scrapes.names[2] & OWN == of_kafka("broker")
    assert of_leader[f"{RAFT}number_of_observers"] == 1
    assert of_leader[f"{CONTROLLER}activebrokercount"] == 1
    assert 0 < of_broker[offset] < of_leader[f"{RAFT}log_end_offset"]
    assert (of_broker[f"{RAFT}current_leader"], of_broker[f"{RAFT}number_of_voters"]) == (1, 1)
    assert (of_broker[f"{RAFT}current_vote"], of_broker[f"{RAFT}append_records_rate"]) == (-1, 0)
    assert of_broker["kafka_server_broker_metadata_metrics_last_applied_record_lag_ms"] >= 0
    assert faults([controller, broker]) == []
