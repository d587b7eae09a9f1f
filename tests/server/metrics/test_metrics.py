"""Protects what a broker tells of itself: Kafka's metrics under the names that dashboards for Kafka know, and its log lines.

fixtures/metrics holds every name and its labels that jmx_exporter showed of a real Kafka.
"""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress
from fnmatch import fnmatchcase
from math import isnan
from pathlib import Path

import pytest

from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR, INITIALIZE_SHARE_GROUP_STATE, METADATA, PRODUCE, SHARE_FETCH
from kcli.protocol.error_codes import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE
from kcli.server.metrics.broker_metrics import BrokerMetrics, ErrorCounts
from kcli.server.metrics.catalog import METRICS, QUANTILES, Metric
from kcli.server.metrics.sampled import MAX_SAMPLES, quantiles
from kcli.server.shell.log_writer import LogWriter
from kcli.server.shell.metrics_collector import Rates, RawSamples
from kcli.server.shell.request_times import NAME, NS_PER_MS, RequestTimes
from tests.conftest import ROOT
from tests.oracle.config_questions import ask_all, create
from tests.oracle.metric_names import names_of
from tests.oracle.raw_requests import RawClient
from tests.server.metrics.metrics_page import MISSING
from tests.server.serving import SECONDS, address_of, serving

KAFKAS = {
    (name, labels)
    for name, labels in (line.split() for line in (ROOT / "fixtures" / "metrics" / "kafka-names.txt").read_text().splitlines())
}
# Kafka has these once a fault of its own happened to that topic, which cannot be brought about.
NOT_SEEN = {
    (f"kafka_server_brokertopicmetrics_failed{kind}requests_total", "topic")
    for kind in ("fetch", "sharefetch", "shareacknowledgement")
}
# Those of ShareGroupMetrics of Kafka 4.4; the fixture is of 4.3. tests/server/apis/test_dead_letters.py has samples of them.
OF_4_4 = {
    ("kafka_server_sharegroupmetrics_deadletterqueuerecordcount_count", "group"),
    ("kafka_server_sharegroupmetrics_deadletterqueuetotalproducerequests_total", "group"),
    ("kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total", "group"),
}
# Those of followers and of their fetches, which a Kafka of one node does not have.
OF_FOLLOWERS = {
    ("kafka_server_fetcherlagmetrics_consumerlag", "clientId,partition,topic"),
    ("kafka_server_fetcherstats_requests_total", "brokerHost,brokerPort,clientId"),
    ("kafka_server_fetcherstats_bytes_total", "brokerHost,brokerPort,clientId"),
    ("kafka_server_delayedfetchmetrics_expires_total", "fetcherType"),
}


def forms(metric: Metric) -> set[tuple[str, str]]:
    """The names and labels that samples of a metric have."""
    labels = ",".join(sorted(metric.labels)) or "-"
    if metric.kind == "summary":
        return {(metric.name, ",".join(sorted((*metric.labels, "quantile")))), (f"{metric.name}_count", labels)}
    return {(metric.name, labels)}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_has_kafkas_name_and_labels(metric: Metric) -> None:
    assert forms(metric) <= KAFKAS | NOT_SEEN | OF_4_4 | OF_FOLLOWERS
    assert (metric.kind == "counter") == metric.name.endswith("_total")


def test_each_of_kafkas_names_is_told_or_left_out_for_a_reason() -> None:
    told = {name for metric in METRICS for name, _ in forms(metric)}
    kafkas = {name for name, _ in KAFKAS}
    left_out: dict[str, list[str]] = {}
    for name in kafkas:
        for group in MISSING:
            left_out.setdefault(name, []).extend(pattern for pattern in group.patterns if fnmatchcase(name, f"kafka_{pattern}"))
    assert {name for name in kafkas if not left_out[name]} == told & kafkas, "neither told nor left out, or both"
    assert {name: found for name, found in left_out.items() if len(found) > 1} == {}, "left out twice"
    matched = {pattern for found in left_out.values() for pattern in found}
    assert matched == {pattern for group in MISSING for pattern in group.patterns}, "a pattern of nothing"


