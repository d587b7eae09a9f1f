"""Selecting records: held against what Kafka's own tool prints of every partition that Kafka wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.records import Header
from kcli.inspect.dumping.dump import DumpOptions
from kcli.log.disk.os_disk import OsDisk, OsFile
from tests.conftest import LogSet, every_log_set
from tests.inspect.kafka_records import KafkaRecord, partitions_of, visible_to_consumers
from tests.inspect.seen import Seen, dumped
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder

PARTITIONS = [
    pytest.param(given_set, name, records, id=f"{given_set.data.parent.name}-{name}")
    for given_set in every_log_set()
    for name, records in partitions_of(given_set).items()
    if records
]
NO_BATCHES = DumpOptions(batches=False)


def shown(given_set: LogSet, name: str, **selection: object) -> Seen:
    seen = dumped(given_set.data / name, options=NO_BATCHES, **selection)
    assert not seen.damages and not seen.problems
    return seen


def ranges_of(numbers: list[int]) -> list[tuple[int | None, int | None]]:
    """A few half-open ranges that begin and end at, between and beyond the numbers."""
    ordered = sorted(numbers)
    low, middle, high = ordered[0], ordered[len(ordered) // 2], ordered[-1]
    third = ordered[len(ordered) // 3]
    return [
        (None, middle),
        (middle, None),
        (third, middle + 1),
        (middle + 1, high),
        (high, None),
        (None, low + 1),
        (high + 1, high + 9),
        (max(low - 5, 0), low + 1),
    ]


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_everything(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """Without a selection all records come, in order, with Kafka's offsets, timestamps and sizes."""
    seen = dumped(given_set.data / name)
    kinds = {file.path: file.kind for file in seen.files}
    found = [
        (
            record.offset,
            record.timestamp,
            -1 if record.key is None else len(record.key),
            -1 if record.value is None else len(record.value),
        )
        for record in seen.records_seen
        if kinds[record.path] == "log"
    ]
    assert found == [(record.offset, record.timestamp, record.key_size, record.value_size) for record in records]


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_offsets(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """Ranges of offsets, through the indexes and over the borders of segments, give Kafka's lines within the range."""
    for first, end in ranges_of([record.offset for record in records]):
        if first is not None and end is not None and first >= end:
            continue
        typed = f"{'' if first is None else first}..{'' if end is None else end}"
        wanted = [
            record.offset
            for record in records
            if (first is None or record.offset >= first) and (end is None or record.offset < end)
        ]
        assert shown(given_set, name, offset=typed).offsets == wanted, typed


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_times(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """Ranges of times give Kafka's lines within them, however timestamps go back and forth; -1 is in no range."""
    for first, end in ranges_of([record.timestamp for record in records]):
        if first is not None and end is not None and first >= end:
            continue
        typed = f"{'' if first is None else f'{first}ms'}..{'' if end is None else f'{end}ms'}"
        wanted = [
            record.offset
            for record in records
            if record.timestamp != -1
            and (first is None or record.timestamp >= first)
            and (end is None or record.timestamp < end)
        ]
        assert shown(given_set, name, time=typed).offsets == wanted, typed


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_tail_and_limit(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """The last and the first N, also where N is more than there is, and the last N below an offset."""
    offsets = [record.offset for record in records]
    for count in (0, 1, 7, 333, 10**6):
        assert shown(given_set, name, tail=count).offsets == (offsets[-count:] if count else [])
        assert shown(given_set, name, limit=count).offsets == offsets[:count]
    middle = offsets[len(offsets) // 2]
    below = [offset for offset in offsets if offset < middle]
    if below:
        assert shown(given_set, name, tail=5, offset=f"..{middle}").offsets == below[-5:]
        assert shown(given_set, name, tail=5, limit=2, offset=f"..{middle}").offsets == below[-5:][:2]


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_producers_transactions_and_isolation(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """Batch headers and markers decide; read_committed gives what the markers, replayed, leave."""
    for producer_id in sorted({record.producer_id for record in records if record.producer_id >= 0})[:3]:
        wanted = [record.offset for record in records if record.producer_id == producer_id]
        assert shown(given_set, name, producer_ids=[producer_id]).offsets == wanted
    assert shown(given_set, name, control=True).offsets == [record.offset for record in records if record.is_control]
    assert shown(given_set, name, transactional=True).offsets == [
        record.offset for record in records if record.is_transactional
    ]
    if name == "compacted-txn-0" or name.startswith("__"):
        return  # the cleaner drops aborted records and, later, markers: replaying what is left tells another story
    visible = visible_to_consumers(records)
    assert shown(given_set, name, isolation="read_committed").offsets == sorted(visible)
    hidden = {record.offset for record in records if record.is_transactional and not record.is_control} - visible
    aborted = set(shown(given_set, name, aborted=True).offsets)
    assert aborted <= hidden
    assert name == "open-transaction-0" or aborted == hidden


@pytest.mark.parametrize(("given_set", "name", "records"), PARTITIONS)
def test_keys(given_set: LogSet, name: str, records: list[KafkaRecord]) -> None:
    """One key, and any of several, give the records that Kafka prints with them."""
    plain = [record for record in records if record.key and record.key.isascii() and len(record.key) == record.key_size]
    if not plain or name.startswith("__"):
        pytest.skip("no plain keys")
    for keys in ([plain[0].key], [plain[-1].key, plain[len(plain) // 2].key]):
        wanted = [record.offset for record in plain if record.key in keys]
        assert shown(given_set, name, keys=keys).offsets == wanted


def test_several_options_narrow_each_other(tmp_path: Path) -> None:
    """Key, header, time and offset together; a header may come twice and its value may be null."""
    log = PartitionBuilder(tmp_path / "topic-0")
    log.append([(b"a", b"1"), (b"b", b"2")], headers=(Header(b"h", b"x"), Header(b"h", None)), codec=1)
    log.append([(b"a", b"3"), (b"b", b"4")], headers=(Header(b"h", b"y"),), codec=4)
    log.append([(b"a", b"5"), (None, b"6")])
    log.flush()
    at = tmp_path / "topic-0"
    assert dumped(at, keys=["a"]).offsets == [0, 2, 4]
    assert dumped(at, headers=["h"]).offsets == [0, 1, 2, 3]
    assert dumped(at, headers=["h=x"]).offsets == [0, 1]
    assert dumped(at, headers=["h", "h=y"], keys=["b"]).offsets == [3]
    assert dumped(at, keys=["a"], offset="1..", time=f"..{BASE_TIMESTAMP + 40}").offsets == [2]
    assert dumped(at, keys=["a", "b"], tail=2).offsets == [3, 4]
    assert dumped(at, headers=["g"]).offsets == []


class CountingDisk(OsDisk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read = 0

    def open_file(self, path: str) -> OsFile:
        disk = self

        class Counting(OsFile):
            def read_into(self, position: int, buffer: memoryview) -> int:
                count = super().read_into(position, buffer)
                disk.read += count
                return count

        return Counting(path)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> PartitionBuilder:
    """Three segments of 6 MiB each; an index entry every second batch of 24 KiB."""
    log = PartitionBuilder(tmp_path_factory.mktemp("large") / "topic-0")
    for segment in range(3):
        for _ in range(250):
            log.append([(b"k%d" % log.offset, b"v" * 6000)] * 4)
        if segment < 2:
            log.roll()
    log.flush()
    return log


@pytest.mark.parametrize(
    "selection",
    [
        {"offset": "1500..1510"},
        {"tail": 5},
        {"time": f"{BASE_TIMESTAMP + 29_500}.."},
        {"tail": 3, "offset": "..1900"},
    ],
    ids=str,
)
def test_indexes_spare_reading(large: PartitionBuilder, selection: dict) -> None:
    """A seek reads little of 18 MiB, and finds the same as a scan of a copy without indexes."""
    disk = CountingDisk()
    found = dumped(large.directory, disk=disk, **selection).offsets
    assert found
    assert disk.read < 4 * 1024 * 1024
    hidden = [path.rename(path.with_name(path.name + "-away")) for path in sorted(large.directory.glob("*index"))]
    try:
        assert dumped(large.directory, **selection).offsets == found
    finally:
        for path in hidden:
            path.rename(path.with_name(path.name.removesuffix("-away")))


@settings(max_examples=30)
@given(data=st.data())
def test_lying_indexes_hide_nothing(data: st.DataObject, large: PartitionBuilder) -> None:
    """Whatever bytes stand in .index and .timeindex, a range of offsets gives what it gives without them.

    A time index that names a true batch with its true time is believed, so times are asked only with broken entries.
    """
    first = data.draw(st.integers(0, 2990))
    index, times = large.path(".index", 1000), large.path(".timeindex", 1000)
    kept = index.read_bytes(), times.read_bytes()
    try:
        for path, whole in zip((index, times), kept, strict=True):
            garbage = data.draw(st.binary(max_size=200) | st.just(whole[8:]) | st.just(whole[:-3]) | st.just(whole[::-1]))
            path.write_bytes(garbage)
        assert dumped(large.directory, offset=f"{first}..{first + 5}").offsets == list(range(first, first + 5))
        assert dumped(large.directory, tail=3).offsets == [2997, 2998, 2999]
    finally:
        index.write_bytes(kept[0])
        times.write_bytes(kept[1])


def test_one_flipped_base_offset_does_not_end_the_walk(tmp_path: Path) -> None:
    """The base offset is not covered by the CRC: a batch that seems to lie behind the range does not end it."""
    log = PartitionBuilder(tmp_path / "topic-0")
    positions = []
    for _ in range(5):
        positions.append(len(log.log))
        log.append([(b"k", b"v")])
    log.log[positions[1]] = 0x7F
    log.flush()
    assert dumped(tmp_path / "topic-0", offset="..4").offsets == [0, 2, 3]


def test_times_skip_whole_segments(tmp_path: Path) -> None:
    """Closed segments that end before the time cost two reads of entries and one of headers, not an index or a scan."""
    log = PartitionBuilder(tmp_path / "topic-0")
    for _ in range(20):
        for _ in range(50):
            log.append([(b"k", b"v" * 6000)] * 4)
        log.roll()
    log.append([(b"k", b"v")])
    log.flush()
    disk = CountingDisk()
    first = BASE_TIMESTAMP + 10 * (log.offset - 3)
    assert dumped(tmp_path / "topic-0", disk=disk, time=f"{first}..").offsets == [3998, 3999, 4000]
    assert disk.read < 20 * 64 * 1024 + 2 * 1024 * 1024


@pytest.mark.parametrize("late", [5, 60, 95, 99])
def test_a_late_timestamp_is_not_skipped(tmp_path: Path, late: int) -> None:
    """One record far ahead of its time, wherever in its segment, is found behind a time that all others lie before."""
    log = PartitionBuilder(tmp_path / "topic-0", index_every=7)
    for slot in range(100):
        log.append([(b"k", b"v" * 900)], timestamp=BASE_TIMESTAMP + (10**9 if slot == late else slot))
    log.roll()
    log.append([(b"k", b"v")], timestamp=BASE_TIMESTAMP + 200)
    log.flush()
    assert dumped(tmp_path / "topic-0", time=f"{BASE_TIMESTAMP + 10**8}..").offsets == [late]
    assert dumped(tmp_path / "topic-0", time=f"{BASE_TIMESTAMP + 150}..").offsets == [late, 100]
    assert dumped(tmp_path / "topic-0", time=f"{BASE_TIMESTAMP + 10**9 + 1}..").offsets == []
