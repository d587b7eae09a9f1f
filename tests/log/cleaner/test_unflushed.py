"""Protects a record that goes for the sake of a later one: that one must not go with the power then."""

from __future__ import annotations

from random import Random

from kcli.log.cleaner.cleanable import log_to_clean
from kcli.log.cleaner.cleaning_round import CleaningRound
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog
from kcli.simulator.disk import SimulatedDisk
from tests.log.cleaner.random_logs import SECRET
from tests.log.live_logs import NOW_MS, new_batch

DIRECTORY = "/data/t-0"
# A segment a group: the first one is in place before the second is written.
CONFIG = LogConfig(cleanup_policy=frozenset(("compact",)), segment_bytes=80)


def open_there(disk: SimulatedDisk) -> UnifiedLog:
    return open_log(disk, FileCache(disk, 8), DIRECTORY, "t", 0, CONFIG, NOW_MS)


def values(disk: SimulatedDisk) -> list[bytes | None]:
    """Those of the key."""
    found = []
    for segment in read_partition(disk, DIRECTORY).segments:
        with SegmentReader(disk, segment.log) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch)
                for window in batch.windows(RecordScanner()):
                    found += [window.value(at) for at in range(window.count)]
    return found


def cut_off(steps: int, seed: int) -> tuple[list[bytes | None], bool]:
    """What a loss of power behind so many steps of a round leaves, and whether the round was over before."""
    disk = SimulatedDisk(Random(seed), lambda: NOW_MS)
    disk.make_directory(DIRECTORY)
    log = open_there(disk)

    def append(value: bytes) -> None:
        log.append_as_leader(new_batch([value], keys=[b"k"]), 0, NOW_MS)

    append(b"old")
    for path in log.unflushed_paths():
        disk.flush(path)
    for path in (DIRECTORY, "/data", "/"):
        disk.flush_directory(path)
    log.mark_flushed(log.log_end_offset)
    append(b"new")
    append(b"newest")
    log.update_high_watermark(log.log_end_offset)
    assert [one.base_offset for one in log.local_log().segments] == [0, 1, 2]
    under_way = CleaningRound(log, log_to_clean(log, None, NOW_MS), OffsetMap(10_000, SECRET), NOW_MS).run()
    is_over = False
    for _ in range(steps):
        try:
            for path in next(under_way):
                disk.flush(path)
        except StopIteration:
            is_over = True
            break
    disk.lose_power(Random(seed))
    open_there(disk)
    return values(disk), is_over


def test_the_last_value_of_a_key_that_was_on_the_device_stays_or_has_a_successor_there() -> None:
    """Whenever in a round the power goes, and whatever the disk has kept of what nobody flushed."""
    steps, is_over = 0, False
    while not is_over:
        for seed in range(30):
            left, is_over = cut_off(steps, seed)
            assert left, f"the key is gone after {steps} steps, with seed {seed}"
        steps += 1
    assert steps > 5
