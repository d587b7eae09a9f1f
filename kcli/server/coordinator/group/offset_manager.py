"""Committed offsets of the groups of one partition of __consumer_offsets (Kafka: OffsetMetadataManager).

    operation   decides
    ----------  --------------------------------------------------------------------------------------------------------
    commit      an OffsetCommit record for each partition; metadata above offset.metadata.max.bytes: OFFSET_METADATA_TOO_LARGE
    fetch       reads only; with require_stable a partition with an offset of an open transaction: UNSTABLE_OFFSET_COMMIT;
                an offset that was committed with the id of another topic is not returned for a topic id
    delete      a tombstone for each partition that has an offset, committed or pending, unless the group is subscribed
    expire      a tombstone for each offset that is older than offsets.retention.minutes, and for groups that are then empty

    value of a record        version   fields that decide
    -----------------------  --------  --------------------------------------------------------------------------------
    with an expiry time      1         RetentionTimeMs of OffsetCommit 2 to 4
    any other                4         the topic's id is a tagged field; without an id the record has none

When an offset of a group expires:

    group                                                      age counts from
    ---------------------------------------------------------  ----------------------------------------------------------
    any, the record has an expiry time                         expires at that time
    no protocol type (a consumer that assigns for itself)      the commit
    classic, empty                                             the time at which the group became empty; the commit if
                                                               the group's record does not have that time (version 0, 1)
    consumer; classic with consumers, stable                   the commit, of topics that no member is subscribed to
    anything else                                              never
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from kcli.format.java_text import java_length
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.state.group_state import GroupState, OffsetKey
from kcli.state.groups import CommittedOffset

NO_RETENTION_TIME = -1
NO_OFFSET = -1
_WITH_EXPIRY_VERSION = 1
_VERSION = 4


class OffsetToCommit(NamedTuple):
    """One partition of an OffsetCommit or TxnOffsetCommit; `metadata` may be None for null."""

    topic: str
    topic_id: Uuid
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


class FetchedOffset(NamedTuple):
    """One partition of an OffsetFetch's answer; `offset` is -1 if there is none."""

    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error_code: int = error_codes.NONE


class ExpiryRule(NamedTuple):
    """Which offsets of a group may expire: those of topics outside of `subscribed`.

    `base_ms` returns the time from which the age of an offset counts, by the time of its commit; None: it does not expire.
    """

    subscribed: frozenset[str]
    base_ms: Callable[[int], int | None] = lambda commit_timestamp_ms: commit_timestamp_ms


def offset_commit_record(
    group_id: str, commit: OffsetToCommit, now_ms: int, expire_ms: int, producer_id: int
) -> CoordinatorRecord:
    """Return the record of a committed offset; `expire_ms` is -1 without an expiry time."""
    value = message_type("group_records", "OffsetCommitValue").new(
        schema_version=_VERSION if expire_ms < 0 else _WITH_EXPIRY_VERSION,
        offset=commit.offset,
        leader_epoch=commit.leader_epoch,
        metadata=commit.metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_ms,
        topic_id=commit.topic_id,
    )
    return CoordinatorRecord(_key(group_id, commit.topic, commit.partition), value, producer_id)


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """Return the record that deletes a committed offset."""
    return CoordinatorRecord(_key(group_id, topic, partition), None)


def _key(group_id: str, topic: str, partition: int) -> Message:
    return message_type("group_records", "OffsetCommitKey").new(group=group_id, topic=topic, partition=partition)


