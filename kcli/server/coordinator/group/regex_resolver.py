"""Finds the topics that match the patterns of consumer groups, in time slices (Kafka: refreshRegularExpressions).

A pattern costs 15 us for each topic of the cluster, 150 ms for 10,000 topics, so a heartbeat does not wait for it. The manager
of the groups writes the result by an operation of its own.

A group has one task at a time, for all of its patterns. The next one begins when

    reason                                                          not before
    --------------------------------------------------------------  --------------------------------------------------------
    a member has a pattern that is not resolved                     -
    the result of the last task could not be written                10 s after the last task
    topics have changed                                             10 s after the last task
    group.consumer.regex.refresh.interval.ms is over                (at least 10 s)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from heapq import merge
from typing import NamedTuple

from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.log_lines import fault_line
from kcli.server.metadata_cache import MetadataCache
from kcli.server.scheduler import Scheduler, SliceBudget

MIN_REFRESH_MS = 10_000
_NO_VERSION = -1  # of topics: older than any
_MATCH_US = 15  # of one name and one pattern, with the authorization
_HASH_US = 10
_MERGE_US = 2


class ResolvedRegexes(NamedTuple):
    """The sorted topics of each pattern, and the offset of the metadata that they were found in."""

    topics: dict[str, list[str]]
    metadata_offset: int


class _Refresh(NamedTuple):
    """The last task of a group: the topics_version that it began with, and the node's time of its end."""

    topics_version: int
    at_ms: int


class RegexResolver:
    """The tasks of the groups of one shard. `write(group_id, resolved)` writes a result."""

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        hashes: TopicHashes,
        timer: Timer,
        scheduler: Scheduler,
        write: Callable[[str, ResolvedRegexes], None],
        report: Callable[[str], None],
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._hashes = hashes
        self._timer = timer
        self._scheduler = scheduler
        self._write = write
        self._report = report
        self._running: dict[str, None] = {}
        self._refreshes: dict[str, _Refresh] = {}
        self._is_closed = False

    def close(self) -> None:
        """End the tasks without a result."""
        self._is_closed = True
        self._refreshes.clear()

    def forget(self, group_id: str) -> None:
        """Forget a group that is deleted."""
        self._refreshes.pop(group_id, None)

    def is_due(self, group_id: str) -> bool:
        """Return whether a task for the patterns of a group, none of which is new, is to begin."""
        if group_id in self._running:
            return False
        last = self._refreshes.get(group_id)
        if last is None:
            return True
        age_ms = self._timer.clock_ms - last.at_ms
        if age_ms < MIN_REFRESH_MS:
            return False
        interval_ms = self._config.get_int("group.consumer.regex.refresh.interval.ms")
        return last.topics_version != self._metadata.topics_version or age_ms >= interval_ms

    def refresh_again(self, group_id: str, *, at_once: bool) -> None:
        """Let the patterns of a group be due again: at once, or 10 s after the last task."""
        if at_once or group_id not in self._refreshes:
            self.forget(group_id)
        else:
            self._refreshes[group_id] = self._refreshes[group_id]._replace(topics_version=_NO_VERSION)

    def begin(self, group_id: str, regexes: Collection[str], may_describe: Callable[[str], bool]) -> None:
        """Resolve the patterns of a group after the present operation, unless a task of the group runs already."""
        if group_id not in self._running:
            self._running[group_id] = None
            self._timer.schedule(self._timer.clock_ms, partial(self._run, group_id, tuple(regexes), may_describe))

    def _run(self, group_id: str, regexes: tuple[str, ...], may_describe: Callable[[str], bool], now_ms: int) -> None:
        if self._is_closed:
            return
        version = self._metadata.topics_version
        resolved = ResolvedRegexes({}, self._metadata.offset)

        def done(now_ms: int) -> None:
            self._end(group_id, version)
            if not self._is_closed:
                self._write(group_id, resolved)

        def failed(error: Exception) -> None:
            self._end(group_id, version)
            self._report(fault_line(f"resolving the patterns of group {group_id}", error))

        self._scheduler.run(self._work(regexes, may_describe, resolved.topics), now_ms, done, failed)

    def _end(self, group_id: str, version: int) -> None:
        del self._running[group_id]
        if not self._is_closed:
            self._refreshes[group_id] = _Refresh(version, self._timer.clock_ms)

    def _work(
        self, regexes: tuple[str, ...], may_describe: Callable[[str], bool], into: dict[str, list[str]]
    ) -> Iterator[None]:
        """Find the topics of patterns, and hash these topics; yield after each time slice."""
        budget = SliceBudget()
        names = tuple(self._metadata.image.topic_ids)
        for regex in regexes:
            matches = compile_regex(regex)
            parts: list[list[str]] = [[]]  # one for each slice
            for name in names:
                if matches(name) and may_describe(name):
                    parts[-1].append(name)
                if budget.is_spent(_MATCH_US):
                    parts[-1].sort()
                    parts.append([])
                    yield
                    if self._is_closed:
                        return
            parts[-1].sort()
            found = []
            for name in merge(*parts):
                found.append(name)
                if budget.is_spent(_MERGE_US):
                    yield
            for name in found:
                if self._hashes.add(name) and budget.is_spent(_HASH_US):
                    yield
            into[regex] = found


def compile_regex(regex: str) -> Callable[[str], object]:
    """Return a function: whether a topic's name matches a pattern of RE2's syntax. Raises CoordinatorError."""
    import re2  # 50 ms, which only brokers with such groups spend

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options).fullmatch  # type: ignore[no-any-return]
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        text = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {reason}."
        raise CoordinatorError(error_codes.INVALID_REGULAR_EXPRESSION, text) from error
