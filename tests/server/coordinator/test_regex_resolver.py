"""Protects the patterns of consumer groups: their topics are found in time slices, and no result is lost."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.protocol import error_codes
from kcli.server.coordinator.group import regex_resolver
from kcli.server.coordinator.group.metadata_hash import TopicHashes
from kcli.server.coordinator.operation import CoordinatorError
from tests.server.coordinator.test_consumer_groups import Groups

COUNT = 2_000
RETRY_MS = 10_000


@pytest.fixture
def groups() -> Groups:
    """Groups of a cluster with topics of one partition each."""
    made = Groups("group.consumer.assignment.interval.ms=0")
    for at in range(COUNT):
        made.set_topic(f"topic-{at}", 1)
    return made


def join(groups: Groups, member_id: str = "m1", regex: str = "topic-.*", **fields: Any) -> int:
    """Join with a pattern -> the member's epoch."""
    return groups.heartbeat(member_id, topic_names=[], topic_regex=regex, **fields).member_epoch


def test_a_heartbeat_does_not_wait_for_its_pattern(groups: Groups) -> None:
    """10 s in the life of a group: 2,000 names are matched in slices, which other events come between."""
    epoch = join(groups)
    slices = 0
    while not groups.group().resolved_regexes:
        assert groups.heartbeat("m1", epoch).member_epoch == epoch
        groups.timer.advance(groups.timer.clock_ms)
        slices += 1
    assert slices > 10
    assert groups.group().resolved_regexes == {"topic-.*": sorted(f"topic-{at}" for at in range(COUNT))}
    assert groups.kinds() == ["16", "3"]
    result = groups.heartbeat("m1", epoch)
    assert result.assignment is not None and len(result.assignment) == COUNT
    assert groups.metrics.consumer_rebalances == 2


def test_a_refused_pattern_begins_nothing(groups: Groups) -> None:
    with pytest.raises(CoordinatorError) as caught:
        join(groups, regex="((")
    assert caught.value.code == error_codes.INVALID_REGULAR_EXPRESSION
    assert not groups.manager._resolver._running


def test_only_topics_that_the_client_may_describe(groups: Groups) -> None:
    join(groups, regex="topic-1.?", may_describe=lambda name: name != "topic-12")
    groups.settle()
    names = ["topic-1", *(f"topic-1{at}" for at in range(10) if at != 2)]
    assert groups.group().resolved_regexes == {"topic-1.?": names}


def test_a_pattern_that_matches_nothing_and_one_that_is_replaced(groups: Groups) -> None:
    """The group epoch begins when the new pattern is resolved; the record of the old one is removed."""
    join(groups, regex="topic-7")
    groups.settle()
    epoch = groups.heartbeat("m1", 2).member_epoch
    groups.heartbeat("m1", epoch, topic_regex="no.*", owned={})
    assert groups.kinds()[:2] == ["5", "-16"] and "3" not in groups.kinds()
    groups.settle()
    assert groups.kinds() == ["16", "3"]
    assert groups.group().resolved_regexes == {"no.*": []}


def test_a_second_pattern_is_resolved_by_another_task(groups: Groups) -> None:
    """It comes while the first task runs; a known pattern begins a group epoch at once."""
    join(groups, "m1", "topic-1")
    groups.timer.advance(groups.timer.clock_ms)
    assert not groups.group().resolved_regexes
    join(groups, "m2", "topic-2")
    groups.settle()
    assert groups.group().resolved_regexes == {"topic-1": ["topic-1"]}
    epoch = groups.group().group_epoch
    groups.heartbeat("m1", groups.group().members["m1"].member_epoch, owned={})
    groups.settle()
    assert groups.group().resolved_regexes == {"topic-1": ["topic-1"], "topic-2": ["topic-2"]}
    assert groups.group().group_epoch == epoch + 1
    join(groups, "m3", "topic-2")
    assert groups.group().group_epoch == epoch + 2
    groups.settle()


def test_a_result_that_cannot_be_written_is_found_again_after_10_s(groups: Groups) -> None:
    epoch = join(groups, regex="topic-1")
    groups.fails = True
    groups.settle()
    groups.fails = False
    for second in range(RETRY_MS // 1000):
        groups.heartbeat("m1", epoch)
        groups.settle()
        assert not groups.group().resolved_regexes, second
        groups.advance(1_000)
    groups.heartbeat("m1", epoch)
    groups.settle()
    assert groups.group().resolved_regexes == {"topic-1": ["topic-1"]}


def test_a_task_that_fails_is_reported(groups: Groups) -> None:
    def fails(name: str) -> bool:
        raise ValueError("a fault")

    epoch = join(groups, may_describe=fails)
    groups.settle()
    assert "a fault" in groups.lines[-1] and "resolving the patterns of group" in groups.lines[-1]
    groups.set_topic("topic-new", 1)
    groups.advance(RETRY_MS)
    groups.heartbeat("m1", epoch)
    groups.settle()
    assert len(groups.group().resolved_regexes["topic-.*"]) == COUNT + 1


def test_heartbeats_until_the_next_task_do_not_hash_the_topics_again(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    join(groups)
    groups.settle()
    epoch = groups.heartbeat("m1", 2).member_epoch
    hashed: list[Any] = []
    group_hash = TopicHashes.group_hash
    monkeypatch.setattr(TopicHashes, "group_hash", lambda self, names: hashed.append(names) or group_hash(self, names))
    groups.set_topic("other", 1)
    for _ in range(5):
        groups.heartbeat("m1", epoch)
    assert len(hashed) == 1


def test_a_shard_that_is_unloaded_drops_its_tasks(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    join(groups, "m1")
    groups.timer.advance(groups.timer.clock_ms)
    log = len(groups.log)
    groups.manager.unloaded()
    groups.settle()
    assert len(groups.log) == log
    monkeypatch.setattr(regex_resolver, "compile_regex", None)
    groups.manager._resolver.begin("group", ["a"], bool)
    groups.settle()


def test_the_next_coordinator_resolves_what_the_last_one_has_not(groups: Groups) -> None:
    epoch = join(groups, regex="topic-1")
    groups.reload()
    groups.heartbeat("m1", epoch)
    groups.settle()
    assert groups.group().resolved_regexes == {"topic-1": ["topic-1"]}


def test_a_deleted_group_has_no_result(groups: Groups) -> None:
    join(groups, regex="topic-1")
    groups.timer.advance(groups.timer.clock_ms)
    groups.heartbeat("m1", -1)
    del groups.state.groups["group"]
    log = len(groups.log)
    groups.settle()
    assert len(groups.log) == log and not groups.manager._resolver._refreshes
