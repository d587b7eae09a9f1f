"""Protects from payload that wants to be taken for the log: values and headers of records that are sound batches themselves.

A topic that holds copies of Kafka's own batches (a mirror, a dead letter queue, a backup of segments) has them without any
malice; an attacker chooses the offsets in them. Whatever rots around them, they never become records of the log, neither in a
repaired log nor in anything that reads behind damage, and every sound batch behind the damage is still read.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.index_entries import OffsetIndex
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, read_header
from kcli.format.records import Header, Record, encode_records
from kcli.inspect.repairing.repair_plan import RepairSettings, plan_partition
from kcli.inspect.repairing.salvage import LogSalvager
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.columnar_reader import ColumnarReader
from kcli.log.reading.segment_reader import BAD_SIZE, LOST_PLACE, TRUNCATED, Damage, SegmentReader
from tests.fuzz.batches import LZ4
from tests.fuzz.batches import stored as stored_records
from tests.log_builder import PartitionBuilder

PER_BATCH = 5
VICTIM = 10  # the base offset of the batch that rots


def forged(base_offset: int, count: int = PER_BATCH) -> bytes:
    """A sound batch that no broker wrote."""
    records = encode_records(Record(i, 0, b"mallory", b"alice +1000000") for i in range(count))
    return NewRecordBatch(base_offset, count - 1, 10, 10, count, records).encode()


class Log:
    """Six batches of five records at offsets 0 to 29; the values of the one at VICTIM are `payload`."""

    def __init__(self, directory: Path, payload: bytes, headers: tuple[Header, ...] = (), *, index_every: int = 100) -> None:
        self.builder = builder = PartitionBuilder(directory, index_every=index_every)
        self.starts: list[int] = []
        for base_offset in range(0, 30, PER_BATCH):
            self.starts.append(len(builder.log))
            is_victim = base_offset == VICTIM
            builder.append([(b"key", payload if is_victim else b"v" * 40)] * PER_BATCH, headers=headers if is_victim else ())
        builder.flush()
        self.path = builder.path(".log")
        self.victim = self.starts[VICTIM // PER_BATCH]
        self.behind = self.starts[VICTIM // PER_BATCH + 1]

    def change(self, position: int, data: bytes) -> None:
        """Overwrite bytes of the file."""
        with open(self.path, "r+b") as file:
            file.seek(position)
            file.write(data)

    def flip(self, position: int, mask: int = 1) -> None:
        """Flip bits of one byte."""
        self.change(position, bytes([self.path.read_bytes()[position] ^ mask]))

    def state_size(self, size_bytes: int) -> None:
        """Let the victim state another size."""
        self.change(self.victim + 8, (size_bytes - 12).to_bytes(4, "big"))

    def read(self) -> list[int]:
        """The base offsets of the batches that a reader takes for sound; the columnar reader agrees with it."""
        with SegmentReader(OsDisk(), str(self.path)) as reader:
            offsets = [
                found.header.base_offset for found in reader.batches() if not isinstance(found, Damage) and found.is_valid
            ]
        walk = ColumnarReader(OsDisk(), str(self.path))
        rows: list[int] = []
        for step in walk.steps():
            if not isinstance(step, Damage) and (step.batch is None or step.batch.is_valid):
                rows += walk.rows.base_offset[: step.rows]
        walk.close()
        assert rows == offsets
        return offsets

    def salvage(self, *, take_inner: bool = False) -> tuple[list[int], list[tuple[int, int | None]], int]:
        """-> the base offsets that a repair keeps, the offsets that it loses, and how many batches inside it remarks on."""
        found = LogSalvager(OsDisk(), take_inner=take_inner).salvage(str(self.path), 0, 0, 2**40)
        data = bytearray(self.path.read_bytes())
        for fix in found.fixes:
            data[fix.position : fix.position + len(fix.data)] = fix.data
        kept, position = [], 0
        cuts = [(cut.start, cut.end) for cut in found.cuts] + [(len(data), len(data))]
        for start, end in cuts:
            while position < start:
                header = read_header(data, position)
                kept.append(header.base_offset)
                position += header.size_bytes
            position = end
        lost = [(cut.first_offset, cut.end_offset) for cut in found.cuts if cut.first_offset != cut.end_offset]
        return kept, lost, sum(len(inner.batches) for inner in found.inner)


OTHERS = [0, 5, 15, 20, 25]
WHOLE = [0, 5, 10, 15, 20, 25]
# What the payload says of itself: its own old offsets, the outer batch's, the next ones, far ahead; one inside of another.
PAYLOADS = {
    "own": forged(5),
    "equal": forged(10),
    "within": forged(11, 2),
    "next": forged(15),
    "ahead": forged(1_000_000),
    "chain": forged(11, 1) + forged(12, 1) + forged(13, 1),
    "nested": NewRecordBatch(11, 0, 10, 10, 1, encode_records([Record(0, 0, b"k", forged(12, 1))])).encode(),
}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("rotten", [30, HEADER_BYTES + 3, HEADER_BYTES + 60])
def test_nothing_inside_of_a_rotten_batch_is_looked_at(tmp_path: Path, payload: str, rotten: int) -> None:
    """Its length leads to the batch that has the next offset: it goes as a whole, and its offsets are named."""
    log = Log(tmp_path / "t-0", PAYLOADS[payload])
    log.flip(log.victim + rotten, 3)
    assert log.read() == OTHERS
    assert log.salvage() == log.salvage(take_inner=True) == (OTHERS, [(10, 15)], 0)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("bit", range(31))
def test_a_length_with_a_flipped_bit_is_seen_by_the_crc(tmp_path: Path, payload: str, bit: int) -> None:
    """Wherever it leads, into the payload as well: the CRC is right for the true length, and nothing is lost."""
    log = Log(tmp_path / "t-0", PAYLOADS[payload])
    log.state_size(((log.behind - log.victim - 12) ^ (1 << bit)) + 12)
    assert log.read() == OTHERS
    assert log.salvage() == (WHOLE, [], 0)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_length_that_ends_where_the_payload_begins(tmp_path: Path, payload: str) -> None:
    """The worst place to which a length can lead: a sound batch, with the very offset that is expected."""
    log = Log(tmp_path / "t-0", PAYLOADS[payload])
    inside = log.path.read_bytes().index(PAYLOADS[payload]) - log.victim
    log.state_size(inside)
    assert log.read() == OTHERS
    assert log.salvage() == (WHOLE, [], 0)


@pytest.mark.parametrize("batches", [2, 3, 4])
def test_a_length_over_following_batches_hides_none(tmp_path: Path, batches: int) -> None:
    """Neither from a repair nor from a reader, though it ends exactly where a sound batch begins."""
    log = Log(tmp_path / "t-0", b"value")
    log.state_size(([*log.starts, log.path.stat().st_size][VICTIM // PER_BATCH + batches]) - log.victim)
    assert log.read() == OTHERS
    assert log.salvage() == (WHOLE, [], 0)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_torn_tail_holds_no_batches(tmp_path: Path, payload: str) -> None:
    """A batch whose end never reached the disk, cut behind each of the batches in its payload."""
    log = Log(tmp_path / "t-0", PAYLOADS[payload])
    data = log.path.read_bytes()
    at = data.index(PAYLOADS[payload])
    while at > 0:
        log.path.write_bytes(data[: at + len(PAYLOADS[payload])])
        assert log.read() == [0, 5]
        kept, lost, _ = log.salvage()
        assert (kept, lost) == ([0, 5], [(10, None)])
        at = data.find(PAYLOADS[payload], at + 1)


def test_a_candidate_inside_is_a_remark_and_taken_on_request_only(tmp_path: Path) -> None:
    """Length and records are both wrong, and the last batch's header is gone: nothing shows where the log goes on."""
    log = Log(tmp_path / "t-0", b"value")
    log.state_size(log.starts[5] - log.victim + 7)
    log.change(log.starts[5], b"\x11" * HEADER_BYTES)
    log.flip(log.victim + HEADER_BYTES + 3)
    kept, lost, inner = log.salvage()
    assert (kept, lost, inner) == ([0, 5], [(10, None)], 2)
    kept, lost, inner = log.salvage(take_inner=True)
    assert (kept, lost, inner) == ([0, 5, 15, 20], [(10, 15), (25, None)], 2)
    plan = plan_partition(OsDisk(), str(tmp_path / "t-0"), RepairSettings(take_inner=True))
    assert (15, 25) in [(hole.first_offset, hole.end_offset) for hole in plan.holes], "what is taken counts as lost"
    assert plan.loses_records
    with SegmentReader(OsDisk(), str(log.path)) as reader:
        kinds = [found.kind for found in reader.batches() if isinstance(found, Damage)]
    assert kinds == [LOST_PLACE]


