"""Which records of a replay the target has above the saved progress: those of its producer id, found by the batches' headers.

The target's log is read from the saved target offset on; that is what was sent since the progress was saved last, some seconds
at most. Batches of other producers are passed over.

A log that ends below the saved target offset has lost records (a lost disk, an unclean election), and the run ends.

If that part of the log was deleted (retention), the leader's state of the producer has the last sequence (DescribeProducers);
if that has expired too, the run ends: it is not known what was sent.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.client.admin.operation import value_of
from kcli.client.admin.partitions import describe_producers
from kcli.client.errors import KafkaError
from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import RecordBatch
from kcli.replay.fetching import OffsetOutOfRangeError, batches_in, fetch_some
from kcli.replay.outgoing_batch import SEQUENCES
from kcli.replay.progress import PartitionProgress
from kcli.replay.source import TopicPartition
from kcli.replay.steps import RESTART, ReplayError, Steps, execute

UNKNOWN_OFFSET = -1
# The largest number of records that were sent since the progress was saved; sequences are compared modulo 2**31.
MOST_UNSAVED = 2**30


class FoundBatch(NamedTuple):
    """A batch of the replay that the target has; `base_offset` is UNKNOWN_OFFSET if only its sequence is known."""

    sequence: int
    record_count: int
    base_offset: int


class Found(NamedTuple):
    """The batches of the replay after the saved progress, or, without them, the number of their records."""

    batches: list[FoundBatch]
    records: int = 0


def find_sent(network: NetworkClient, where: TopicPartition, progress: PartitionProgress, end_offset: int) -> Steps[Found]:
    """Return what the target has above the saved progress, below `end_offset`. Raises ReplayError, KafkaError."""
    offset = progress.target_offset
    if end_offset < offset:
        raise truncated(where, end_offset, offset)
    found: list[FoundBatch] = []
    try:
        while offset < end_offset:
            fetched = yield from fetch_some(network, *where, offset)
            next_offset = fetched.skip_missing(offset)
            for batch in batches_in(fetched.records, offset):
                header = batch.header
                next_offset = header.last_offset + 1
                if isinstance(header, RecordBatch) and header.producer_id == progress.producer_id and not header.is_control:
                    count = header.last_offset_delta + 1
                    found.append(FoundBatch(header.base_sequence, count, header.base_offset))
            if next_offset == offset:
                raise truncated(where, offset, end_offset)
            offset = next_offset
    except OffsetOutOfRangeError:
        records = yield from _count_by_sequence(where, progress)
        return Found([], records)
    return Found(found)


def truncated(where: TopicPartition, end_offset: int, expected: int) -> ReplayError:
    """Return the error of a target that has lost records."""
    return ReplayError(
        f"{where[0]}-{where[1]}: the target's log ends at {end_offset}, but the records up to {expected} were "
        f"acknowledged: it was truncated; {RESTART}"
    )


def _count_by_sequence(where: TopicPartition, progress: PartitionProgress) -> Steps[int]:
    topic, partition = where
    outcome = (yield from execute(describe_producers([where])))[where]
    if isinstance(outcome, KafkaError):
        raise KafkaError(outcome.code, f"the producers of {topic}-{partition}")
    for producer in value_of(outcome):
        if producer.producer_id == progress.producer_id:
            count = int(producer.last_sequence + 1 - progress.records) % SEQUENCES
            if count <= MOST_UNSAVED:
                return count
            raise ReplayError(
                f"{topic}-{partition}: the target has fewer records of the replay (last sequence {producer.last_sequence}) "
                f"than the {progress.records} of the progress; {RESTART}"
            )
    raise ReplayError(
        f"{topic}-{partition}: the target has deleted records from offset {progress.target_offset} on, and it is not known "
        f"whether records of the replay were among them; {RESTART}"
    )
