"""Logs with all that a cleaner meets, from a seed: keys, tombstones, transactions, producers, codecs, gaps, legacy formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from kcli.format.legacy_message_set import NewLegacyRecord, encode_message_set
from kcli.format.record_batch import TRANSACTIONAL_FLAG, RecordBatch
from kcli.format.records import Header
from kcli.log.cleaner.cleanable import log_to_clean
from kcli.log.cleaner.cleaning_round import CleanedLog, CleaningRound
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.disk import OsDisk
from kcli.log.log_config import LogConfig
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch

SECRET = bytes(16)


def clean(live: LiveLog, checkpoint: int | None, now_ms: int, memory_bytes: int) -> CleanedLog:
    """One round of the cleaner; what is to be flushed is, and the files that go are removed."""
    log = live.log
    return finish(live, CleaningRound(log, log_to_clean(log, checkpoint, now_ms), OffsetMap(memory_bytes, SECRET), now_ms))


def finish(live: LiveLog, under_way: CleaningRound) -> CleanedLog:
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

    def __init__(self, directory: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.now_ms = NOW_MS
        self.checkpoint: int | None = None
        self.memory_bytes = self.dice.choice((24 * 7, 24 * 37, 24 * 1009))  # primes: both have as many slots then
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()
        self._keys = [b"key-%d" % number for number in range(self.dice.choice((2, 6, 30)))]
        self._is_append_time = self.dice.random() < 0.2
        if self.dice.random() < 0.3:
            self._write_legacy(directory)
        # Keys may be missing: such records came before the topic was compacted.
        self.live = LiveLog(directory, self._config(is_compacted=False))
        self.live.log.update_high_watermark(self.live.log.log_end_offset)

    def _config(self, *, is_compacted: bool) -> LogConfig:
        return LogConfig(
            cleanup_policy=frozenset(("compact" if is_compacted else "delete",)),
            segment_bytes=4000,
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

    def _pairs(self) -> tuple[list[bytes | None], list[bytes | None]]:
        count = self.dice.choice((1, 1, 2, 3, 9))
        keys = [self.dice.choice(self._keys) if self.dice.random() < 0.97 else None for _ in range(count)]
        values = [None if self.dice.random() < 0.2 else self.dice.randbytes(self.dice.choice((0, 3, 40))) for _ in range(count)]
        return list(keys), values

    def _write_legacy(self, directory: Path) -> None:
        """A first segment of format 0 or 1, as an old broker left it; its indexes are missing."""
        directory.mkdir(parents=True)
        data, offset = b"", 0
        magic = self.dice.choice((0, 1))
        for _ in range(self.dice.randrange(1, 8)):
            keys, values = self._pairs()
            records = [
                NewLegacyRecord(offset + at, self.now_ms - 5000 + self.dice.randrange(50), key, value)
                for at, (key, value) in enumerate(zip(keys, values, strict=True))
            ]
            data += encode_message_set(records, magic=magic, codec=self.dice.choice((0, 1, 2, 3)))
            offset += len(records)
        (directory / f"{0:020}.log").write_bytes(data)

    def grow(self) -> None:
        """Append some batches, in several segments."""
        dice, live = self.dice, self.live
        for _ in range(dice.randrange(5, 40)):
            if self._open and dice.random() < 0.2:
                producer_id = dice.choice(sorted(self._open))
                self._open.discard(producer_id)
                live.append(marker(producer_id, abort=dice.random() < 0.5), now_ms=self.now_ms)
            else:
                live.append(self._batch(), now_ms=self.now_ms)
            self.now_ms += dice.choice((0, 1, 200))
            if dice.random() < 0.15:
                live.log.roll(self.now_ms)
        for producer_id in sorted(self._open):
            if dice.random() < 0.7:
                self._open.discard(producer_id)
                live.append(marker(producer_id, abort=dice.random() < 0.5), now_ms=self.now_ms)
        live.log.roll(self.now_ms)
        live.config = live.log.config = self._config(is_compacted=False)
        live.stop()

    def _batch(self) -> memoryview:
        keys, values = self._pairs()
        dice = self.dice
        producer, attributes = None, 0
        if dice.random() < 0.6:
            producer_id = dice.choice((1, 2, 3, 4))
            producer = (producer_id, 0, self._sequences.get(producer_id, 0))
            self._sequences[producer_id] = producer[2] + len(values)
            if producer_id > 2:
                attributes = TRANSACTIONAL_FLAG
                self._open.add(producer_id)
        headers = (Header(b"h", b"1"),) if dice.random() < 0.2 else ()
        return new_batch(
            values,
            keys=keys,
            timestamps=[self.now_ms + dice.randrange(-100, 100) for _ in values],
            codec=dice.choice((0, 0, 0, 1, 2, 3, 4)),
            attributes=attributes,
            producer=producer,
            headers=headers,
        )

    def clean(self) -> CleanedLog:
        """One round; its end is the next one's checkpoint."""
        self.live.log.config = self.compacted
        done = clean(self.live, self.checkpoint, self.now_ms, self.memory_bytes)
        self.checkpoint = done.end_offset
        self.live.config = self.live.log.config = self._config(is_compacted=False)
        self.live.stop()
        return done


def batches_of(directory: Path) -> Iterator[tuple[object, ...]]:
    """All that matters of every batch in a directory, in order."""
    for path in sorted(directory.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid, (path, batch)
                records: list[tuple[object, ...]] = []
                for window in batch.windows(RecordScanner()):
                    assert window.error is None, (path, window.error)
                    told = [batch.header.max_timestamp] * window.count
                    if not batch.header.is_log_append_time:
                        told = list(window.columns.timestamp[: window.count])
                    records += [
                        (window.columns.offset[at], told[at], window.key(at), window.value(at), window.headers(at))
                        for at in range(window.count)
                    ]
                header = batch.header
                facts: tuple[object, ...] = ()
                if isinstance(header, RecordBatch):
                    facts = (header.partition_leader_epoch, *header[6:])
                yield (path.name, header.magic, header.base_offset, header.last_offset, facts, tuple(records))
