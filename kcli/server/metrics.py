"""What a broker counts: plain integers on slotted objects, so that counting costs a few nanoseconds.

They are read when somebody asks for them, and get Kafka's names only then.
"""

from __future__ import annotations


class TopicMetrics:
    """BrokerTopicMetrics of one topic (or, summed up, of all)."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetch_requests",
        "failed_produce_requests",
        "messages_in",
        "total_fetch_requests",
        "total_produce_requests",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.failed_fetch_requests = 0
        self.failed_produce_requests = 0
        self.messages_in = 0
        self.total_fetch_requests = 0
        self.total_produce_requests = 0


class BrokerMetrics:
    """All that a broker counts. `topics` is by name, `requests` by API key and version."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicMetrics] = {}
        self.requests: dict[tuple[int, int], int] = {}

    def topic(self, name: str) -> TopicMetrics:
        """The counters of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicMetrics()
        return found

    def forget_topic(self, name: str) -> None:
        """A topic is gone, and what was counted of it."""
        self.topics.pop(name, None)

    def request(self, api_key: int, version: int) -> None:
        """Count a request."""
        key = (api_key, version)
        self.requests[key] = self.requests.get(key, 0) + 1
