"""Protects: whichever request or answer of a share consumer is lost, late or cut off, each record is accepted in the end, none
is delivered again after its acceptance succeeded, and each call ends in its time.

The broker is a whole node of kcli in virtual time; in each run another request meets the fault (tests.client.faulty_node).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError, DisconnectedError, KafkaError, KafkaTimeoutError
from tests.client.consumer.test_share_consumer import ACCEPT, RELEASE, RENEW, SHARE_SETTINGS, ShareApp, read_from_the_start
from tests.client.faulty_node import FAULTS, SHORT_TIMEOUTS, Fault, FaultyNode
from tests.server.whole_node import batch

pytestmark = pytest.mark.ci  # minutes of CPU time together

LOCK_MS = 5000
RECORDS = 6
WITHIN_MS = 60_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultyNode]:
    node = FaultyNode(
        tmp_path,
        *SHARE_SETTINGS,
        "group.share.min.record.lock.duration.ms=1000",
        f"group.share.record.lock.duration.ms={LOCK_MS}",
    )
    yield node
    node.clients.clear()
    node.stop()


class Reading:
    """What became of the records of one run: `ended` were accepted; of those in `unsure` the broker may not have heard."""

    def __init__(self, node: FaultyNode, run: int, mode: str) -> None:
        self.node = node
        self.topic, self.group = f"t{run}", f"g{run}"
        self.mode = mode
        self.ended: set[int] = set()
        self.unsure: set[int] = set()
        node.create_topic(self.topic)
        read_from_the_start(node, self.group)
        pending = node.produce(self.topic, 0, batch(*(b"%d" % number for number in range(RECORDS))))
        node.until(lambda: pending.answer is not None)

    def app(self, name: str) -> ShareApp:
        settings = {**SHORT_TIMEOUTS, "group_id": self.group, "max_poll_records": 2, "share_acquire_mode": "record_limit"}
        return ShareApp(self.node, name, self.mode, topic=self.topic, **settings)

    def poll(self, app: ShareApp) -> list[ShareRecord]:
        found = app.poll(500)
        delivered = {record.offset for record in found}
        assert not delivered & self.ended, self.node.faulty_request
        return found

    def take_results(self, app: ShareApp, kinds: dict[int, AcknowledgeType]) -> None:
        """Take the results of acknowledgements, whose errors are those that Kafka documents."""
        while app.core.results:
            result = app.core.results.popleft()
            accepted = {offset for offset in result.offsets if kinds.get(offset, ACCEPT) is ACCEPT}
            if result.error is None:
                self.ended |= accepted
            elif not is_refusal(result.error):
                self.unsure |= accepted

    @property
    def is_over(self) -> bool:
        return self.ended | self.unsure == set(range(RECORDS))


def is_refusal(error: ClientError) -> bool:
    """Return whether the broker said that it has not applied an acknowledgement; otherwise it may have."""
    if isinstance(error, KafkaError):
        assert error.name in ("INVALID_RECORD_STATE", "SHARE_SESSION_NOT_FOUND", "INVALID_SHARE_SESSION_EPOCH")
        return True
    assert isinstance(error, (DisconnectedError, KafkaTimeoutError)), error
    return False


@FAULTS
def test_explicit_acknowledgements(node: FaultyNode, fault: Fault) -> None:
    """The records are released once, renewed once, then accepted, each time with a commit."""
    for run in node.runs(fault):
        reading = Reading(node, run, "explicit")
        app = reading.app("first")
        end_ms = node.now_ms + WITHIN_MS
        tries: dict[int, int] = {}
        while not reading.is_over:
            assert node.now_ms < end_ms, (node.faulty_request, reading.ended, reading.unsure)
            kinds: dict[int, AcknowledgeType] = {}
            for record in reading.poll(app):
                count = tries[record.offset] = tries.get(record.offset, 0) + 1
                kinds[record.offset] = {1: RELEASE, 2: RENEW}.get(count, ACCEPT)
                app.acknowledge(kinds[record.offset], record)
            app.commit()
            reading.take_results(app, kinds)
        app.close()
        check_what_is_left(reading)
    of_records = {"ShareFetch", "ShareAcknowledge", "ShareGroupHeartbeat"}
    assert set(node.requests) == {"ApiVersions", "Metadata", "FindCoordinator"} | of_records


@FAULTS
def test_implicit_acknowledgements(node: FaultyNode, fault: Fault) -> None:
    """Each poll accepts what the one before returned."""
    for run in node.runs(fault):
        reading = Reading(node, run, "implicit")
        app = reading.app("first")
        end_ms = node.now_ms + WITHIN_MS
        while not reading.is_over:
            assert node.now_ms < end_ms, (node.faulty_request, reading.ended, reading.unsure)
            reading.poll(app)
            reading.take_results(app, {})
        app.close()
        reading.take_results(app, {})
        check_what_is_left(reading)
    assert {"ShareFetch", "ShareAcknowledge", "ShareGroupHeartbeat"} <= set(node.requests)


def check_what_is_left(reading: Reading) -> None:
    """Let another member read, after all locks and sessions of the first one are over."""
    reading.node.advance(LOCK_MS + 6000)
    app = reading.app("second")
    for _ in range(4):
        found = reading.poll(app)
        assert {record.offset for record in found} <= reading.unsure
        if reading.mode == "explicit":
            app.acknowledge(ACCEPT, *found)
    app.close()


@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_calls_end_in_their_time_without_a_broker(node: FaultyNode, mode: str) -> None:
    """The acknowledgements have Kafka's error: TimeoutException."""
    reading = Reading(node, 1, mode)
    app = reading.app("first")
    while not (found := app.poll(500)):
        pass
    app.client.is_cut = True
    if mode == "explicit":
        app.acknowledge(ACCEPT, *found)
    began_ms = node.now_ms
    (error,) = app.commit().values()
    assert isinstance(error, KafkaTimeoutError) and node.now_ms - began_ms <= 5000
    began_ms = node.now_ms
    assert app.poll(3000) == [] and node.now_ms - began_ms <= 3000
    app.close()
    assert node.now_ms - began_ms <= 3000 + 2 * SHORT_TIMEOUTS["request_timeout_ms"]
