"""Protects what a broker tells of itself: Kafka's metrics under the names that dashboards for Kafka know, and its log lines.

fixtures/metrics holds every name and its labels that jmx_exporter showed of a real Kafka.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from math import isnan
from pathlib import Path

import pytest

from kcli.protocol.error_codes import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from kcli.server.metrics.broker_metrics import BrokerMetrics
from kcli.server.metrics.catalog import METRICS, QUANTILES, Metric
from kcli.server.shell.log_writer import LogWriter
from kcli.server.shell.request_times import RequestTimes, quantiles_ms
from tests.conftest import ROOT
from tests.oracle.config_questions import ask_all, create
from tests.oracle.metric_names import names_of
from tests.server.serving import SECONDS, address_of, serving

KAFKAS = {
    (name, labels)
    for name, labels in (line.split() for line in (ROOT / "fixtures" / "metrics" / "kafka-names.txt").read_text().splitlines())
}
# Kafka has these once a fault of its own happened to that topic, which cannot be brought about.
NOT_SEEN = {("kafka_server_brokertopicmetrics_failedfetchrequests_total", "topic")}


def forms(metric: Metric) -> set[tuple[str, str]]:
    """The names and labels that samples of a metric have."""
    labels = ",".join(sorted(metric.labels)) or "-"
    if metric.kind == "summary":
        return {(metric.name, ",".join(sorted((*metric.labels, "quantile")))), (f"{metric.name}_count", labels)}
    return {(metric.name, labels)}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_has_kafkas_name_and_labels(metric: Metric) -> None:
    assert forms(metric) <= KAFKAS | NOT_SEEN
    assert (metric.kind == "counter") == metric.name.endswith("_total")


def test_a_broker_serves_its_metrics(tmp_path: Path) -> None:
    with serving(tmp_path, "--metrics-port", "0") as lines:
        log = "".join(lines)
        url = re.search(r"http://\S+", log)
        assert url is not None
        ask_all(address_of(lines), [create("orders", {})], 0)
        with urllib.request.urlopen(url[0], timeout=SECONDS) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url[0] + "x", timeout=SECONDS)
    shown = {tuple(line.split()) for line in names_of(text).splitlines()}
    assert {name for name, _ in shown if not name.endswith("_sum")} <= {name for name, _ in KAFKAS}
    told = {metric.name for metric in METRICS if any(name == metric.name for name, _ in shown)}
    assert told == {metric.name for metric in METRICS}, "a metric of the catalog is not told"
    for expected in (
        'kafka_log_log_logendoffset{partition="0",topic="orders"} 0.0',
        "kafka_server_replicamanager_partitioncount 1.0",
        "kafka_controller_kafkacontroller_activecontrollercount 1.0",
        "kafka_server_kafkaserver_brokerstate 3.0",
        'kafka_network_requestmetrics_requests_total{request="CreateTopics",version="7"} 1.0',
    ):
        assert expected in text
    assert "process_resident_memory_bytes" in text


def test_a_log_of_json_is_one_object_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--override", "num.io.threads=3") as lines:
        events = [json.loads(line) for line in lines]
    assert all(event.keys() >= {"time", "level", "message"} for event in events)
    assert any(event["level"] == "WARN" and "num.io.threads" in event["message"] for event in events)


def test_a_line_stays_one_line() -> None:
    written: list[str] = []
    LogWriter("text", written.append, lambda: 0.25)("a\nb\x1b[2J", client="x y", port=9092)
    LogWriter("json", written.append, lambda: 0.25)("a\nb", port=9092, ok=True)
    assert written[0] == '1970-01-01T00:00:00.250Z INFO a\\nb\\x1b[2J client="x y" port=9092\n'
    assert json.loads(written[1]) == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "INFO",
        "message": "a\nb",
        "port": 9092,
        "ok": True,
    }
    assert all(line.count("\n") == 1 for line in written)


def test_sums_outlive_their_topics() -> None:
    metrics = BrokerMetrics()
    metrics.topic("a").messages_in += 5
    metrics.topic("b").append_refused(MESSAGE_TOO_LARGE, 70)
    metrics.topic("b").append_refused(CORRUPT_MESSAGE, 7)
    metrics.forget_topic("a")
    metrics.forget_topic("b")
    total = metrics.gone
    assert (total.messages_in, total.bytes_rejected) == (5, 70)
    assert (total.invalid_message_crc_records, total.failed_produce_requests) == (1, 2)
    assert metrics.topics == {}


def test_quantiles_are_right_within_a_bucket() -> None:
    times = RequestTimes()
    frame = memoryview(bytes([0, 3, 0, 0]))
    for connection_id in range(10):
        times.begin(connection_id, frame)
        times.end(connection_id)
    times.end(99)  # a connection that asked nothing
    taken = times.take()
    assert taken["Metadata"].requests == 10 and all(value > 0 for value in taken["Metadata"].quantiles)
    again = times.take()["Metadata"]
    assert again.requests == 10 and all(isnan(value) for value in again.quantiles)


@pytest.mark.parametrize("ns", [0, 1, 7, 8, 1000, 999_999, 1_000_000, 123_456_789, 1 << 40])
def test_a_bucket_holds_what_is_put_into_it(ns: int) -> None:
    times = RequestTimes()
    times.begin(1, memoryview(b"\0\0"))
    times.end(1)
    recorded = times._times[0]
    recorded.buckets = [0] * len(recorded.buckets)
    RequestTimes.record(recorded, ns)
    shown = {value * 1_000_000 for value in quantiles_ms(recorded.buckets)}
    assert len(shown) == 1 and len(QUANTILES) == 6
    assert ns * 0.999 - 1 <= shown.pop() <= ns * 1.26 + 3
