"""The counters of a broker and of its listeners: plain integers on slotted objects, so that counting takes nanoseconds.

They get Kafka's names only when the metrics are scraped (server/shell/metrics_collector). Errors in responses are counted as in
Kafka: each error_code of a response, of the whole and of its parts, 0 included. The places of the codes in a response are
looked up once for each API, in its declaration. Produce and Fetch are not counted: scanning their responses would cost each
request more than a microsecond, and their errors are counted by topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from operator import attrgetter
from typing import Any

from kcli.protocol.apis import API_KEYS, FETCH, PRODUCE
from kcli.protocol.error_codes import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE
from kcli.protocol.message import Message
from kcli.protocol.schema import Struct

NOT_COUNTED = (PRODUCE, FETCH)


class ErrorCounts:
    """The number of errors in responses: `counts` is by API key and error code."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}

    def count(self, api_key: int, response: Message) -> None:
        """Count the errors of a response."""
        if api_key not in NOT_COUNTED:
            self.add(api_key, error_codes_in(api_key, response))

    def add(self, api_key: int, codes: Mapping[int, int]) -> None:
        """Add the numbers of errors by code."""
        counts = self.counts
        for code, number in codes.items():
            counts[api_key, code] = counts.get((api_key, code), 0) + number


def error_codes_in(api_key: int, response: Message) -> dict[int, int]:
    """Return the number of each error code in a response."""
    found: dict[int, int] = {}
    for path in code_paths(api_key):
        for holder in _holders([response], path):
            code = holder.error_code
            found[code] = found.get(code, 0) + 1
    return found


@cache
def code_paths(api_key: int) -> tuple[tuple[str, ...], ...]:
    """Return the attributes that lead from an API's response to its structs with an error_code; () is the response itself."""
    return tuple(_paths(API_KEYS[api_key].response.schema.root))


def _paths(struct: Struct) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for field in struct.fields:
        if field.attribute == "error_code":
            found.append(())
        elif field.type.struct is not None:
            found += [(field.attribute, *path) for path in _paths(field.type.struct)]
    return found


def _holders(values: list[Any], path: tuple[str, ...]) -> list[Any]:
    for attribute in path:
        inner: list[Any] = []
        for value in values:
            held = getattr(value, attribute)
            if isinstance(held, list):
                inner += held
            elif held is not None:
                inner.append(held)
        values = inner
    return values


class TopicMetrics:
    """BrokerTopicMetrics of one topic, or the sum of several."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "failed_share_acknowledgement_requests",
        "failed_share_fetch_requests",
        "invalid_message_crc_records",
        "messages_in",
        "total_fetch_requests",
        "total_produce_requests",
        "total_share_acknowledgement_requests",
        "total_share_fetch_requests",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.failed_fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_share_acknowledgement_requests = 0
        self.failed_share_fetch_requests = 0
        self.invalid_message_crc_records = 0
        self.messages_in = 0
        self.total_fetch_requests = 0
        self.total_produce_requests = 0
        self.total_share_acknowledgement_requests = 0
        self.total_share_fetch_requests = 0

    def counts(self) -> tuple[int, ...]:
        """Return the counters in the order of TOPIC_COUNTS."""
        return _counts_of(self)

    def add(self, counts: tuple[int, ...]) -> None:
        """Add the counters of another topic."""
        for name, count in zip(TOPIC_COUNTS, counts):
            setattr(self, name, getattr(self, name) + count)

    def append_refused(self, error_code: int, size_bytes: int) -> None:
        """Count a refused append."""
        self.failed_produce_requests += 1
        if error_code in (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE):
            self.bytes_rejected += size_bytes
        elif error_code == CORRUPT_MESSAGE:
            self.invalid_message_crc_records += 1


TOPIC_COUNTS = TopicMetrics.__slots__
_counts_of = attrgetter(*TOPIC_COUNTS)


class ListenerMetrics:
    """The counters of the connections of one listener."""

    __slots__ = ("closed", "created", "expired", "incoming_bytes", "outgoing_bytes")

    def __init__(self) -> None:
        self.closed = 0
        self.created = 0
        self.expired = 0
        self.incoming_bytes = 0
        self.outgoing_bytes = 0


class BrokerMetrics:
    """The counters of a broker. `topics` is by name, `requests` by API key and version, `deleted` the sum of deleted topics.

    `share_acknowledgements` is by acknowledge type, `replication_bytes_in` what was copied from leaders, and
    `replication_bytes_out` what was sent to followers, which `bytes_out` of topics does not have.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetrics] = {}
        self.requests: dict[tuple[int, int], int] = {}
        self.errors = ErrorCounts()
        self.share_acknowledgements: Counter[int] = Counter()
        self.deleted = TopicMetrics()  # so that the sums of all topics never decrease
        self.replication_bytes_in = self.replication_bytes_out = 0

    def topic(self, name: str) -> TopicMetrics:
        """Return the counters of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMetrics()
        return found

    def forget_topic(self, name: str) -> None:
        """Drop the counters of a deleted topic; its counts remain in the sums."""
        found = self.topics.pop(name, None)
        if found is not None:
            self.deleted.add(found.counts())

    def request(self, api_key: int, version: int) -> None:
        """Count a request."""
        key = (api_key, version)
        self.requests[key] = self.requests.get(key, 0) + 1