@pytest.mark.parametrize("at", [HEADER_BYTES, 57, 23], ids=["a record", "the record count", "the last offset delta"])
def test_sound_batches_from_the_stated_end_to_the_end_of_the_file_are_the_log(tmp_path: Path, at: int) -> None:
    """In a compacted log the next offset may be missing. Payload would be followed by the rest of its record."""
    log = Log(tmp_path / "t-0", b"value")
    data = log.path.read_bytes()
    gone = log.starts[VICTIM // PER_BATCH + 2]
    log.path.write_bytes(data[: log.behind] + data[gone : log.starts[5]])
    log.flip(log.victim + at, 64)
    kept, lost, inner = log.salvage()
    assert (kept, lost, inner) == ([0, 5, 20], [(10, 20)], 0)
    assert log.read() == [0, 5, 20]


def test_the_index_shows_where_the_log_goes_on(tmp_path: Path) -> None:
    """An entry that points at a sound batch with its offset: all behind it is read.

    The length of the first record is wrong too: the records do not show where the batch ends. The batch before the entry has
    the next offset and leads to it; if it is damaged as well, nothing else counts.
    """
    log = Log(tmp_path / "t-0", forged(11, 2), index_every=5)
    log.state_size(1 << 20)
    log.flip(log.victim + HEADER_BYTES, 64)
    assert log.read() == [0, 5, 15, 20, 25]
    kept, lost, _ = log.salvage()
    assert (kept, lost) == ([0, 5, 15, 20, 25], [(10, 15)])
    log.change(log.behind, bytes(HEADER_BYTES))
    assert log.read() == [0, 5, 20, 25]
    kept, lost, _ = log.salvage()
    assert (kept, lost) == ([0, 5, 20, 25], [(10, 20)])


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_header_of_zeros_leads_to_the_batch_from_which_the_log_goes_on(tmp_path: Path, payload: str) -> None:
    """Nothing is known of the batch then; its payload does not lead to the end of the file, the next batch does."""
    log = Log(tmp_path / "t-0", PAYLOADS[payload])
    log.change(log.victim, bytes(HEADER_BYTES))
    assert log.read() == OTHERS
    assert log.salvage()[:2] == (OTHERS, [(10, 15)])


def outer(base_offset: int, payload: bytes, tail: bytes = b"") -> bytes:
    """A sound batch of two records that ends with `payload`, but for `tail`: the value of the last header."""
    headers = (Header(b"copy", payload + tail),)
    records = encode_records([Record(0, 0, b"key", b"value"), Record(1, 0, b"key", b"value", headers)])
    return NewRecordBatch(base_offset, 1, 10, 10, 2, records).encode()


def stating(batch: bytes, size_bytes: int) -> bytes:
    """A batch that states another size."""
    return batch[:8] + (size_bytes - 12).to_bytes(4, "big") + batch[12:]


def rotten(batch: bytes) -> bytes:
    """A batch with a wrong bit in its first record."""
    return batch[: HEADER_BYTES + 3] + bytes([batch[HEADER_BYTES + 3] ^ 1]) + batch[HEADER_BYTES + 4 :]


def sound_offsets(tmp_path: Path, *batches: bytes) -> list[tuple[int, int]]:
    """-> (byte, base offset) of what a reader takes for sound batches of a segment."""
    path = tmp_path / f"{0:020d}.log"
    path.write_bytes(b"".join(batches))
    with SegmentReader(OsDisk(), str(path)) as reader:
        return [
            (found.position, found.header.base_offset)
            for found in reader.batches()
            if not isinstance(found, Damage) and found.is_valid
        ]


def test_payload_with_the_offsets_of_its_own_batch_does_not_follow_it(tmp_path: Path) -> None:
    """Length and records of a batch are wrong, and the length ends at payload that overlaps it in offsets."""
    first, last = forged(0), forged(7)
    victim = outer(5, forged(5, 2))
    damaged = stating(rotten(victim), len(victim) - len(forged(5, 2)))
    found = sound_offsets(tmp_path, first, damaged, last)
    assert found == [(0, 0), (len(first) + len(victim), 7)]


def test_payload_below_a_damaged_batch_does_not_follow_it(tmp_path: Path) -> None:
    """The batch behind a rotten one states a length that ends at payload with offsets of both."""
    first, inner = forged(0, 3), forged(0, 4)
    second = outer(3, inner, b"\0")
    assert sound_offsets(tmp_path, rotten(first), stating(second, len(second) - len(inner) - 1)) == []


def test_damaged_batches_do_not_confirm_a_length(tmp_path: Path) -> None:
    """Two wrong lengths end at the same payload: only sound batches on the way show that a length is right."""
    inner = forged(15, 2)
    batches = [forged(0), forged(5), forged(10, 4), forged(14, 1), outer(15, inner)]
    inside = sum(map(len, batches)) - len(inner)
    starts = [sum(map(len, batches[:index])) for index in range(5)]
    batches[1] = stating(rotten(batches[1]), inside - starts[1])
    batches[3] = stating(batches[3], inside - starts[3])
    assert inside not in [position for position, _ in sound_offsets(tmp_path, *batches)]


def test_a_batch_whose_crc_is_right_is_never_looked_into(tmp_path: Path) -> None:
    """Though its records do not open: its CRC says that its length is right."""
    log = Log(tmp_path / "t-0", forged(11, 2))
    header = read_header(log.path.read_bytes(), log.victim)
    records = log.path.read_bytes()[log.victim + HEADER_BYTES : log.behind]
    lying = NewRecordBatch(
        header.base_offset, 4, header.base_timestamp, header.max_timestamp, 5, b"\x02" + records[1:], header.attributes
    ).encode()
    log.change(log.victim, lying)
    assert log.salvage(take_inner=True) == (OTHERS, [(10, 15)], 0)


def test_the_kind_of_damage_is_told(tmp_path: Path) -> None:
    """A wrong length with a right CRC says so; one that leads out of the file is a torn entry."""
    log = Log(tmp_path / "t-0", b"value")
    log.state_size(log.starts[4] - log.victim)
    with SegmentReader(OsDisk(), str(log.path)) as reader:
        (damage,) = (found for found in reader.batches() if isinstance(found, Damage))
    assert damage[:3] == (log.victim, log.behind, BAD_SIZE)
    assert "its CRC is that of" in damage.message
    log.state_size(1 << 30)
    with SegmentReader(OsDisk(), str(log.path)) as reader:
        (damage,) = (found for found in reader.batches() if isinstance(found, Damage))
    assert damage[:3] == (log.victim, log.behind, TRUNCATED)


CHAIN = 40


def chain(base_offset: int) -> bytes:
    """More sound batches that continue each other than any number at which a reader could take them for the log."""
    return b"".join(forged(base_offset + number, 1) for number in range(CHAIN))


def stored(base_offset: int, payload: bytes, count: int = 3) -> bytes:
    """A sound batch of which the codec leaves the bytes as they are, with `payload` at its end: no lengths of records help."""
    records = stored_records(LZ4, b"\x77" * 300 + payload)
    return NewRecordBatch(base_offset, count - 1, 10, 10, count, records, attributes=LZ4).encode()


@pytest.mark.parametrize("at", [46, HEADER_BYTES + 9], ids=["the producer id", "a record"])
def test_a_long_chain_of_payload_is_not_the_log(tmp_path: Path, at: int) -> None:
    """One wrong bit in a batch, and as many batches in its payload as an attacker likes, with exactly the next offsets."""
    log = Log(tmp_path / "t-0", chain(15))
    log.flip(log.victim + at)
    assert log.read() == OTHERS
    assert log.salvage()[:2] == (OTHERS, [(10, 15)])


@pytest.mark.parametrize("first", [10, 15])
def test_a_long_chain_does_not_hide_that_only_a_length_is_wrong(tmp_path: Path, first: int) -> None:
    """A length that is no bit away from the right one, and that ends within the payload."""
    log = Log(tmp_path / "t-0", chain(first))
    log.state_size(log.behind - log.victim - 30)
    assert log.read() == OTHERS
    assert log.salvage() == (WHOLE, [], 0)


@pytest.mark.parametrize("first", [5, 8])
def test_a_long_chain_in_stored_records_is_not_the_log(tmp_path: Path, first: int) -> None:
    """The stated length leads to a sound batch behind a gap that a cleaner made: one damage explains all bytes."""
    victim = bytearray(stored(5, chain(first)))
    victim[46] ^= 1
    before, behind = forged(0), forged(20) + forged(25)
    found = sound_offsets(tmp_path, before, bytes(victim), behind)
    assert [offset for _, offset in found] == [0, 20, 25]


@pytest.mark.parametrize("size", [12, 70, 3000])
def test_a_long_chain_in_stored_records_does_not_hide_that_only_a_length_is_wrong(tmp_path: Path, size: int) -> None:
    """The CRC is right up to the header with the next offset, however many sound batches are before it."""
    first, victim, last = forged(0), stored(5, chain(5) + bytes(7)), forged(8) + forged(13)
    found = sound_offsets(tmp_path, first, stating(victim, size), last)
    assert [offset for _, offset in found] == [0, 8, 13]


def test_many_batches_that_do_not_continue_each_other_are_not_the_log(tmp_path: Path) -> None:
    """A copy of a compacted log in the value of a record: more batches than are compared, each behind a gap."""
    payload = b"".join(forged(8 + 2 * number, 1) for number in range(5 * CHAIN))
    victim = bytearray(stored(5, payload))
    victim[46] ^= 1
    found = sound_offsets(tmp_path, forged(0), bytes(victim), forged(20), forged(25))
    assert [offset for _, offset in found] == [0, 20, 25]


@pytest.mark.parametrize("pieces", [2, 20, CHAIN])
def test_a_torn_tail_of_stored_records_holds_no_chain(tmp_path: Path, pieces: int) -> None:
    """A write that was cut off behind any of the batches in its payload."""
    victim = stored(5, chain(8) + bytes(100))
    torn = victim[: victim.index(chain(8)) + len(chain(8)) * pieces // CHAIN]
    assert [offset for _, offset in sound_offsets(tmp_path, forged(0), torn)] == [0]


@pytest.mark.parametrize("gap", [1, 2], ids=["next", "gaps"])
@pytest.mark.parametrize("behind", [1, 2, 5])
@pytest.mark.parametrize("shift", [-64, -7, 7, 64, 700])
def test_a_chain_does_not_win_by_being_long(tmp_path: Path, gap: int, behind: int, shift: int) -> None:
    """Bytes of a batch are missing or were inserted before the chain in its records: a few batches of the log are behind it."""
    payload = b"".join(forged(8 + gap * number, 1) for number in range(2 * CHAIN))
    victim = stored(5, payload + bytes(100))
    at = HEADER_BYTES + 100
    moved = victim[:at] + b"\x55" * max(shift, 0) + victim[at + max(-shift, 0) :]
    log = [forged(8 + PER_BATCH * number) for number in range(behind)]
    found = sound_offsets(tmp_path, forged(0), moved, *log)
    assert [offset for _, offset in found] == [0, *(8 + PER_BATCH * number for number in range(behind))]


def test_a_long_chain_is_not_payload_because_of_a_wrong_offset(tmp_path: Path) -> None:
    """A header is gone, and far behind it is one wrong bit in the base offset of a batch of a cleaned log."""
    log = [bytearray(forged(10 + 7 * number)) for number in range(30)]
    log[20][4] ^= 1
    found = sound_offsets(tmp_path, forged(0), bytes(HEADER_BYTES) + forged(5)[HEADER_BYTES:], *map(bytes, log))
    assert [offset for _, offset in found] == [0, *(10 + 7 * number + (number == 20 and 1 << 24) for number in range(30))]


def test_an_index_entry_contradicts_a_chain(tmp_path: Path) -> None:
    """A header is gone, and the offsets of the payload reach beyond the batch of the entry, which is the last one."""
    victim = bytes(HEADER_BYTES) + stored(5, chain(8))[HEADER_BYTES:]
    index = OffsetIndex.of(0)
    index.append(12, len(forged(0)) + len(victim))
    (tmp_path / f"{0:020d}.index").write_bytes(index.encode())
    assert [offset for _, offset in sound_offsets(tmp_path, forged(0), victim, forged(8))] == [0, 8]
