"""Protects what re-compression makes of message formats 0 and 1: batches of format 2 that say the same of every message.

Offsets with their gaps, timestamps and their type, keys and values; of generated logs, and of those that Kafka wrote. Kafka's
own dump judges the latter (tests/oracle/test_compact.py).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.commands.app import main
from kcli.format.checkpoint import EpochStart, encode_leader_epochs
from kcli.format.legacy_message_set import GATHERED_BYTES, LegacyBatch
from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import RecordBatch
from kcli.inspect.verification.finding_kinds import ERROR
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.inspect.verified import verify
from tests.log.live_logs import NOW_MS, new_batch
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
Told = tuple[int, int, bool, bytes | None, bytes | None]
Batch = tuple[RecordBatch | LegacyBatch, list[Told]]


def batches_of(partition: Path) -> Iterator[Batch]:
    """Each batch, and of its records: offset, timestamp, whether that is of LogAppendTime, key, value."""
    for path in sorted(partition.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid
                header, told = batch.header, []
                for window in batch.windows(RecordScanner()):
                    assert window.error is None
                    stamps = list(window.columns.timestamp[: window.count])
                    if header.is_log_append_time:
                        stamps = [header.max_timestamp] * window.count
                    told += [
                        (window.columns.offset[at], stamps[at], header.is_log_append_time, window.key(at), window.value(at))
                        for at in range(window.count)
                    ]
                yield header, told


def records_of(batches: list[Batch]) -> list[Told]:
    return list(chain.from_iterable(told for _, told in batches))


class Log:
    """A log of sets of format 0 and 1 in the making, in a partition's directory that no broker knows."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t-0"
        self.path.mkdir(parents=True)
        self.offset = 0
        self.data = b""

    def add(self, records: list[NewLegacyRecord], *, magic: int, codec: int = 0, append_time_ms: int | None = None) -> None:
        """Add a set; a record's offset is how many it lies behind the one before."""
        placed = []
        for record in records:
            self.offset += record.offset
            placed.append(record._replace(offset=self.offset))
            self.offset += 1
        self.data += encode_message_set(placed, magic=magic, codec=codec, log_append_time_ms=append_time_ms)

    def close(self) -> None:
        (self.path / f"{0:020}.log").write_bytes(self.data)

    def epochs(self, *starts: int) -> None:
        entries = [EpochStart(epoch, start) for epoch, start in enumerate(starts)]
        (self.path / "leader-epoch-checkpoint").write_bytes(encode_leader_epochs(entries))


def recompress(partition: Path, codec: str, *words: str) -> int:
    return main(["compact", "--apply", "--compression", codec, *words, str(partition)])


payloads = st.none() | st.binary(max_size=30) | st.integers(100, 9000).map(bytes)
stamps = st.integers(NOW_MS - 50, NOW_MS) | st.sampled_from((-1, 0, INT64_MAX))
messages = st.builds(NewLegacyRecord, st.sampled_from((0, 0, 0, 1, 70)), stamps, payloads, payloads)
sets = st.tuples(
    st.lists(messages, min_size=1, max_size=8),
    st.sampled_from((0, 1)),
    st.sampled_from((0, 0, 0, 1, 2, 3)),
    st.sampled_from((None, None, NOW_MS, NOW_MS + 1)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(sets, min_size=1, max_size=12), st.lists(st.integers(0, 60), max_size=3), st.sampled_from(CODECS))
def test_every_message_stays_what_it_was(given_sets: list[tuple], starts: list[int], codec: str) -> None:  # type: ignore[type-arg]
    with tempfile.TemporaryDirectory() as root:
        log = Log(Path(root))
        for records, magic, set_codec, append_time_ms in given_sets:
            log.add(records, magic=magic, codec=set_codec, append_time_ms=append_time_ms if magic else None)
        log.close()
        log.epochs(*sorted({start % (log.offset + 1) for start in starts}))
        before, given_end = list(batches_of(log.path)), log.offset
        assert recompress(log.path, codec) == 0
        after = list(batches_of(log.path))
        verified = verify(log.path)
        assert recompress(log.path, codec) == 0
        assert list(batches_of(log.path)) == after, "a second run finds nothing to do"
    assert records_of(after) == records_of(before)
    # A log of messages without keys whose offsets have gaps had these gaps before.
    errors = [finding for finding in verified.findings if finding.severity == ERROR and finding.code != "offset-hole"]
    assert not errors, verified.findings
    sets_before = {told[-1][0]: header for header, told in before}
    for header, told in after:
        assert header.codec == CODECS.index(codec) and header.last_offset == told[-1][0]
        was = sets_before[min(offset for offset in sets_before if offset >= told[-1][0])]
        if isinstance(header, LegacyBatch):
            assert header._replace(position=was.position) == was, "it had the codec already"
            continue
        assert header.base_offset == told[0][0] and header.record_count == len(told)
        assert header.max_timestamp == max(stamp for _, stamp, *_ in told)
        assert header.partition_leader_epoch == -1 and header.producer_id == -1 and header.base_sequence == -1
        if not was.codec:
            cuts = [start % (given_end + 1) for start in starts]
            assert not any(told[0][0] < cut <= told[-1][0] for cut in cuts), "an epoch begins inside of a batch"


def test_messages_that_stand_alone_are_gathered(tmp_path: Path) -> None:
    """As many as a producer would send at once: alone they do not compress. Not where a log may be cut."""
    log = Log(tmp_path)
    log.add([NewLegacyRecord(0, NOW_MS, b"key-%d" % at, b"a value of some bytes") for at in range(3000)], magic=1)
    log.close()
    log.epochs(0, 2500)
    assert recompress(log.path, "zstd") == 0
    batches = list(batches_of(log.path))
    spans = [(header.base_offset, header.last_offset) for header, _ in batches]
    assert spans[0][0] == 0 and spans[-1][1] == 2999
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(spans))
    assert any(first == 2500 for first, _ in spans)
    sizes = [sum(len(key or b"") + len(value or b"") for *_, key, value in told) for _, told in batches]
    assert max(sizes) <= GATHERED_BYTES and len(batches) < 3000 * 40 / GATHERED_BYTES + 3
    assert sum(path.stat().st_size for path in log.path.glob("*.log")) < len(log.data) / 4