def share_fetch(address: str) -> RawClient:
    """Begin to read orders as a member of a share group; it leaves when the client is closed."""
    client = RawClient(address)
    (topic,) = client.ask(METADATA, 12, topics=None).topics
    state = client.struct(INITIALIZE_SHARE_GROUP_STATE, "PartitionData", partition=0, state_epoch=1, start_offset=0)
    begun = client.struct(INITIALIZE_SHARE_GROUP_STATE, "InitializeStateData", topic_id=topic.topic_id, partitions=[state])
    code, until = -1, time.monotonic() + SECONDS
    while code and time.monotonic() < until:
        client.ask(FIND_COORDINATOR, 6, key_type=2, coordinator_keys=[f"sharing:{topic.topic_id}:0"])
        answer = client.ask(INITIALIZE_SHARE_GROUP_STATE, 0, group_id="sharing", topics=[begun])
        code = answer.results[0].partitions[0].error_code
    part = client.struct(SHARE_FETCH, "FetchPartition", partition_index=0)
    read = client.struct(SHARE_FETCH, "FetchTopic", topic_id=topic.topic_id, partitions=[part])
    limits = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1, "max_records": 1, "batch_size": 1}
    answer = client.ask(SHARE_FETCH, 1, group_id="sharing", member_id="m", share_session_epoch=0, topics=[read], **limits)
    assert answer.error_code == 0
    return client


def test_a_broker_serves_its_metrics(tmp_path: Path) -> None:
    partition_count = "kafka_server_replicamanager_partitioncount 51.0"  # orders and __share_group_state
    with serving(tmp_path, "--metrics-port", "0") as lines:
        log = "".join(lines)
        url = re.search(r"http://\S+", log)
        assert url is not None
        ask_all(address_of(lines), [create("orders", {})], 0)
        sharing = share_fetch(address_of(lines))
        text, until = "", time.monotonic() + SECONDS
        while partition_count not in text and time.monotonic() < until:  # the logs of the topic are made after it answers
            with urllib.request.urlopen(url[0], timeout=SECONDS) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                text = answer.read().decode()
        sharing.close()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url[0] + "x", timeout=SECONDS)
    shown = {tuple(line.split()) for line in names_of(text).splitlines()}
    assert {name for name, _ in shown if not name.endswith("_sum")} <= {name for name, _ in KAFKAS | OF_FOLLOWERS}
    told = {metric.name for metric in METRICS if any(name == metric.name for name, _ in shown)}
    of_others = {name for name, _ in OF_4_4 | OF_FOLLOWERS} - {"kafka_server_delayedfetchmetrics_expires_total"}
    assert told == {metric.name for metric in METRICS} - of_others, "a metric of the catalog is not told"
    for expected in (
        'kafka_log_log_logendoffset{partition="0",topic="orders"} 0.0',
        partition_count,
        "kafka_server_sharesessioncache_sharesessionscount 1.0",
        'kafka_server_sharepartitionmetrics_inflightmessagecount{group="sharing",partition="0",topic="orders"} 0.0',
        'kafka_server_brokertopicmetrics_totalsharefetchrequests_total{topic="orders"} 1.0',
        "kafka_controller_kafkacontroller_activecontrollercount 1.0",
        "kafka_server_kafkaserver_brokerstate 3.0",
        'kafka_network_requestmetrics_requests_total{request="CreateTopics",version="7"} 1.0',
        'kafka_network_requestmetrics_errors_total{error="NONE",request="CreateTopics"}',
        'kafka_network_requestmetrics_remotetimems_count{request="CreateTopics"} 1.0',
        'kafka_controller_kafkacontroller_brokerregistrationstate{broker="1"} 30.0',
    ):
        assert expected in text
    assert "process_resident_memory_bytes" in text


def test_a_log_of_json_is_one_object_a_line(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--override", "num.io.threads=3") as lines:
        host, port = address_of(lines).rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=SECONDS) as client:
            client.sendall(b"\xff\xff\xff\xff")  # a request of -1 bytes
            # The other side aborts.
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
            peer = "{}:{}".format(*client.getsockname()[:2])
        events = [json.loads(line) for line in lines]
    assert all(event.keys() >= {"time", "level", "message"} for event in events)
    assert any(event["level"] == "WARN" and "num.io.threads" in event["message"] for event in events)
    assert events[-1]["node"] == 1 and events[-1]["paths"]
    later = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    closed = next(event for event in later if "peer" in event)
    assert (closed["level"], closed["peer"], closed["listener"]) == ("WARN", peer, "PLAINTEXT")
    assert "a request of -1 bytes" in closed["error"]


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
    total = metrics.deleted
    assert (total.messages_in, total.bytes_rejected) == (5, 70)
    assert (total.invalid_message_crc_records, total.failed_produce_requests) == (1, 2)
    assert metrics.topics == {}