class OffsetManager:
    """The offsets in `state`; times are in ms on the wall clock.

    `max_metadata_chars` is offset.metadata.max.bytes, which Kafka compares with the length of a Java string.
    """

    def __init__(self, state: GroupState, max_metadata_chars: Callable[[], int], retention_ms: Callable[[], int]) -> None:
        self._state = state
        self._max_metadata_chars = max_metadata_chars
        self._retention_ms = retention_ms

    def commit(
        self, group_id: str, commits: Iterable[OffsetToCommit], retention_ms: int, now_ms: int, producer_id: int
    ) -> tuple[list[int], list[CoordinatorRecord]]:
        """Return an error code for each partition, and the records; `retention_ms` is -1 for the broker's setting."""
        codes, records = [], []
        limit = self._max_metadata_chars()
        expire_ms = -1 if retention_ms == NO_RETENTION_TIME else now_ms + retention_ms
        for commit in commits:
            if commit.metadata is not None and java_length(commit.metadata) > limit:
                codes.append(error_codes.OFFSET_METADATA_TOO_LARGE)
            else:
                codes.append(error_codes.NONE)
                records.append(offset_commit_record(group_id, commit, now_ms, expire_ms, producer_id))
        return codes, records

    def fetch(
        self, group_id: str, topic: str, topic_id: Uuid, partitions: Iterable[int], require_stable: bool
    ) -> list[FetchedOffset]:
        """Return the offsets of partitions of a topic; those that were committed with the id of another topic are left out.

        `topic_id` is zero if the client has named the topic only.
        """
        return [self._fetch_one(group_id, topic, topic_id, partition, require_stable) for partition in partitions]

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[str, list[FetchedOffset]]:
        """Return all committed offsets of a group, by topic."""
        found: dict[str, list[FetchedOffset]] = {}
        for topic, partition in self._state.offsets_by_group.get(group_id, ()):
            found.setdefault(topic, []).append(self._fetch_one(group_id, topic, ZERO_UUID, partition, require_stable))
        return found

    def _fetch_one(self, group_id: str, topic: str, topic_id: Uuid, partition: int, require_stable: bool) -> FetchedOffset:
        state = self._state
        if require_stable and state.pending_offsets and state.is_pending(group_id, topic, partition):
            return FetchedOffset(partition, error_code=error_codes.UNSTABLE_OFFSET_COMMIT)
        found = state.committed_offset(group_id, topic, partition)
        if found is None or (ZERO_UUID not in (topic_id, found.topic_id) and topic_id != found.topic_id):
            return FetchedOffset(partition)
        return FetchedOffset(partition, found.offset, found.leader_epoch, found.metadata)

    def topic_id(self, group_id: str, topic: str, partition: int) -> Uuid:
        """Return the topic id that a committed offset was committed with, zero if none."""
        found = self._state.committed_offset(group_id, topic, partition)
        return ZERO_UUID if found is None else found.topic_id

    def delete(self, group_id: str, topic: str, partition: int) -> list[CoordinatorRecord]:
        """Return the tombstone of an offset that is committed or pending, nothing for any other."""
        state = self._state
        if state.committed_offset(group_id, topic, partition) is None and not state.is_pending(group_id, topic, partition):
            return []
        return [offset_tombstone(group_id, topic, partition)]

    def delete_all(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the tombstones of all offsets of a group, pending ones as well."""
        state = self._state
        names = dict.fromkeys((*state.offsets_by_group.get(group_id, ()), *state.pending_producers.get(group_id, ())))
        return [offset_tombstone(group_id, topic, partition) for topic, partition in names]

    def of_topic(self, topic: str, later_id: Uuid | None) -> dict[OffsetKey, CommittedOffset | None]:
        """Return the committed offsets of a deleted topic and of all earlier topics of its name, None for those only pending.

        An offset that was committed with the id of a later topic of that name is not among them; `later_id` is None if there
        is none.
        """
        state = self._state
        found: dict[OffsetKey, CommittedOffset | None] = {
            OffsetKey(group_id, *where): offset
            for group_id, offsets in state.offsets_by_group.items()
            for where, offset in offsets.items()
            if where[0] == topic and offset.topic_id != later_id
        }
        for pending in state.pending_offsets.values():
            for key, offset in pending.items():
                if key.topic == topic and offset.topic_id != later_id:
                    found.setdefault(key, None)
        return found

    def delete_unchanged(self, found: Iterable[tuple[OffsetKey, CommittedOffset | None]]) -> list[CoordinatorRecord]:
        """Return the tombstones of offsets of a deleted topic, but of those that were committed again since `of_topic`."""
        return [offset_tombstone(*key) for key, offset in found if self._state.committed_offset(*key) is offset]

    def expire(self, group_id: str, rule: ExpiryRule | None, now_ms: int, most: int) -> tuple[list[CoordinatorRecord], bool]:
        """Return the tombstones of a group's expired offsets, and whether the group then has no offset or open transaction.

        Without a rule nothing expires; `most` offsets do at most.
        """
        state = self._state
        offsets = state.offsets_by_group.get(group_id)
        if offsets is None:
            return [], not state.has_open_transaction(group_id)
        if rule is None:
            return [], False
        expired = (
            offset_tombstone(group_id, topic, partition)
            for (topic, partition), offset in offsets.items()
            if topic not in rule.subscribed
            and self._is_expired(offset, rule, now_ms)
            and not state.is_pending(group_id, topic, partition)
        )
        records = list(islice(expired, most))
        return records, len(records) == len(offsets) and not state.has_open_transaction(group_id)

    def _is_expired(self, offset: CommittedOffset, rule: ExpiryRule, now_ms: int) -> bool:
        if offset.expire_timestamp_ms >= 0:
            return now_ms >= offset.expire_timestamp_ms
        base_ms = rule.base_ms(offset.commit_timestamp_ms)
        return base_ms is not None and now_ms - base_ms >= self._retention_ms()
