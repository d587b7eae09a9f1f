"""What a broker counts: plain integers on slotted objects, so that counting costs a few nanoseconds.

They are read when somebody asks for them (kcli.server.metrics.collector), and get Kafka's names only then.
"""

from __future__ import annotations

from operator import attrgetter

from kcli.protocol.error_codes import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE
from kcli.server.metrics.answer_errors import AnswerErrors


class TopicMetrics:
    """BrokerTopicMetrics of one topic (or, summed up, of all)."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "invalid_message_crc_records",
        "messages_in",
        "total_fetch_requests",
        "total_produce_requests",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.failed_fetch_requests = 0
        self.failed_produce_requests = 0
        self.invalid_message_crc_records = 0
        self.messages_in = 0
        self.total_fetch_requests = 0
        self.total_produce_requests = 0

    def counts(self) -> tuple[int, ...]:
        """All of it, in the order of TOPIC_COUNTS."""
        return _counts_of(self)

    def add(self, counts: tuple[int, ...]) -> None:
        """Add what another one has counted."""
        for name, count in zip(TOPIC_COUNTS, counts):
            setattr(self, name, getattr(self, name) + count)

    def append_refused(self, error_code: int, size_bytes: int) -> None:
        """A producer's batches of a partition were refused."""
        self.failed_produce_requests += 1
        if error_code in (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE):
            self.bytes_rejected += size_bytes
        elif error_code == CORRUPT_MESSAGE:
            self.invalid_message_crc_records += 1


TOPIC_COUNTS = TopicMetrics.__slots__
_counts_of = attrgetter(*TOPIC_COUNTS)


class ListenerMetrics:
    """What the connections of one listener have come to."""

    __slots__ = ("closed", "created", "expired", "incoming_bytes", "outgoing_bytes")

    def __init__(self) -> None:
        self.closed = 0
        self.created = 0
        self.expired = 0
        self.incoming_bytes = 0
        self.outgoing_bytes = 0


class BrokerMetrics:
    """All that a broker counts. `topics` is by name, `requests` by API key and version."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetrics] = {}
        self.requests: dict[tuple[int, int], int] = {}
        self.errors = AnswerErrors()
        self._gone = TopicMetrics()  # of topics that are no more: what was counted of all topics only grows

    def topic(self, name: str) -> TopicMetrics:
        """The counters of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMetrics()
        return found

    @property
    def gone(self) -> TopicMetrics:
        """What was counted of topics that are no more."""
        return self._gone

    def forget_topic(self, name: str) -> None:
        """A topic is gone, and what was counted of it, but not from the sums."""
        found = self.topics.pop(name, None)
        if found is not None:
            self._gone.add(found.counts())

    def request(self, api_key: int, version: int) -> None:
        """Count a request."""
        key = (api_key, version)
        self.requests[key] = self.requests.get(key, 0) + 1
