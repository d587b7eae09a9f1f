"""Rebuild the producer state of a log up to an offset from the last snapshot and the batches after it.

snapshots                          action (Kafka: UnifiedLog.rebuildProducerState)
---------------------------------  ----------------------------------------------------------------------------------
none, after a clean shutdown       no batch is read: the state is empty, with snapshots at the starts of the last two
                                   segments and at the offset (for logs older than snapshots)
some, or after an unclean one      those outside (log start, offset] are removed, the last remaining one is loaded, the
                                   batches from it on are applied; snapshots are taken at the starts of the last two
                                   segments and at the offset
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.loading.recovering_segment import LogRefusedError, RecoveringSegment, refusing
from kcli.log.producer_state_manager import CompletedTxn, ProducerAppendInfo, ProducerStateManager
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.slices import Slices, finish

# A batch takes up to 20 microseconds.
BATCHES_PER_SLICE = 256


def rebuild_producer_state(
    producers: ProducerStateManager,
    segments: Mapping[int, RecoveringSegment],
    log_start_offset: int,
    end_offset: int,
) -> None:
    """Bring `producers` to `end_offset`; `segments` by base offset, ascending. Raises LogRefusedError and OSError."""
    finish(rebuild_in_slices(producers, segments, log_start_offset, end_offset))


def rebuild_in_slices(
    producers: ProducerStateManager,
    segments: Mapping[int, RecoveringSegment],
    log_start_offset: int,
    end_offset: int,
    *,
    reload_from_clean_shutdown: bool = False,
) -> Slices[None]:
    """Do the same in slices, for a broker that starts."""
    bases = list(segments)
    to_snapshot = [*bases[-2:], end_offset]
    if reload_from_clean_shutdown and not producers.snapshots:
        for offset in to_snapshot:
            producers.map_end_offset = offset
            producers.take_snapshot()
        return
    was_empty = producers.is_empty and producers.map_end_offset >= end_offset
    producers.truncate_and_reload(log_start_offset, end_offset)
    if end_offset > producers.map_end_offset and not was_empty:
        last = max((base for base in bases if base <= end_offset), default=None)
        for base in _bases_between(bases, producers.map_end_offset, end_offset):
            segment = segments[base]
            start_offset = max(base, producers.map_end_offset, log_start_offset)
            producers.map_end_offset = start_offset
            if base in to_snapshot:
                producers.take_snapshot()
            end_position = segment.size_bytes
            if base == last:
                found = segment.translate_offset(end_offset)
                end_position = end_position if found is None else found.position
            start = segment.translate_offset(start_offset)
            if start is not None:
                yield from _apply_batches(producers, segment, start.position, end_position)
    producers.map_end_offset = end_offset
    producers.take_snapshot()


def _bases_between(bases: list[int], start_offset: int, end_offset: int) -> list[int]:
    """Return the segments that may have offsets of [start, end)."""
    floor = max((base for base in bases if base <= start_offset), default=-(2**63))
    return [base for base in bases if floor <= base < end_offset]


def _apply_batches(
    producers: ProducerStateManager, segment: RecoveringSegment, position: int, end_position: int
) -> Slices[None]:
    """Apply bytes [position, end_position); the producers are updated after the last batch."""
    if end_position < position:
        raise LogRefusedError("the offsets of the segment do not rise", segment.log_path, end_position, segment.size_bytes)
    infos: dict[int, ProducerAppendInfo] = {}
    completed: list[CompletedTxn] = []
    scanner = RecordScanner(16)
    try:
        for number, batch in enumerate(segment.batches(position, end_position), 1):
            header = batch.header
            if number % BATCHES_PER_SLICE == 0:
                yield
            if not isinstance(header, RecordBatch) or not header.has_producer:
                continue
            info = infos.get(header.producer_id)
            if info is None:
                info = infos[header.producer_id] = producers.prepare_update(header.producer_id)
            with refusing(segment, batch):
                ended = info.append(header, batch.read_marker(scanner) if header.is_control else None)
            if ended is not None:
                completed.append(ended)
    except LogRefusedError:
        raise
    except FormatError as error:
        raise LogRefusedError(error.message, segment.log_path, error.position, segment.size_bytes) from error
    for info in infos.values():
        producers.update(info)
    for txn in completed:
        try:
            producers.complete(txn)
        except FormatError as error:
            raise LogRefusedError(error.message, segment.log_path, position, end_position) from error