def test_log_append_time_gathers_what_has_one_time(tmp_path: Path) -> None:
    """A batch of format 2 has one such timestamp; messages of format 0 have none, and no place among others."""
    log = Log(tmp_path)
    for append_time_ms in (NOW_MS, NOW_MS, NOW_MS + 1):
        log.add([NewLegacyRecord(0, 7, None, b"v")] * 2, magic=1, append_time_ms=append_time_ms)
    log.add([NewLegacyRecord(0, 7, None, b"v")] * 2, magic=0)
    log.add([NewLegacyRecord(0, 7, None, b"v")] * 2, magic=1)
    log.close()
    assert recompress(log.path, "lz4") == 0
    told = [(header.base_offset, header.is_log_append_time, header.max_timestamp) for header, _ in batches_of(log.path)]
    assert told == [(0, True, NOW_MS), (4, True, NOW_MS + 1), (6, False, -1), (8, False, 7)]


def test_formats_mixed_in_a_segment_keep_their_order(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.add([NewLegacyRecord(0, NOW_MS, b"k", b"0")] * 2, magic=0)
    log.data += bytes(new_batch([b"2"], keys=[b"k"], base_offset=2))
    log.offset = 3
    log.add([NewLegacyRecord(0, NOW_MS, b"k", b"3")], magic=1)
    log.add([NewLegacyRecord(0, NOW_MS, b"k", b"4")] * 2, magic=1, codec=1)
    log.close()
    before = records_of(list(batches_of(log.path)))
    assert recompress(log.path, "gzip") == 0
    after = list(batches_of(log.path))
    assert records_of(after) == before
    assert [(header.magic, header.base_offset, header.last_offset) for header, _ in after] == [
        (2, 0, 1),
        (2, 2, 2),
        (2, 3, 3),
        (1, 5, 5),
    ], "the set of gzip is copied, and tells its last offset"


def test_a_segment_that_grows_is_split_where_a_set_begins(tmp_path: Path) -> None:
    """Inflated sets need more segments; each has the offset of its first message, which a set does not tell by itself."""
    log = Log(tmp_path)
    for _ in range(8):
        log.add([NewLegacyRecord(0, NOW_MS, None, bytes(1000))] * 3, magic=1, codec=1)
    log.close()
    before = records_of(list(batches_of(log.path)))
    assert recompress(log.path, "none", "--segment-bytes", "7000") == 0
    assert records_of(list(batches_of(log.path))) == before
    assert sorted(int(path.stem) for path in log.path.glob("*.log")) == [0, 6, 12, 18]
    assert verify(log.path).is_sound


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
def test_a_damaged_message_leaves_the_partition_as_it_was(
    tmp_path: Path, codec: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One inside a set under a right CRC, too: its new one would make it look sound. The offsets must be possible, too."""
    log = Log(tmp_path)
    log.add([NewLegacyRecord(0, NOW_MS, None, b"v")], magic=1)
    at = len(log.data)
    inner = bytearray(encode_message(NewLegacyRecord(0, NOW_MS, None, b"value"), 1))
    inner[-1] ^= 1
    from kcli.format.compression import deflate

    log.data += encode_message(NewLegacyRecord(1, NOW_MS, None, deflate(1, bytes(inner))), 1, 1)
    log.close()
    path = log.path / f"{0:020}.log"
    assert recompress(log.path, codec) == 1
    assert f"{path}: the batch at byte {at}: the message of offset 1 inside it has a wrong CRC" in capfd.readouterr().err
    assert path.read_bytes() == log.data and sorted(log.path.iterdir()) == [path]
    backwards = [NewLegacyRecord(offset, NOW_MS, None, b"v") for offset in (5, 4)]
    path.write_bytes(encode_message_set(backwards, magic=0, codec=1))
    assert recompress(log.path, "zstd") == 1
    assert f"{path}: the batch at byte 0: the message of offset 4 behind that of offset 5" in capfd.readouterr().err


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_wrote_stays_what_it_says(shared: Path, tmp_path: Path, codec: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(shared / "kafka-logs-legacy" / "data", data)
    before = {path.name: records_of(list(batches_of(path))) for path in data.glob("magic*")}
    assert len(before) == 14 and all(before.values())
    assert recompress(data, codec, "--unclean") == 0
    after = {path.name: list(batches_of(path)) for path in data.glob("magic*")}
    assert {name: records_of(batches) for name, batches in after.items()} == before
    for name, batches in after.items():
        assert {header.codec for header, _ in batches} == {CODECS.index(codec)}
        kept = name.startswith("magic") and not name.startswith("magic2") and f"-{codec}-" in name
        if codec == "gzip" and "append-time" in name:
            kept = True
        assert {header.magic for header, _ in batches} == ({int(name[5])} if kept else {2}), name
    assert verify(data).is_sound
