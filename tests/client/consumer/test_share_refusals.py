"""Protects: whichever error code a broker answers to whichever request of a share consumer, each record is accepted in the end,
none is delivered again after its acceptance succeeded, and the application gets the errors that stay.

The broker is a whole node of kcli in virtual time; in each run another request meets the code (tests.client.refusing_node).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.share_records import AcknowledgeType, ShareRecord
from kcli.client.errors import ClientError, KafkaError
from kcli.protocol import apis
from kcli.protocol import error_codes as codes
from tests.client.consumer.test_share_consumer import ACCEPT, RELEASE, RENEW, SHARE_SETTINGS, ShareApp
from tests.client.consumer.test_share_faults import LOCK_MS, RECORDS, WITHIN_MS, Reading, check_what_is_left
from tests.client.refusing_node import OF_METADATA, Refusal, RefusingNode, each_of, refusals_of

pytestmark = pytest.mark.ci  # minutes of CPU time together

MOVED = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
OF_LEADERS = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.LEADER_NOT_AVAILABLE,
    codes.KAFKA_STORAGE_ERROR,
    codes.FENCED_LEADER_EPOCH,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
    codes.UNKNOWN_TOPIC_ID,
)
OF_SESSIONS = (codes.SHARE_SESSION_NOT_FOUND, codes.INVALID_SHARE_SESSION_EPOCH, codes.SHARE_SESSION_LIMIT_REACHED)
# The application sees nothing of these but results of acknowledgements.
PASSING = [
    *OF_METADATA,
    *refusals_of(apis.FIND_COORDINATOR, "Coordinator", *MOVED, codes.REQUEST_TIMED_OUT),
    *refusals_of(apis.SHARE_GROUP_HEARTBEAT, "", *MOVED, codes.FENCED_MEMBER_EPOCH, codes.UNKNOWN_MEMBER_ID),
    *refusals_of(apis.SHARE_GROUP_HEARTBEAT, "", *MOVED, codes.UNKNOWN_MEMBER_ID, is_executed=True),
    *refusals_of(apis.SHARE_FETCH, "", *OF_SESSIONS, codes.NOT_COORDINATOR, codes.COORDINATOR_LOAD_IN_PROGRESS),
    *refusals_of(
        apis.SHARE_FETCH,
        "PartitionData",
        *OF_LEADERS,
        codes.NOT_COORDINATOR,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(apis.SHARE_ACKNOWLEDGE, "", *OF_SESSIONS, codes.NOT_COORDINATOR),
    *refusals_of(apis.SHARE_ACKNOWLEDGE, "PartitionData", *OF_LEADERS, codes.INVALID_RECORD_STATE, codes.NOT_COORDINATOR),
    *refusals_of(apis.SHARE_ACKNOWLEDGE, "PartitionData", codes.REQUEST_TIMED_OUT, is_executed=True),
]
# A poll raises them; that of a heartbeat stays.
RAISED = [
    *refusals_of(apis.METADATA, "MetadataResponseTopic", codes.TOPIC_AUTHORIZATION_FAILED),
    *refusals_of(apis.FIND_COORDINATOR, "Coordinator", codes.GROUP_AUTHORIZATION_FAILED),
    *refusals_of(
        apis.SHARE_GROUP_HEARTBEAT,
        "",
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.INVALID_REQUEST,
        codes.GROUP_MAX_SIZE_REACHED,
        codes.UNSUPPORTED_VERSION,
        codes.UNKNOWN_SERVER_ERROR,
    ),
    *refusals_of(apis.SHARE_FETCH, "", codes.GROUP_AUTHORIZATION_FAILED, codes.INVALID_REQUEST, codes.UNKNOWN_SERVER_ERROR),
    *refusals_of(apis.SHARE_FETCH, "PartitionData", codes.TOPIC_AUTHORIZATION_FAILED, codes.CORRUPT_MESSAGE),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RefusingNode]:
    node = RefusingNode(
        tmp_path,
        *SHARE_SETTINGS,
        "group.share.min.record.lock.duration.ms=1000",
        f"group.share.record.lock.duration.ms={LOCK_MS}",
        "group.share.delivery.count.limit=10",
    )
    yield node
    node.clients.clear()
    node.stop()


class Refused(Reading):
    """What became of the records of one run; `raised` counts the errors of polls, `failed` the failed acknowledgements."""

    def __init__(self, node: RefusingNode, run: int, mode: str, refusal: Refusal) -> None:
        super().__init__(node, run, mode)
        self.refusal = refusal
        self.raised = self.failed = self.parts = 0

    def read(self, acts: bool) -> None:
        """Read until all records are accepted; after an error that stays, as another member."""
        app = self.app("m0")
        end_ms = self.node.now_ms + WITHIN_MS
        tries: dict[int, int] = {}
        while not self.is_over:
            assert self.node.now_ms < end_ms, (self.ended, self.unsure)
            kinds: dict[int, AcknowledgeType] = {}
            for record in self.poll_or_error(app):
                count = tries[record.offset] = tries.get(record.offset, 0) + 1
                kinds[record.offset] = {1: RELEASE, 2: RENEW}.get(count, ACCEPT) if acts else ACCEPT
                if self.mode == "explicit":
                    app.acknowledge(kinds[record.offset], record)
            if self.mode == "explicit":
                app.commit()
            self.take(app, kinds)
            if app.core.membership._fatal is not None:
                app.close()
                self.take(app, {})
                self.parts += 1
                app = self.app(f"m{self.parts}")
        app.close()
        self.take(app, {})
        with self.node.undisturbed():
            check_what_is_left(self)

    def poll_or_error(self, app: ShareApp) -> list[ShareRecord]:
        try:
            return self.poll(app)
        except ClientError as error:
            assert codes.NAMES[self.refusal.code] in str(error), error
            self.raised += 1
            self.node.advance(100)
            return []

    def check_code(self, code: int) -> None:
        """Check that an acknowledgement has failed for the reason of this run, or for what follows from it."""
        assert code in (self.refusal.code, codes.INVALID_RECORD_STATE, *OF_SESSIONS), codes.NAMES[code]

    def take(self, app: ShareApp, kinds: dict[int, AcknowledgeType]) -> None:
        """Take the results of acknowledgements; what the broker has refused is not applied, unless it was executed."""
        while app.core.results:
            result = app.core.results.popleft()
            accepted = {offset for offset in result.offsets if kinds.get(offset, ACCEPT) is ACCEPT}
            if result.error is None:
                self.ended |= accepted
                continue
            assert isinstance(result.error, KafkaError), result.error
            self.check_code(result.error.code)
            self.failed += 1
            if self.refusal.is_executed or (self.refusal.api_key == apis.SHARE_FETCH and self.refusal.struct):
                self.unsure |= accepted


@each_of(PASSING)
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_the_application_sees_no_error_that_passes(node: RefusingNode, refusal: Refusal, mode: str) -> None:
    for run in node.refusals(refusal):
        reading = Refused(node, run, mode, refusal)
        reading.read(acts=True)
        assert reading.raised == 0, run
        assert reading.ended | reading.unsure == set(range(RECORDS))
    assert run > 1 or (mode == "implicit" and refusal.api_key == apis.SHARE_ACKNOWLEDGE)


@each_of(RAISED)
@pytest.mark.parametrize("mode", ["explicit", "implicit"])
def test_a_poll_raises_an_error_that_stays(node: RefusingNode, refusal: Refusal, mode: str) -> None:
    for run in node.refusals(refusal):
        reading = Refused(node, run, mode, refusal)
        reading.read(acts=False)
        assert reading.raised > 0 or run > 1 or not node.is_refused
    assert run > 1
