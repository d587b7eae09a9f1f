"""Places in the target of offsets that an earlier run has passed: the consumers of the source have continued since then.

step                                  result
------------------------------------  ----------------------------------------------------------------------------------
OffsetFetch of each group             the groups whose offset in the target may be too small; one that has reached the end
                                      of the replay is not
the source is read from its start     the number of records of the replay below each offset, which is a sequence
the target is read from the start of  the offset of the record with that sequence; if the target has deleted it, the
the replay                            offset of the next one
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.client.admin.partitions import OffsetSpec
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import RecordBatch
from kcli.replay.fetching import batches_in, fetch_some
from kcli.replay.group_offsets import GroupOffsets
from kcli.replay.outgoing_batch import SEQUENCES
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.recovery import truncated
from kcli.replay.source import CommittedOffset, Source
from kcli.replay.steps import Steps, next_batch
from kcli.replay.target import list_offsets


def place_earlier(
    network: NetworkClient,
    source: Source,
    partition: PartitionReplay,
    committed: Iterable[CommittedOffset],
    problems: dict[str, str],
) -> Steps[list[str]]:
    """Place the offsets below the progress that the run began with; return the groups that are beyond the replay in the target.

    `problems` gets the errors of groups, which are then left out. Raises ClientError.
    """
    missing, beyond = set(), []
    for one in committed:
        if one.offset in partition.passed and one.group not in problems:
            try:
                own = (yield from GroupOffsets(network, one.group).fetch([partition.target])).get(partition.target)
            except ClientError as error:
                problems[one.group] = str(error)
                continue
            if own is None or own.offset < partition.progress.target_offset:
                missing.add(one.offset)
            elif own.offset > partition.progress.target_offset:
                beyond.append(one.group)
    if missing:
        sequences = yield from _sequences(source, partition, sorted(missing))
        yield from _find(network, partition, sequences)
    return beyond


def _sequences(source: Source, partition: PartitionReplay, offsets: list[int]) -> Steps[dict[int, int]]:
    """Return the number of records below each offset."""
    stream = source.open(partition.source, 0, offsets)
    found: dict[int, int] = {}
    records = 0
    while len(found) < len(offsets) and (batch := (yield from next_batch(stream))) is not None:
        for watched in batch.watched:
            found[watched.offset] = records + watched.slot
        records += batch.record_count
    stream.close()
    return found


def _find(network: NetworkClient, partition: PartitionReplay, sequences: dict[int, int]) -> Steps[None]:
    """Find the records with these numbers in the target."""
    progress = partition.progress
    starts = yield from list_offsets([partition.target], OffsetSpec.EARLIEST)
    offset = max(progress.start_offset, starts[partition.target])
    wraps, last_sequence = 0, 0
    while sequences and offset < progress.target_offset:
        fetched = yield from fetch_some(network, *partition.target, offset)
        before, offset = offset, fetched.skip_missing(offset)
        for batch in batches_in(fetched.records, offset):
            header = batch.header
            offset = header.last_offset + 1
            if not isinstance(header, RecordBatch) or header.producer_id != progress.producer_id:
                continue
            wraps += header.base_sequence < last_sequence
            last_sequence = header.base_sequence
            first = wraps * SEQUENCES + header.base_sequence
            for source_offset, sequence in list(sequences.items()):
                if sequence - first <= header.last_offset_delta:
                    partition.place(source_offset, header.base_offset + max(sequence - first, 0))
                    del sequences[source_offset]
        if offset == before:
            raise truncated(partition.target, offset, progress.target_offset)
    for source_offset in sequences:
        partition.place(source_offset, progress.target_offset)
