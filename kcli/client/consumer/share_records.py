"""The records that a share consumer acquired: as they came in an answer to ShareFetch, and what is said of them.

acknowledgement  the record
---------------  ----------------------------------------------------------------------------------------------------------
ACCEPT           is processed
RELEASE          is delivered again, to any member
REJECT           is not delivered again: it cannot be processed
RENEW            stays with the member, whose lock begins again (KIP-1222)
GAP              does not exist: the log has none at the acquired offset

a record of an answer                  then
-------------------------------------  ------------------------------------------------------------------------------------
is not acquired                        is skipped
a deserializer refuses it              is released; the poll raises the error
cannot be read, or its batch           is rejected, up to the end of what is damaged; the poll raises the error
the poll is interrupted                is read again by the next poll, or released if it was taken before
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from kcli.client.consumer.completed_fetch import CompletedFetch
from kcli.client.consumer.consumer_record import ConsumerRecord, Headers
from kcli.client.errors import FetchedRecordError, RecordDeserializationError
from kcli.client.serializers import Deserializer
from kcli.format.primitives import TopicPartition
from kcli.format.record_scan import RecordColumns


class AcknowledgeType(IntEnum):
    """What is said of a record (Kafka: AcknowledgeType)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareRecord(NamedTuple):
    """A record of a share consumer; `delivery_count` counts the acquisitions of the record, this one included."""

    topic: str
    partition: int
    offset: int
    key: object
    value: object
    headers: Headers
    timestamp: int
    timestamp_type: int
    leader_epoch: int
    delivery_count: int


class Run(NamedTuple):
    """Offsets from `first` to `last` with one acknowledgement, or with the delivery count of their acquisition."""

    first: int
    last: int
    value: int


def runs_of(acknowledgements: Mapping[int, int], gaps: Iterable[Run] = ()) -> list[Run]:
    """Return the acknowledgements of one partition as runs in the order of their offsets."""
    runs: list[Run] = []
    for run in sorted([*(Run(offset, offset, kind) for offset, kind in acknowledgements.items()), *gaps]):
        if runs and runs[-1].value == run.value and runs[-1].last + 1 == run.first:
            runs[-1] = runs[-1]._replace(last=run.last)
        else:
            runs.append(run)
    return runs


class ShareFetched:
    """What is left of one answer for one partition; `gaps` and `refused` are to be acknowledged by the caller."""

    def __init__(
        self,
        partition: TopicPartition,
        topic_id: bytes,
        node_id: int,
        records: memoryview,
        acquired: Iterable[Run],
        columns: RecordColumns,
        checks_crcs: bool,
    ) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.node_id = node_id
        self.expires_ms: float = math.inf  # when the lock expires
        self.gaps: list[Run] = []
        self.refused: dict[int, int] = {}
        self._acquired = deque(sorted(acquired))
        self._records = records
        self._columns = columns
        self._checks_crcs = checks_crcs
        self._fetch = self._fetch_from(self._acquired[0].first if self._acquired else 0)

    def _fetch_from(self, offset: int) -> CompletedFetch:
        return CompletedFetch(*self.partition, self._records, offset, self._columns, checks_crcs=self._checks_crcs)

    @property
    def is_drained(self) -> bool:
        """Whether no acquired offset is left."""
        return not self._acquired

    def take(
        self, most: int, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
    ) -> list[ShareRecord]:
        """Return up to `most` records. Raises FetchedRecordError if the next one cannot be read."""
        taken: list[ShareRecord] = []
        while len(taken) < most and self._acquired:
            found: list[ConsumerRecord] = []
            try:
                self._fetch.take(found, most - len(taken), key_deserializer, value_deserializer)
            except FetchedRecordError as error:
                if taken:
                    break  # the fetch raises it again
                self._refuse(error)
                raise
            except BaseException as error:
                self._take_unexpected(error, found, taken)
                if not found:
                    break
            for record in found:
                count = self._reach(record.offset)
                if count is not None:
                    taken.append(_with_count(record, count))
            if not found:
                self.gaps += self._acquired
                self._acquired.clear()
        return taken

    def _take_unexpected(self, error: BaseException, found: list[ConsumerRecord], taken: list[ShareRecord]) -> None:
        """Read on at the record at which reading has failed: what the fetch has left out would look like a gap.

        Raises FetchedRecordError if there are no records before it. An error that the record did not cause, such as an
        interruption, is raised unchanged; the records before it are read again, or released.
        """
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            self._fetch = self._fetch_from(self._acquired[0].first)
            self.refused |= dict.fromkeys((one.offset for one in taken), int(AcknowledgeType.RELEASE))
            raise error
        offset = self._fetch.next_offset
        self._fetch = self._fetch_from(offset)
        if not found and not taken:
            reason = f"the record cannot be read: {type(error).__name__}: {error}"
            failure = FetchedRecordError(*self.partition, offset, offset + 1, reason)
            self._refuse(failure)
            raise failure from error

    def _reach(self, offset: int) -> int | None:
        """Return the delivery count of an offset, None if it is not acquired; what was passed over are gaps."""
        while self._acquired and self._acquired[0].last < offset:
            run = self._acquired.popleft()
            self.gaps.append(run)
        if not self._acquired or offset < self._acquired[0].first:
            return None
        run = self._acquired[0]
        if run.first < offset:
            self.gaps.append(run._replace(last=offset - 1))
        if offset == run.last:
            self._acquired.popleft()
        else:
            self._acquired[0] = run._replace(first=offset + 1)
        return run.value

    def _refuse(self, error: FetchedRecordError) -> None:
        """Acknowledge what cannot be read, and continue behind it."""
        is_readable = isinstance(error, RecordDeserializationError)
        kind = AcknowledgeType.RELEASE if is_readable else AcknowledgeType.REJECT
        end = max(error.next_offset, error.offset + 1)
        for offset in range(error.offset, end):
            if self._reach(offset) is not None:
                self.refused[offset] = kind
        self._fetch = self._fetch_from(end)

    def take_gaps(self) -> Iterator[Run]:
        """Yield the gaps since the last call."""
        gaps, self.gaps = self.gaps, []
        return (run._replace(value=int(AcknowledgeType.GAP)) for run in gaps)

    def take_refused(self) -> dict[int, int]:
        """Return the acknowledgements of what could not be read since the last call."""
        refused, self.refused = self.refused, {}
        return refused


def _with_count(record: ConsumerRecord, delivery_count: int) -> ShareRecord:
    return ShareRecord(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        record.value,
        record.headers,
        record.timestamp,
        record.timestamp_type,
        record.leader_epoch,
        delivery_count,
    )
