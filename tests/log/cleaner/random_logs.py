"""Logs with all cases of a cleaner, from a seed: a hundred seeds have each of these many times.

    of                what
    ----------------  ------------------------------------------------------------------------------------------------------
    records           keys of few and many, some without one; tombstones; headers; every codec; batches of several windows
    producers         idempotent ones and ones with transactions; epochs that rise, with a marker or with a batch
    transactions      committed, aborted, left open over a round; markers of producers that wrote nothing
    offsets           gaps within batches, between them, and before a segment; a log start that rises
    timestamps        CreateTime and LogAppendTime; delete horizons of earlier rounds, some of them over
    formats 0 and 1   one to three segments of sets, both formats mixed, with gaps and LogAppendTime, cleaned before or not
    a round           a map of 7, 37 or 1009 slots, so that several rounds are needed; leader epochs that rise

tests/log/cleaner/test_random_logs.py counts them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from kcli.format.record_batch import TRANSACTIONAL_FLAG, RecordBatch
from kcli.format.records import Header
from kcli.log.cleaner.cleaner import CleanedLog, Cleaner
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.disk.os_disk import OsDisk
from kcli.log.log_config import LogConfig
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch
from tests.message_sets import NewLegacyRecord, encode_message_set

SECRET = bytes(16)


def clean(live: LiveLog, checkpoint: int | None, now_ms: int, memory_bytes: int) -> CleanedLog:
    """One round of the cleaner; what is to be flushed is, and the files that go are removed."""
    log = live.log
    return finish(live, Cleaner(log, log_to_clean(log, checkpoint, now_ms), OffsetMap(memory_bytes, SECRET), now_ms))


def finish(live: LiveLog, under_way: Cleaner) -> CleanedLog:
    """Do a round of the cleaner to its end; what is to be flushed is, and the files that go are removed."""
    steps = under_way.run()
    while True:
        try:
            for path in next(steps):
                live.disk.flush(path)
        except StopIteration as end:
            done: CleanedLog = end.value
            for path in under_way.take_removed():
                live.disk.remove(path)
            return done


class RandomLog:
    """A log that grows and is cleaned in rounds; `checkpoint` is the cleaner's, `now_ms` its clock."""

    def __init__(self, directory: Path, seed: int, now_ms: int = NOW_MS) -> None:
        self.rng = Random(seed)
        self.now_ms = now_ms
        self.checkpoint: int | None = None
        self.memory_bytes = self.rng.choice((24 * 7, 24 * 37, 24 * 1009))  # primes: both have as many slots then
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._leader_epoch = 0
        self._open: set[int] = set()
        self._segment_bytes = self.rng.choice((4000, 4000, 4000, 200_000))
        self._keys = [b"key-%d" % number for number in range(self.rng.choice((2, 6, 30)))]
        self._is_append_time = self.rng.random() < 0.2
        if self.rng.random() < 0.4:
            self._write_legacy(directory)
        # Keys may be missing: such records came before the topic was compacted.
        self.live = LiveLog(directory, self._config(is_compacted=False))
        if self.checkpoint is not None and self.checkpoint >= self.live.log.log_end_offset:
            self.checkpoint = self.live.log.log_end_offset
            self.live.log.roll(self.now_ms)  # what is clean ends where a segment does
        self.live.log.update_high_watermark(self.live.log.log_end_offset)

    def _config(self, *, is_compacted: bool) -> LogConfig:
        return LogConfig(
            cleanup_policy=frozenset(("compact" if is_compacted else "delete",)),
            segment_bytes=self._segment_bytes,
            segment_index_bytes=1000,
            index_interval_bytes=200,
            delete_retention_ms=1000,
            message_timestamp_type="LogAppendTime" if self._is_append_time else "CreateTime",
        )

    @property
    def compacted(self) -> LogConfig:
        """The topic's settings for a round."""
        return self._config(is_compacted=True)

    @property
    def settings(self) -> dict[str, str]:
        """The topic's settings as Kafka has them, for a round."""
        config = self.compacted
        return {
            "cleanup.policy": "compact",
            "internal.segment.bytes": str(config.segment_bytes),
            "segment.index.bytes": str(config.segment_index_bytes),
            "index.interval.bytes": str(config.index_interval_bytes),
            "delete.retention.ms": str(config.delete_retention_ms),
            "message.timestamp.type": config.message_timestamp_type,
        }

    def _pairs(self, count: int | None = None) -> tuple[list[bytes | None], list[bytes | None]]:
        count = count or self.rng.choice((1, 1, 2, 3, 9))
        keys = [self.rng.choice(self._keys) if self.rng.random() < 0.97 else None for _ in range(count)]
        values = [None if self.rng.random() < 0.2 else self.rng.randbytes(self.rng.choice((0, 3, 40))) for _ in range(count)]
        return list(keys), values

    def _write_legacy(self, directory: Path) -> None:
        """First segments of format 0 and 1, as an old broker left them, cleaned up to somewhere; their indexes are missing."""
        directory.mkdir(parents=True)
        rng, offset, modified_ms = self.rng, 0, self.now_ms - 9000
        formats = rng.choice(((0,), (1,), (0, 1)))
        bases = []
        for _ in range(rng.choice((1, 2, 3))):
            bases.append(offset)
            data = b""
            for _ in range(rng.randrange(1, 8)):
                encoded, offset = self._legacy_set(rng.choice(formats), offset)
                data += encoded
            path = directory / f"{bases[-1]:020}.log"
            path.write_bytes(data)
            # Tombstones of these formats are removed by the age of their segment compared with the last clean one.
            modified_ms += rng.choice((0, 400, 1500))
            os.utime(path, ns=(modified_ms * 10**6, modified_ms * 10**6))
        if rng.random() < 0.6:
            self.checkpoint = rng.choice((*bases[1:], offset))

    def _legacy_set(self, magic: int, offset: int) -> tuple[bytes, int]:
        """A message set from an offset on -> its bytes, and the next offset."""
        rng = self.rng
        records = []
        for key, value in zip(*self._pairs(), strict=True):
            records.append(NewLegacyRecord(offset, self.now_ms - 5000 + rng.randrange(50), key, value))
            offset += rng.choice((1, 1, 1, 4))
        append_time_ms = self.now_ms - 5000 if magic == 1 and rng.random() < 0.2 else None
        codec = rng.choice((0, 1, 2, 3))
        return encode_message_set(records, magic=magic, codec=codec, log_append_time_ms=append_time_ms), offset

    # -------------------------------------------------------------------------------------------------------- growing

    def grow(self) -> None:
        """Append some batches, in several segments."""
        rng, live = self.rng, self.live
        for _ in range(rng.randrange(5, 40)):
            self._append()
            self.now_ms += rng.choice((0, 1, 200))
            if rng.random() < 0.15:
                self._roll()
        for producer_id in sorted(self._open):
            if rng.random() < 0.7:
                self._end(producer_id)
        live.log.roll(self.now_ms)
        if rng.random() < 0.1:
            live.log.maybe_increment_log_start_offset(rng.randrange(live.log.log_start_offset, live.log.log_end_offset))
        self._reopen()

    def _append(self) -> None:
        """Append something."""
        rng, live = self.rng, self.live
        if rng.random() < 0.02:
            self._leader_epoch += 1
        if self._open and rng.random() < 0.2:
            self._end(rng.choice(sorted(self._open)))
        elif rng.random() < 0.03:
            self._end(rng.choice((5, 6)))  # a transaction without data, of a producer that has none
        elif rng.random() < 0.05:
            self._follow(live.log.log_end_offset + rng.choice((1, 7, 3000)))
        else:
            live.append(self._batch(), epoch=self._leader_epoch, now_ms=self.now_ms)

    def _end(self, producer_id: int) -> None:
        """End a transaction, as brokers do that raise the epoch with it or as those that do not."""
        self._open.discard(producer_id)
        if self.rng.random() < 0.3:
            self._raise_epoch(producer_id)
        epoch = self._epochs.get(producer_id, 0)
        end = marker(producer_id, abort=self.rng.random() < 0.5, epoch=epoch, timestamp=self.now_ms)
        self.live.append(end, epoch=self._leader_epoch, now_ms=self.now_ms)

    def _raise_epoch(self, producer_id: int) -> None:
        self._epochs[producer_id] = self._epochs.get(producer_id, 0) + 1
        self._sequences[producer_id] = 0

    def _follow(self, base_offset: int) -> None:
        """Append a batch of a leader that has no records for the offsets before it, here: none of a producer."""
        keys, values = self._pairs()
        stamps = [self.now_ms] * len(values)
        batch = new_batch(values, keys=keys, timestamps=stamps, base_offset=base_offset, leader_epoch=self._leader_epoch)
        self.live.log.append_as_follower(batch, self.now_ms)
        self.live.log.update_high_watermark(self.live.log.log_end_offset)

    def _roll(self) -> None:
        """Begin a segment, some of them behind a gap."""
        if self.rng.random() < 0.8:
            self.live.log.roll(self.now_ms)
            return
        base_offset = self.live.log.log_end_offset + self.rng.choice((1, 4, 900))
        self.live.log.roll(self.now_ms, base_offset)
        self._follow(base_offset)

    def _reopen(self) -> None:
        """Stop and start, as a topic that takes records without a key."""
        self.live.config = self.live.log.config = self._config(is_compacted=False)
        self.live.stop()

    def _batch(self) -> memoryview:
        rng = self.rng
        is_large = self._segment_bytes > 100_000 and rng.random() < 0.02
        keys, values = self._pairs(4500 if is_large else None)
        if is_large:
            values = [value and value[:3] for value in values]
        producer, attributes = None, 0
        if rng.random() < 0.6:
            producer_id = rng.choice((1, 2, 3, 4))
            if producer_id not in self._open and rng.random() < 0.03:
                self._raise_epoch(producer_id)
            producer = (producer_id, self._epochs.get(producer_id, 0), self._sequences.get(producer_id, 0))
            self._sequences[producer_id] = producer[2] + len(values)
            if producer_id > 2:
                attributes = TRANSACTIONAL_FLAG
                self._open.add(producer_id)
        headers = (Header(b"h", b"1"),) if rng.random() < 0.2 else ()
        return new_batch(
            values,
            keys=keys,
            timestamps=[self.now_ms + rng.randrange(-100, 100) for _ in values],
            codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
            attributes=attributes,
            producer=producer,
            headers=headers,
        )

    # ------------------------------------------------------------------------------------------------------- cleaning

    @property
    def is_dirty(self) -> bool:
        """Whether a broker would clean it at all."""
        return log_to_clean(self.live.log, self.checkpoint, self.now_ms).cleanable_bytes > 0

    def clean(self) -> CleanedLog:
        """One round; its end is the next one's checkpoint."""
        self.live.log.config = self.compacted
        done = clean(self.live, self.checkpoint, self.now_ms, self.memory_bytes)
        self.checkpoint = done.end_offset
        self._reopen()
        return done


def batches_of(directory: Path) -> Iterator[tuple[Any, ...]]:
    """All that matters of every batch in a directory, in order: file, format, base and last offset, the rest, records."""
    for path in sorted(directory.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid, (path, batch)
                records: list[tuple[object, ...]] = []
                for window in batch.windows(RecordScanner()):
                    assert window.error is None, (path, window.error)
                    timestamps = [batch.header.max_timestamp] * window.count
                    if not batch.header.is_log_append_time:
                        timestamps = list(window.columns.timestamp[: window.count])
                    records += [
                        (window.columns.offset[at], timestamps[at], window.key(at), window.value(at), window.headers(at))
                        for at in range(window.count)
                    ]
                header = batch.header
                facts: tuple[object, ...] = ()
                if isinstance(header, RecordBatch):
                    facts = (header.partition_leader_epoch, *header[6:])
                yield (path.name, header.magic, header.base_offset, header.last_offset, facts, tuple(records))
