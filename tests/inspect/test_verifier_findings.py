"""Protects every finding: the least damage that is to give it gives it, and nothing else unless it must."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from kcli.format.compression import deflate
from kcli.format.index_entries import AbortedTxn, OffsetIndex, OffsetIndexEntry, TimeIndex, TimeIndexEntry, TransactionIndex
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.inspect.renderers.terminal_text import MOST_SENTENCE
from kcli.inspect.verification.finding_kinds import ERROR, KINDS
from kcli.inspect.verification.findings import MOST_OF_A_KIND
from tests.conftest import every_log_set
from tests.damage.layout import patch
from tests.inspect.verified import TIME, batch, codes, entry, marker, partition, root_files, verify
from tests.message_sets import NewLegacyRecord, encode_message

Case = Callable[[Path], Sequence[Path] | None]
CASES: list[tuple[Case, frozenset[str]]] = []
ZERO = f"{0:020d}"


def case(*expected: str) -> Callable[[Case], Case]:
    """Enter a case: it makes a log directory in `root`, and may say what of it to verify; exactly `expected` is found."""

    def enter(make: Case) -> Case:
        CASES.append((make, frozenset(expected)))
        return make

    return enter


def one_segment(root: Path, *batches: NewRecordBatch | bytes, epochs: Iterable[tuple[int, int]] = ((0, 0),)) -> Path:
    """A log directory of one partition of one segment -> the path of its log."""
    path = partition(root, "t-0", batches, epochs=epochs)
    root_files(root)
    return path / f"{ZERO}.log"


# ------------------------------------------------------------------------------------------------------------ reading


@case("file-unreadable")
def a_pipe_for_an_index(root: Path) -> None:
    index = one_segment(root, batch(0)).with_suffix(".index")
    index.unlink()
    os.mkfifo(index)


@case("findings-cut", "index-mismatch")
def an_index_of_lies(root: Path) -> None:
    log = one_segment(root, *(batch(offset) for offset in range(MOST_OF_A_KIND + 10)))
    entries = [OffsetIndexEntry(offset + 1, 60 + offset) for offset in range(MOST_OF_A_KIND + 5)]
    log.with_suffix(".index").write_bytes(OffsetIndex.of(0, entries).encode())


@case("file-unknown")
def a_segment_and_a_log_of_text_in_the_root(root: Path) -> None:
    one_segment(root, batch(0))
    (root / f"{ZERO}.log").write_bytes(batch(0).encode())
    (root / "server.log").write_bytes(b"INFO started")


# ------------------------------------------------------------------------------------------------------------ batches


@case("log-torn-tail", "leader-epoch-mismatch", "records-missing", "clean-shutdown-untrue")
def a_torn_tail(root: Path) -> None:
    one_segment(root, batch(0, 3), batch(3).encode()[:-1], epochs=[(1, 0)])
    root_files(root, recovery_point={"t-0": 4})


@case("log-zero-tail")
def zeros_behind_the_last_batch(root: Path) -> None:
    one_segment(root, batch(0, 3), bytes(4096))


@case("batch-size")
def a_length_that_lies(root: Path) -> None:
    log = one_segment(root, batch(0), batch(1), batch(2))
    patch(log, len(batch(0).encode()) + 8, (10**6).to_bytes(4, "big"))


@case("batch-magic")
def a_magic_that_does_not_exist(root: Path) -> None:
    patch(one_segment(root, batch(0), batch(1)), 16, b"\x07")


@case("batch-crc")
def a_flipped_bit(root: Path) -> None:
    log = one_segment(root, batch(0, 5), batch(5))
    patch(log, 70, bytes([log.read_bytes()[70] ^ 1]))


@case("batch-header", "batch-records")
def more_records_than_offsets(root: Path) -> None:
    one_segment(root, batch(0)._replace(record_count=9))


@case("batch-header")
def a_negative_delta(root: Path) -> None:
    odd = batch(1)._replace(last_offset_delta=-2, record_count=0, records=b"")
    one_segment(root, batch(0), odd.encode(), batch(1))


@case("batch-header", "index-mismatch", "timeindex-mismatch")
def a_last_offset_that_none_can_follow(root: Path) -> None:
    """2^63-1: the base offset is outside of the CRC."""
    log = one_segment(root, batch(0), batch(1, 5))
    patch(log, log.stat().st_size - len(batch(1, 5).encode()), (2**63 - 5).to_bytes(8, "big"))


@case("batch-attributes")
def an_attribute_without_meaning(root: Path) -> None:
    one_segment(root, batch(0)._replace(attributes=0x100))


@case("batch-codec")
def a_codec_that_does_not_exist(root: Path) -> None:
    one_segment(root, batch(0)._replace(attributes=6))


@case("batch-inflate")
def bytes_that_do_not_inflate(root: Path) -> None:
    one_segment(root, batch(0)._replace(attributes=4, records=b"no zstd frame at all"))


@case("batch-records")
def a_byte_behind_the_records(root: Path) -> None:
    one_segment(root, batch(0)._replace(records=batch(0).records + b"\0"))


@case("record-offset")
def an_offset_twice_in_a_batch(root: Path) -> None:
    records = encode_records([Record(0, 0, None, b"a"), Record(0, 0, None, b"b")])
    one_segment(root, batch(0, 2)._replace(records=records, max_timestamp=TIME))


@case("record-crc", "timeindex-behind")
def a_flipped_bit_in_a_compressed_set(root: Path) -> None:
    inner = bytearray(encode_message(NewLegacyRecord(0, TIME, b"k", b"value"), 1))
    inner[-1] ^= 1
    wrapper = encode_message(NewLegacyRecord(0, TIME, None, deflate(1, bytes(inner), magic=1)), 1, 1)
    one_segment(root, wrapper, epochs=[])


@case("batch-max-timestamp")
def a_timestamp_that_no_record_has(root: Path) -> None:
    one_segment(root, batch(0)._replace(max_timestamp=TIME + 9))


@case("control-record")
def a_marker_of_unknown_type(root: Path) -> None:
    records = encode_records([Record(0, 0, bytes([0, 0, 0, 9]), bytes(6))])
    odd = marker(1, 5)._replace(records=records)
    partition(root, "t-0", [batch(0), odd], snapshots={2: []})
    root_files(root)


# ------------------------------------------------------------------------------------------------------------ offsets


@case("offset-back")
def a_batch_twice(root: Path) -> None:
    one_segment(root, batch(0, 2), batch(0, 2)).with_suffix(".index").write_bytes(b"")


@case("offset-before-segment", "segment-overlap", "offset-back")
def a_segment_that_begins_too_early(root: Path) -> None:
    path = partition(root, "t-0", [batch(0, 5)], [batch(5), batch(6)])
    log = path / f"{5:020d}.log"
    log.write_bytes(batch(3).encode() + batch(3, 3).encode())
    log.with_suffix(".index").write_bytes(b"")
    log.with_suffix(".timeindex").write_bytes(TimeIndex.of(5, [TimeIndexEntry(TIME + 5, 5)]).encode())
    root_files(root)


@case("offset-overflow", "offset-gap")
def an_offset_too_far_from_the_name(root: Path) -> None:
    path = partition(root, "t-0", [batch(0)])
    (path / f"{ZERO}.log").write_bytes(batch(0).encode() + batch(2**31, 1).encode())
    (path / f"{ZERO}.timeindex").unlink()
    (path / f"{ZERO}.timeindex").write_bytes(b"")
    root_files(root, clean=False)
    (root / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (root / "meta.properties").unlink()
    for checkpoint in root.glob("*-offset-checkpoint"):
        checkpoint.unlink()


@case("offset-gap")
def a_hole_in_a_segment(root: Path) -> None:
    one_segment(root, batch(0), batch(5))


def keyless(offset: int) -> NewRecordBatch:
    """A sound batch of a record without a key, compressed."""
    records = deflate(4, encode_records([Record(0, 0, None, b"value")]))
    return batch(offset)._replace(records=records, attributes=4)


@case("offset-hole", "clean-shutdown-with-holes")
def a_hole_after_a_record_without_a_key(root: Path) -> None:
    """The cleaner would have removed the record: the gap is not the cleaner's, whatever the topic's policy is."""
    one_segment(root, batch(0), keyless(1), batch(5))


@case("offset-gap")
def a_hole_before_a_record_without_a_key(root: Path) -> None:
    """The policy may have been compact before the record came."""
    one_segment(root, batch(0), batch(5), keyless(6))


@case("offset-gap")
def a_hole_after_a_control_record(root: Path) -> None:
    """The cleaner keeps markers."""
    transaction = [batch(0, producer=7, sequence=0, transactional=True), marker(1, 7)]
    partition(root, "t-0", [*transaction, batch(5)], snapshots={6: [entry(7, -1, -1)._replace(coordinator_epoch=0)]})
    root_files(root)


@case("segment-gap", "clean-shutdown-with-holes")
def a_hole_between_segments(root: Path) -> None:
    partition(root, "t-0", [batch(0)], [batch(5)])
    root_files(root)


@case("segment-overlap")
def a_segment_that_goes_on_too_long(root: Path) -> None:
    partition(root, "t-0", [batch(0, 5)], [batch(3, 3)])
    root_files(root)


# ------------------------------------------------------------------------------------------------------- leader epochs


@case("leader-epoch-back")
def a_leader_epoch_that_goes_back(root: Path) -> None:
    batches = [batch(0)._replace(partition_leader_epoch=4), batch(1)._replace(partition_leader_epoch=3)]
    one_segment(root, *batches, epochs=[(4, 0)])


@case("leader-epoch-mismatch")
def a_leader_epoch_that_the_file_does_not_have(root: Path) -> None:
    one_segment(root, batch(0), batch(1)._replace(partition_leader_epoch=2), batch(2)._replace(partition_leader_epoch=2))


@case("leader-epoch-missing")
def no_leader_epochs(root: Path) -> None:
    (one_segment(root, batch(0)).parent / "leader-epoch-checkpoint").unlink()


@case("leader-epoch-order")
def leader_epochs_that_go_back(root: Path) -> None:
    one_segment(root, batch(0), epochs=[(5, 0), (0, 0)])


@case("leader-epoch-beyond-end")
def a_leader_epoch_behind_the_end(root: Path) -> None:
    one_segment(root, batch(0), epochs=[(0, 0), (1, 2)])


# ------------------------------------------------------------------------------------------------------------- indexes


@case("index-missing", "timeindex-missing")
def no_indexes(root: Path) -> None:
    log = one_segment(root, batch(0))
    log.with_suffix(".index").unlink()
    log.with_suffix(".timeindex").unlink()


@case("index-size", "timeindex-size")
def torn_indexes(root: Path) -> None:
    log = one_segment(root, batch(0))
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).write_bytes(log.with_suffix(suffix).read_bytes() + b"\0\0\0")


@case("index-order", "timeindex-order")
def unsorted_indexes(root: Path) -> None:
    log = one_segment(root, batch(0), batch(1), batch(2))
    size = len(batch(0).encode())
    entries = [OffsetIndexEntry(2, 2 * size), OffsetIndexEntry(3, size)]
    log.with_suffix(".index").write_bytes(OffsetIndex.of(0, entries).encode())
    times = TimeIndex.of(0, [TimeIndexEntry(TIME + 1, 1)]).encode() + TimeIndex.of(0, [TimeIndexEntry(TIME, 2)]).encode()
    log.with_suffix(".timeindex").write_bytes(times)


@case("index-mismatch", "timeindex-mismatch")
def indexes_of_another_segment(root: Path) -> None:
    log = one_segment(root, batch(0), batch(1), batch(2))
    log.with_suffix(".index").write_bytes(OffsetIndex.of(0, [OffsetIndexEntry(1, 5)]).encode())
    log.with_suffix(".timeindex").write_bytes(TimeIndex.of(0, [TimeIndexEntry(TIME + 7, 1)]).encode())


@case("index-zero-tail", "timeindex-zero-tail")
def preallocated_indexes_after_a_clean_stop(root: Path) -> None:
    log = one_segment(root, batch(0), batch(1))
    for suffix in (".index", ".timeindex"):
        log.with_suffix(suffix).write_bytes(log.with_suffix(suffix).read_bytes() + bytes(4800))


@case("index-empty")
def a_large_segment_without_an_entry(root: Path) -> None:
    large = encode_records([Record(0, 0, None, bytes(200_000))])
    log = one_segment(root, *(batch(offset)._replace(records=large) for offset in range(3)))
    log.with_suffix(".index").write_bytes(b"")


@case("index-orphan")
def an_index_without_a_log(root: Path) -> None:
    (one_segment(root, batch(0)).parent / f"{7:020d}.timeindex").write_bytes(b"")


@case("timeindex-behind")
def no_last_time(root: Path) -> None:
    one_segment(root, batch(0)).with_suffix(".timeindex").write_bytes(b"")


def transactions(root: Path, *aborted: AbortedTxn, trailing: bytes = b"") -> None:
    """A partition with a transaction of producer 7, from offset 0 to its abort marker at offset 2."""
    batches = [batch(0, 2, producer=7, sequence=0, transactional=True), marker(2, 7, abort=True)]
    told = entry(7, 1, 1, delta=1)._replace(timestamp=TIME + 2, coordinator_epoch=0)
    path = partition(root, "t-0", batches, snapshots={3: [told]})
    (path / f"{ZERO}.txnindex").write_bytes(TransactionIndex(0, list(aborted), trailing).encode())
    root_files(root)


SOUND_ABORT = AbortedTxn(0, 7, 0, 2, 3)


@case()
def a_sound_transaction_index(root: Path) -> None:
    transactions(root, SOUND_ABORT)


@case("txnindex-size")
def a_torn_transaction_index(root: Path) -> None:
    transactions(root, SOUND_ABORT, trailing=b"\0\0")


@case("txnindex-version", "txnindex-missing-entry")
def a_transaction_index_of_another_version(root: Path) -> None:
    transactions(root, SOUND_ABORT._replace(version=256))


@case("txnindex-mismatch")
def a_transaction_that_began_elsewhere(root: Path) -> None:
    transactions(root, SOUND_ABORT._replace(first_offset=1))


@case("txnindex-missing-entry")
def an_aborted_transaction_that_is_not_told(root: Path) -> None:
    transactions(root)


# ----------------------------------------------------------------------------------------------------------- producers


@case("snapshot-corrupt")
def a_flipped_snapshot(root: Path) -> None:
    path = partition(root, "t-0", [batch(0, 2, producer=7, sequence=0)], snapshots={2: [entry(7, 1, 1, delta=1)]})
    patch(path / f"{2:020d}.snapshot", 20, b"\xff")
    root_files(root)


@case("snapshot-mismatch")
def a_snapshot_of_another_sequence(root: Path) -> None:
    partition(root, "t-0", [batch(0, 2, producer=7, sequence=0)], snapshots={2: [entry(7, 5, 1, delta=1)]})
    root_files(root)


@case("snapshot-missing")
def no_snapshot(root: Path) -> None:
    partition(root, "t-0", [batch(0, 2, producer=7, sequence=0)])
    root_files(root)


@case("snapshot-behind")
def no_snapshot_of_the_end(root: Path) -> None:
    batches = [batch(0, producer=7, sequence=0), batch(1, producer=7, sequence=1)]
    partition(root, "t-0", batches, snapshots={1: [entry(7, 0, 0)]})
    root_files(root)


@case("snapshot-beyond-end")
def a_snapshot_of_the_future(root: Path) -> None:
    partition(root, "t-0", [batch(0)], snapshots={9: []})
    root_files(root)


@case("producer-fields")
def a_transaction_without_a_producer(root: Path) -> None:
    one_segment(root, batch(0)._replace(attributes=TRANSACTIONAL_FLAG))


def two_batches(root: Path, first: NewRecordBatch, second: NewRecordBatch) -> None:
    """Two batches of producer 7 at the offsets 0 and 1, and an honest snapshot of the second."""
    path = partition(root, "t-0", [first, second], snapshots={2: []})
    (path / f"{2:020d}.snapshot").unlink()
    partition(root, "u-0", [batch(0)], snapshots={1: []})
    shutil.copy(root / "u-0" / f"{1:020d}.snapshot", path / f"{2:020d}.snapshot")
    root_files(root)


@case("producer-sequence-gap")
def a_sequence_that_jumps(root: Path) -> None:
    two_batches(root, batch(0, producer=7, sequence=0), batch(1, producer=7, sequence=5))


@case("producer-sequence-back")
def a_sequence_that_repeats(root: Path) -> None:
    two_batches(root, batch(0, producer=7, sequence=4), batch(1, producer=7, sequence=4))


@case("producer-epoch-back")
def a_producer_epoch_that_goes_back(root: Path) -> None:
    two_batches(root, batch(0, producer=7, sequence=0)._replace(producer_epoch=3), batch(1, producer=7, sequence=0))


@case("coordinator-epoch-back")
def a_coordinator_epoch_that_goes_back(root: Path) -> None:
    two_batches(root, marker(0, 7, coordinator_epoch=3), marker(1, 7, coordinator_epoch=2))


@case("transaction-mixed", "transaction-open", "snapshot-mismatch")
def records_outside_of_an_open_transaction(root: Path) -> None:
    first = batch(0, producer=7, sequence=0, transactional=True)
    two_batches(root, first, batch(1, producer=7, sequence=1))


@case("transaction-open")
def a_transaction_without_an_end(root: Path) -> None:
    batches = [batch(0, producer=7, sequence=0, transactional=True)]
    partition(root, "t-0", batches, snapshots={1: [entry(7, 0, 0, open_from=0)]})
    root_files(root)


# --------------------------------------------------------------------------------------------------------- checkpoints


@case("checkpoint-corrupt")
def a_checkpoint_of_words(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "replication-offset-checkpoint").write_text("0\n1\nt 0 many\n")


@case("recovery-point-beyond-end", "high-watermark-beyond-end", "log-start-beyond-end", "cleaner-offset-beyond-end")
def checkpoints_behind_the_end(root: Path) -> None:
    one_segment(root, batch(0))
    far = {"t-0": 9}
    root_files(root, recovery_point=far, replication=far, log_start=far, cleaner=far)


@case("high-watermark-missing")
def no_high_watermarks(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "replication-offset-checkpoint").unlink()


@case("partition-missing", "clean-shutdown-untrue")
def a_partition_that_is_gone(root: Path) -> None:
    one_segment(root, batch(0))
    root_files(root, recovery_point={"t-0": 1, "gone-3": 8})


@case("log-start-behind")
def a_log_start_offset_that_was_lost(root: Path) -> None:
    one_segment(root, *(batch(offset) for offset in range(5)), epochs=[(0, 3)])


@case("log-start-behind")
def a_log_start_offset_inside_of_the_only_batch_of_its_segment(root: Path) -> None:
    one_segment(root, batch(0, 5), epochs=[(0, 3)])


# ----------------------------------------------------------------------------------------------------- names, leftovers


@case("name-irregular")
def logs_of_odd_names(root: Path) -> None:
    log = one_segment(root, batch(0))
    (log.parent / "7.log").write_bytes(b"")
    (log.parent / "backup.log").write_bytes(b"")


@case("file-unknown")
def a_file_that_is_not_kafkas(root: Path) -> None:
    (one_segment(root, batch(0)).parent / "notes.txt").write_bytes(b"")


@case("leftover-deleted", "leftover-cleaned", "leftover-swap", "leftover-temporary")
def leftovers(root: Path) -> None:
    directory = one_segment(root, batch(0)).parent
    for name in (f"{5:020d}.log.deleted", f"{0:020d}.log.cleaned", f"{0:020d}.log.swap", "leader-epoch-checkpoint.tmp"):
        (directory / name).write_bytes(b"")


@case("directory-name")
def a_directory_of_another_name(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "lost+found").mkdir()


@case("directory-stray", "leftover-deleted")
def partitions_set_aside(root: Path) -> None:
    one_segment(root, batch(0))
    unique = "0123456789abcdef0123456789abcdef"
    partition(root, f"s-0.{unique}-stray", [batch(0)])
    partition(root, f"d-0.{unique}-delete", [batch(0)])


@case("partition-empty", "records-missing", "clean-shutdown-untrue")
def a_partition_whose_segment_is_gone(root: Path) -> None:
    """The high watermark alone is not believed after a clean stop, but that the recovery point agrees."""
    path = partition(root, "t-0", [batch(0, 5)])
    (path / f"{ZERO}.log").unlink()
    (path / f"{ZERO}.index").unlink()
    (path / f"{ZERO}.timeindex").unlink()
    root_files(root, recovery_point={"t-0": 5}, replication={"t-0": 5})


@case("records-missing", "unclean-shutdown")
def the_tail_of_a_crashed_log_is_gone(root: Path) -> None:
    """A crash takes what was not flushed without a trace; the high watermark is flushed."""
    partition(root, "t-0", [batch(0, 5)])
    root_files(root, clean=False, replication={"t-0": 8})


@case("records-missing", "snapshot-beyond-end", "leader-epoch-beyond-end", "clean-shutdown-untrue")
def a_snapshot_and_an_epoch_know_more_than_the_log(root: Path) -> None:
    """Two sources, neither of which counts by itself after a clean stop."""
    partition(root, "t-0", [batch(0, 5)], snapshots={5: [], 8: []}, epochs=[(0, 0), (1, 8)])
    root_files(root)


@case("records-missing", "clean-shutdown-untrue")
def a_clean_stop_that_the_recovery_point_denies(root: Path) -> None:
    """A clean stop moves the recovery point to the end of the log: after this one the high watermark counts by itself."""
    partition(root, "t-0", [batch(0, 5)])
    root_files(root, recovery_point={"t-0": 2}, replication={"t-0": 8})


@case("log-start-beyond-end", "high-watermark-beyond-end")
def a_log_start_offset_and_a_high_watermark_that_cannot_be(root: Path) -> None:
    """They are no two sources for an end: with this log start offset as the end, every record of the log would be deleted."""
    partition(root, "t-0", [batch(0, 5)])
    root_files(root, log_start={"t-0": 6}, replication={"t-0": 800})


@case("records-missing", "snapshot-beyond-end", "partition-empty", "unclean-shutdown")
def a_snapshot_is_all_that_is_left(root: Path) -> None:
    """No batch contradicts it."""
    path = partition(root, "t-0", [batch(0, 5)], snapshots={5: []})
    for file in path.glob(f"{ZERO}.*"):
        file.unlink()
    root_files(root, clean=False)


@case("segment-gap", "timeindex-mismatch", "clean-shutdown-with-holes")
def a_segment_without_bytes_whose_time_index_has_an_entry(root: Path) -> None:
    """The log was compacted, so that a gap is no finding. But a cleaner that removes every batch leaves no entry."""
    path = partition(root, "t-0", [batch(0, 5)], [batch(5, 4)], [batch(9, 3)])
    path.joinpath(f"{5:020d}.log").write_bytes(b"")
    root_files(root, cleaner={"t-0": 9})


@case("segment-gap", "clean-shutdown-with-holes")
def an_empty_segment_behind_a_gap(root: Path) -> None:
    """What a repair leaves where the end of a log is lost: no offset is given out twice."""
    path = partition(root, "t-0", [batch(0, 5)], [], base=9)
    assert (path / f"{9:020d}.log").exists()
    root_files(root)


@case("offset-mismatch", "offset-gap", "timeindex-behind")
def a_last_batch_behind_the_end_that_the_checkpoints_have(root: Path) -> None:
    """One bit of its base offset is wrong, and no index has it."""
    path = partition(root, "t-0", [batch(0, 3), batch(3, 3)])
    patch(path / f"{ZERO}.log", len(batch(0, 3).encode()), (7).to_bytes(8, "big"))
    for name in (f"{ZERO}.index", f"{ZERO}.timeindex"):
        (path / name).write_bytes(b"")
    root_files(root, recovery_point={"t-0": 6}, replication={"t-0": 6})


@case("partition-empty")
def a_partition_of_nothing(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "e-0").mkdir()
    shutil.copy(root / "t-0" / "partition.metadata", root / "e-0")


# ------------------------------------------------------------------------------------------------------ log directories


@case("partition-duplicate", "directory-id-twice")
def a_copied_log_directory(root: Path) -> Sequence[Path]:
    for name in ("one", "two"):
        partition(root / name, "t-0", [batch(0)])
        root_files(root / name, directory_id="AAAAAAAAAAAAAAAAAAAAAw")
    return [root / "one", root / "two"]


@case("meta-properties-differ")
def log_directories_of_two_brokers(root: Path) -> Sequence[Path]:
    for node, name in enumerate(("one", "two"), 1):
        partition(root / name, "t-0", [batch(0)])
        root_files(root / name)
        properties = root / name / "meta.properties"
        properties.write_text(properties.read_text().replace("node.id=1", f"node.id={node}"))
    return [root / "one", root / "two"]


@case("partition-metadata-missing")
def no_partition_metadata(root: Path) -> None:
    (one_segment(root, batch(0)).parent / "partition.metadata").unlink()


@case("partition-metadata-corrupt")
def an_empty_partition_metadata(root: Path) -> None:
    (one_segment(root, batch(0)).parent / "partition.metadata").write_bytes(b"")


def beside_a_metadata_log(root: Path, name: str, metadata_of: str) -> Sequence[Path]:
    """A partition `name` with the topic id of another, beside the metadata log of a cluster that Kafka ran."""
    data = next((found.data for found in every_log_set() if (found.data / "__cluster_metadata-0").is_dir()), None)
    if data is None:
        pytest.skip("neither ../shared nor fixtures/ holds a metadata log")
    shutil.copytree(data / "__cluster_metadata-0", root / "__cluster_metadata-0")
    one_segment(root, batch(0))
    (root / "t-0").rename(root / name)
    shutil.copy(data / metadata_of / "partition.metadata", root / name)
    return [root]


@case("topic-id-mismatch")
def the_id_of_another_topic(root: Path) -> Sequence[Path]:
    return beside_a_metadata_log(root, "orders-0", "grown-0")


@case("offset-hole", "clean-shutdown-with-holes")
def a_hole_in_a_topic_that_was_never_compacted(root: Path) -> Sequence[Path]:
    """The metadata log knows its policy: it cannot have been the cleaner."""
    paths = beside_a_metadata_log(root, "orders-0", "orders-0")
    log = root / "orders-0" / f"{ZERO}.log"
    log.write_bytes(batch(0).encode() + batch(5).encode())
    index = OffsetIndex.of(0, [OffsetIndexEntry(5, len(batch(0).encode()))])
    log.with_suffix(".index").write_bytes(index.encode())
    log.with_suffix(".timeindex").write_bytes(TimeIndex.of(0, [TimeIndexEntry(TIME + 5, 5)]).encode())
    return paths


@case("topic-unknown")
def a_topic_that_the_cluster_does_not_know(root: Path) -> Sequence[Path]:
    return beside_a_metadata_log(root, "nobody-0", "grown-0")


@case("meta-properties-missing")
def no_meta_properties(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "meta.properties").unlink()


@case("meta-properties-corrupt")
def meta_properties_without_a_node(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "meta.properties").write_text("version=1\ncluster.id=x\n")


@case("metadata-snapshot-incomplete")
def a_snapshot_without_its_frame(root: Path) -> None:
    one_segment(root, batch(0))
    (root / "bootstrap.checkpoint").write_bytes(batch(0).encode())


@case("clean-shutdown-corrupt")
def a_mark_that_cannot_be_read(root: Path) -> None:
    one_segment(root, batch(0))
    (root / ".kafka_cleanshutdown").write_text("yes")


@case("unclean-shutdown")
def a_crash(root: Path) -> None:
    one_segment(root, batch(0))
    (root / ".kafka_cleanshutdown").unlink()


@pytest.mark.parametrize(("make", "expected"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_damage_is_found_and_nothing_else(make: Case, expected: frozenset[str], tmp_path: Path) -> None:
    """Exactly the codes that the damage calls for; each at a file that is there."""
    paths = make(tmp_path) or [tmp_path]
    report = verify(*paths)
    assert codes(report) == expected, report.findings
    for finding in report.findings:
        assert Path(finding.file).exists() and finding.message
        if finding.position is not None:
            assert 0 <= finding.position <= Path(finding.file).stat().st_size


# Provoked in test_verifier.py: by a lock, by a file that shrinks, by a bomb.
ELSEWHERE = {"directory-live", "file-shrank", "batch-inflate-limit"}


def test_every_finding_is_provoked() -> None:
    """A check that no test can make speak is no check."""
    assert set(KINDS) == {code for _, expected in CASES for code in expected} | ELSEWHERE


def test_who_needs_a_checkpoint_of_high_watermarks(tmp_path: Path) -> None:
    """A directory of the metadata log alone, and one to which partitions were copied, have none: nothing is amiss there."""
    partition(tmp_path, "__cluster_metadata-0", [batch(0)])
    root_files(tmp_path)
    partition(tmp_path / "copy", "t-0", [batch(0)])
    for path in (tmp_path, tmp_path / "copy"):
        (path / "replication-offset-checkpoint").unlink(missing_ok=True)
    assert codes(verify(tmp_path / "copy")) == set()
    (tmp_path / "copy").rename(tmp_path.parent / f"{tmp_path.name}-copy")
    assert "high-watermark-missing" not in codes(verify(tmp_path))


def test_a_missing_meta_properties_is_an_error(tmp_path: Path) -> None:
    """No broker starts without it (tests/oracle/test_log_dir_start.py); the sentence says where each of its ids is."""
    one_segment(tmp_path, batch(0))
    (tmp_path / "meta.properties").unlink()
    (finding,) = verify(tmp_path).findings
    assert finding.severity == ERROR
    assert all(
        word in finding.message for word in ("cluster.id", "node.id", "server.properties", "kcli describe --show brokers")
    )
    assert len(finding.message) <= MOST_SENTENCE


def test_the_file_of_an_earlier_version_is_no_finding(tmp_path: Path) -> None:
    """Its name is known, and nothing reads it, so it may be torn."""
    one_segment(tmp_path, batch(0))
    (tmp_path / "kcli-uncleanable-partitions").write_bytes(b"torn")
    assert codes(verify(tmp_path)) == set()


def test_a_control_batch_of_raft_is_at_home_in_the_metadata_log_only(tmp_path: Path) -> None:
    """A control record that cannot be read is told; its batch has no producer, so no marker is looked for."""
    records = encode_records([Record(0, 0, bytes([0, 0, 0, 1]), bytes(6))])
    one_segment(tmp_path, batch(0)._replace(attributes=CONTROL_FLAG, records=records))
    assert codes(verify(tmp_path)) == {"control-record"}


def test_a_missing_partition_is_counted_once_and_its_offsets_are_named(tmp_path: Path) -> None:
    """Two checkpoints name it: one finding says which offsets were in it, and one partition is missing."""
    one_segment(tmp_path, batch(0))
    root_files(tmp_path, recovery_point={"t-0": 1, "gone-3": 402}, replication={"t-0": 1, "gone-3": 400})
    found = verify(tmp_path).findings
    messages = {one.file.rpartition("/")[2]: one.message for one in found if one.code == "partition-missing"}
    assert messages == {
        "recovery-point-offset-checkpoint": "the file names gone-3, which has no directory here; it held offsets up to 401 "
        "(the recovery point is 402, the high watermark is 400)",
    }
    (untrue,) = [one.message for one in found if one.code == "clean-shutdown-untrue"]
    assert untrue.endswith("records are missing in gone-3"), untrue


def test_a_partition_in_another_log_directory_of_the_broker_may_have_been_moved(tmp_path: Path) -> None:
    """It was moved there, or both directories had it: the finding says so; another broker has a replica of its own."""
    for name, there in (("a", "t-0"), ("b", "moved-3")):
        (tmp_path / name).mkdir()
        partition(tmp_path / name, there, [batch(0)])
        offsets = {"t-0": 1, "moved-3": 1} if name == "a" else {there: 1}
        root_files(tmp_path / name, directory_id=f"AAAAAAAAAAAAAAAAAAAAA{name.upper()}", recovery_point=offsets)
    paths = [tmp_path / "a", tmp_path / "b"]
    hint = "if it was moved there, nothing is missing"

    def messages() -> list[str]:
        return [finding.message for finding in verify(*paths).findings if finding.code == "partition-missing"]

    assert [hint in message for message in messages()] == [True]
    meta = paths[1] / "meta.properties"
    meta.write_text(meta.read_text().replace("node.id=1", "node.id=2"))
    assert [hint in message for message in messages()] == [False]
