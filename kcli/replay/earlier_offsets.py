"""Places in the target of offsets that an earlier run has passed: --groups was not given then, or the run was killed.

step                                  result
------------------------------------  ----------------------------------------------------------------------------------
OffsetFetch of each group             the groups whose offset is not committed in the target yet
the source is read from its start     the number of records of the replay below each offset, which is a sequence
the target is read from the start of  the offset of the record with that sequence
the replay
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import RecordBatch
from kcli.replay.fetching import batches_in, fetch
from kcli.replay.group_offsets import GroupOffsets
from kcli.replay.outgoing_batch import SEQUENCES
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.source import CommittedOffset, Source
from kcli.replay.steps import Steps, next_batch


def place_earlier(
    network: NetworkClient, source: Source, partition: PartitionReplay, committed: Iterable[CommittedOffset]
) -> Steps[None]:
    """Give the offsets below the progress that the run began with their places. Raises ClientError."""
    missing = set()
    for one in committed:
        if one.offset in partition.passed:
            known = yield from GroupOffsets(network, one.group).fetch([partition.target])
            if partition.target not in known:
                missing.add(one.offset)
    if missing:
        sequences = yield from _sequences(source, partition, sorted(missing))
        yield from _find(network, partition, sequences)


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
    offset = progress.start_offset
    while sequences and offset < progress.target_offset:
        fetched = yield from fetch(network, *partition.target, offset)
        before = offset
        for batch in batches_in(fetched.records, offset):
            header = batch.header
            offset = header.last_offset + 1
            if not isinstance(header, RecordBatch) or header.producer_id != progress.producer_id:
                continue
            for source_offset, sequence in list(sequences.items()):
                index = sequence % SEQUENCES - header.base_sequence
                if 0 <= index <= header.last_offset_delta:
                    partition.place(source_offset, header.base_offset + index)
                    del sequences[source_offset]
        if offset == before:
            break