def test_the_phases_of_a_request_are_told_and_begin_anew() -> None:
    times = RequestTimes()
    frame = memoryview(bytes([0, 3, 0, 0]))
    for connection_id in range(10):
        times.begin(connection_id, frame)
        times.handled(connection_id)
        times.ready(connection_id)
        times.end(connection_id)
    for step in (times.handled, times.ready, times.end):
        step(99)  # a connection that asked nothing
    taken, request = times.take(), ("Metadata",)
    assert taken[f"{NAME}requestbytes"][request].quantiles == (4.0,) * len(QUANTILES)
    phases = [taken[f"{NAME}{phase}"][request] for phase in ("localtimems", "remotetimems", "responsesendtimems")]
    total = taken[f"{NAME}totaltimems"][request]
    assert all(phase.total == 10 and max(phase.quantiles) <= max(total.quantiles) for phase in phases)
    assert all(value > 0 for value in total.quantiles)
    again = times.take()[f"{NAME}totaltimems"][request]
    assert again.total == 10 and all(isnan(value) for value in again.quantiles)


def test_what_waits_is_remote_time() -> None:
    """A request without an answer when the core has looked at it; one that is answered while it is looked at has none."""
    times = RequestTimes()
    times._begun[1] = [1, 9, 1_000_000, 3_000_000, 9_000_000]
    times._begun[2] = [0, 9, 1_000_000, 0, 0]
    times.end(1)
    times.end(2)
    ((_, local, remote, _, _),) = times._times[1].samples
    assert (local, remote) == (2_000_000, 6_000_000)
    ((_, local, remote, send, total),) = times._times[0].samples
    assert (remote, send) == (0, 0) and local == total


def test_a_sample_stays_small_and_sees_all_of_the_time() -> None:
    times = RequestTimes()
    for ns in range(20 * MAX_SAMPLES):
        times.flushed(ns * NS_PER_MS)
    kept = [ns for (ns,) in times._flushes.samples]
    assert len(kept) < MAX_SAMPLES
    (summary,) = times.take()["kafka_log_logflushstats_logflushrateandtimems"].values()
    assert summary.total == 20 * MAX_SAMPLES
    assert summary.quantiles[0] == pytest.approx(10 * MAX_SAMPLES, rel=0.05)


@pytest.mark.parametrize(("values", "median", "highest"), [([], None, None), ([7.0], 7.0, 7.0), ([3.0, 1.0, 2.0], 2.0, 3.0)])
def test_quantiles_are_values_of_the_sample(values: list[float], median: float | None, highest: float | None) -> None:
    found = quantiles(values)
    assert len(found) == len(QUANTILES)
    if median is None:
        assert all(isnan(value) for value in found)
    else:
        assert (found[0], found[-1]) == (median, highest)


def test_rates_are_since_the_scrape_before() -> None:
    rates, name = Rates(10.0), "kafka_server_socket_server_metrics_incoming_byte"
    for now_s, so_far, expected in ((12.0, 100, 50.0), (16.0, 300, 50.0), (17.0, 300, 0.0)):
        raw = RawSamples()
        raw.add(name, so_far, "PLAINTEXT", "0")
        rates.add(raw, now_s)
        assert raw.values[1:] == [(f"{name}_rate", ("PLAINTEXT", "0"), expected)]


def test_errors_count_wherever_an_answer_has_them() -> None:
    api, errors = API_KEYS[METADATA], ErrorCounts()
    classes = api.response.classes
    partitions = [classes["MetadataResponsePartition"](error_code=code) for code in (0, 5)]
    topics = [classes["MetadataResponseTopic"](error_code=0, partitions=partitions)]
    errors.count(METADATA, api.response.new(topics=topics))
    assert {code: count for (_, code), count in errors.counts.items()} == {0: 3, 5: 1}
    errors.count(PRODUCE, API_KEYS[PRODUCE].response.new())
    assert {key for key, _ in errors.counts} == {METADATA}, "looked through what comes often"
