"""Protects verification as a whole: no false alarm, the same answer on any number of cores, counts that are right, and bad
input that is told and never stops it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import compression, limits
from kcli.format.compression import deflate
from kcli.format.primitives import write_varint
from kcli.inspect.verification import batches, verifier
from kcli.inspect.verification.verifier import Verifier, VerifyReport
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.log.disk.port import DiskFile
from kcli.log.files.log_directory import read_checkpoints, read_log_directory, resolve_paths
from kcli.log.reading.transaction_filter import AbortedTransactions
from tests.conftest import LogSet, every_log_set
from tests.damage import DAMAGES, NotApplicableError, damaged_copy
from tests.damage.layout import flip
from tests.inspect.verified import batch, codes, entry, partition, root_files, verify
from tests.message_sets import NewLegacyRecord, encode_message

DISK = OsDisk()
SETS = [pytest.param(found, id=found.data.parent.name) for found in every_log_set()]
# Directories that make-logs made with other seeds, where someone put them: KCLI_MORE_LOGS=DIR:DIR
MORE = [Path(path) for path in os.environ.get("KCLI_MORE_LOGS", "").split(":") if path]


# ------------------------------------------------------------------------------------------------------- no false alarm


@pytest.mark.parametrize("log_set", SETS)
def test_what_kafka_wrote_is_sound(log_set: LogSet) -> None:
    """A cleanly stopped broker's directory has no findings but an open transaction, whole and by single partitions."""
    whole = verify(log_set.data)
    assert [finding for finding in whole.findings if finding.code != "transaction-open"] == []
    assert whole.is_sound and whole.directories[0].is_clean and not whole.directories[0].is_live
    for result in whole.partitions:
        assert codes(verify(Path(result.path))) <= {"transaction-open"}


@pytest.mark.parametrize("log_set", SETS)
def test_every_segment_by_itself_is_sound(log_set: LogSet) -> None:
    """A segment may be given without its partition, as any other file may; what it cannot know it does not complain of."""
    files = [path for path in log_set.data.rglob("*") if path.is_file() and path.name != ".lock"]
    report = verify(*files)
    assert codes(report) <= {"transaction-open"}, report.findings
    assert len(report.files) == len(files)


@pytest.mark.parametrize("data", [pytest.param(path, id=path.parent.name) for path in MORE])
def test_fresh_directories_are_sound(data: Path) -> None:
    """Directories made with fresh seeds; they are given by KCLI_MORE_LOGS."""
    assert codes(verify(data)) <= {"transaction-open"}


@pytest.mark.parametrize("log_set", SETS)
def test_a_killed_brokers_directory_is_sound(log_set: LogSet, tmp_path: Path) -> None:
    """Preallocated indexes and no final entries in the last segments are what a crash leaves; nothing was lost."""
    data = copied(log_set.data, tmp_path)
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    preallocate(data)
    assert codes(verify(data)) <= {"transaction-open", "unclean-shutdown", "timeindex-behind"}
    assert verify(data).is_sound


def copied(data: Path, parent: Path) -> Path:
    copy = parent / "data"
    shutil.copytree(data, copy)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def preallocate(data: Path) -> None:
    """Give the last segments' indexes the size that they have while a broker writes to them."""
    for directory in data.glob("*-[0-9]*"):
        last = max(directory.glob("*.log"))
        for suffix, size in ((".index", 10485760), (".timeindex", 10485756)):
            with last.with_suffix(suffix).open("ab") as file:
                file.truncate(size)


# -------------------------------------------------------------------------------------------------------- live brokers


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process holds a POSIX record lock on the file, as a broker does."""
    program = (
        "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.lockf(f,fcntl.LOCK_EX); print('held',flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate()


@pytest.mark.parametrize("log_set", SETS)
def test_a_running_brokers_directory(log_set: LogSet, tmp_path: Path) -> None:
    """The moving tail, preallocated indexes, missing marks and files on their way are no findings; damage further in is."""
    data = copied(log_set.data, tmp_path)
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    preallocate(data)
    victim = max((data / "orders-0" if (data / "orders-0").exists() else data / "magic2-none-0").glob("*.log"))
    whole = victim.read_bytes()
    victim.write_bytes(whole + whole[:40])
    (victim.parent / f"{0:020d}.log.deleted").write_bytes(b"")
    with locked(data / ".lock"):
        report = verify(data)
        assert codes(report) <= {"directory-live", "transaction-open"} and report.directories[0].is_live
        victim.write_bytes(whole[:70] + b"\xff" + whole[71:])
        assert "batch-crc" in codes(verify(data))
    assert not verify(data).directories[0].is_live


class Vanishing(OsDisk):
    """A disk on which one file is listed and gone when it is opened."""

    def __init__(self, name: str) -> None:
        self.name = name

    def open_file(self, path: str) -> OsFile:
        self._check(path)
        return super().open_file(path)

    def read_file(self, path: str, limit: int) -> bytes:
        self._check(path)
        return super().read_file(path, limit)

    def _check(self, path: str) -> None:
        if path.endswith(self.name):
            raise FileNotFoundError(2, "No such file or directory", path)


@pytest.mark.parametrize("name", ["index", "timeindex", "log", "snapshot", "leader-epoch-checkpoint"])
def test_a_file_that_vanishes(name: str, tmp_path: Path) -> None:
    """Beside a running broker that is no finding; else it is one and the rest is verified."""
    partition(tmp_path, "t-0", [batch(0, 2, producer=7, sequence=0)], snapshots={2: [entry(7, 1, 1, delta=1)]})
    partition(tmp_path, "u-0", [batch(0, 2), batch(2)])
    root_files(tmp_path)
    disk = Vanishing(f"t-0/{0:020d}.{name}" if name in ("index", "timeindex", "log") else f"t-0/{2:020d}.{name}")
    if name == "leader-epoch-checkpoint":
        disk = Vanishing(f"t-0/{name}")
    report = verify(tmp_path, disk=disk)
    assert "file-shrank" in codes(report) and report.partitions[1].data_records == 3
    with locked(tmp_path / ".lock"):
        assert codes(verify(tmp_path, disk=disk)) == {"directory-live"}


class ChangingDisk(OsDisk):
    """A disk of a running broker, which changes its files right before the n-th call."""

    def __init__(self, calls_left: int, change: Callable[[], object]) -> None:
        self.calls_left = calls_left
        self.change = change

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("calls_left", "change") or name.startswith("_") or not callable(found):
            return found

        def run(*args: Any) -> Any:
            self.calls_left -= 1
            if self.calls_left == -1:
                self.change()
            return found(*args)

        return run

    def is_locked(self, path: str) -> bool:
        return True


@pytest.mark.parametrize("way", ["removed", "renamed", "added", "a segment less"])
def test_topics_come_and_go_while_a_running_broker_is_verified(way: str, tmp_path: Path) -> None:
    """Before each call to the disk, one after the other: nothing but notes."""
    for calls in range(1000):
        root = tmp_path / str(calls)
        path = partition(root, "t-0", [batch(0, 5)], [batch(5, 5)], snapshots={5: []})
        root_files(root, recovery_point={"t-0": 10}, replication={"t-0": 10})
        (root / ".lock").write_bytes(b"")

        def change(root: Path = root, path: Path = path) -> None:
            if way == "removed":
                shutil.rmtree(path)
            elif way == "renamed":
                path.rename(root / f"t-0.{'0' * 32}-delete")
            elif way == "added":
                partition(root, "u-0", [batch(0, 5)])
            else:
                for file in path.glob(f"{0:020d}.*"):
                    file.rename(f"{file}.deleted")

        disk = ChangingDisk(calls, change)
        report = verify(root, disk=disk)
        assert report.is_sound, (calls, report.findings)
        if disk.calls_left >= 0:
            assert calls > 20
            return
    pytest.fail("the verification never ended")


def test_a_topic_that_was_being_deleted_at_a_clean_stop(tmp_path: Path) -> None:
    """Its preallocated indexes and missing files are no findings: the next start removes the directory."""
    partition(tmp_path, "u-0", [batch(0, 2), batch(2)])
    path = partition(tmp_path, f"t-0.{'0' * 32}-delete", [batch(0, 2), b"garbage"], [batch(9)])
    (path / f"{0:020d}.index").write_bytes(bytes(8 * 1000))
    (path / f"{9:020d}.timeindex").unlink()
    (path / f"{9:020d}.log").unlink()
    root_files(tmp_path, recovery_point={"u-0": 3})
    report = verify(tmp_path)
    assert codes(report) == {"leftover-deleted"} and report.is_sound
    assert not verify(path).is_sound  # asked for by its name, it is read as any other


class Shrinking(OsDisk):
    """A disk whose logs lose their second half once they are open."""

    def open_file(self, path: str) -> OsFile:
        return HalfFile(path) if path.endswith(".log") else OsFile(path)


class HalfFile(OsFile):
    """A file that ends in the middle, whatever size it was said to have."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        left = max(0, self.size() // 2 - position)
        return super().read_into(position, buffer[: min(left, len(buffer))]) if left else 0


def test_a_log_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """The end that was there and is gone is damage; nothing hangs and nothing is raised."""
    partition(tmp_path, "t-0", [batch(offset) for offset in range(50)])
    root_files(tmp_path)
    report = verify(tmp_path, disk=Shrinking())
    assert "log-torn-tail" in codes(report) and 0 < report.partitions[0].batches < 50
    file: DiskFile = HalfFile(str(tmp_path / "t-0" / f"{0:020d}.log"))
    file.close()


# ---------------------------------------------------------------------------------------------------- the same answers


@pytest.mark.parametrize("log_set", SETS)
def test_any_number_of_cores_gives_the_same_report(log_set: LogSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions in workers, segments of a large one in workers, all in one process: the same, damage included."""
    data = copied(log_set.data, tmp_path)
    rng = random.Random(5)
    for log in sorted(data.rglob("*.log"))[::3]:
        content = bytearray(log.read_bytes())
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            log.write_bytes(content)
    largest = max(data.glob("*-[0-9]*"), key=lambda path: sum(log.stat().st_size for log in path.glob("*.log")))
    alone = [report_of([data]), report_of([largest])]
    monkeypatch.setattr(verifier, "SMALL_BYTES", 0)
    told: list[int] = []
    assert [report_of([data], 3, told), report_of([largest], 3, told)] == alone
    assert sum(told) == sum(result.size_bytes for report in alone for result in report.partitions)


def report_of(paths: list[Path], processes: int = 1, told: list[int] | None = None) -> VerifyReport:
    targets, _ = resolve_paths(DISK, map(str, paths))
    return Verifier(DISK, targets).run(processes, None if told is None else told.append)


def test_segments_with_too_many_steps_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker may not keep is read in its turn: the same report."""
    log_set = next((found for found in every_log_set() if (found.data / "transactions-0").is_dir()), None)
    if log_set is None:
        pytest.skip("neither ../shared nor fixtures/ holds transactions-0")
    alone = report_of([log_set.data / "transactions-0"])
    monkeypatch.setattr(verifier, "SMALL_BYTES", 0)
    monkeypatch.setattr("kcli.inspect.verification.segments.MOST_STEPS", 3)
    assert report_of([log_set.data / "transactions-0"], 2) == alone


@pytest.mark.parametrize("log_set", SETS)
def test_counts_agree_with_other_readers(log_set: LogSet) -> None:
    """Records, ends and transactions as the readers behind dump-log and Spark tell them."""
    results = {result.path: result for result in verify(log_set.data).partitions}
    starts = read_checkpoints(DISK, str(log_set.data)).log_start_offsets
    for found in read_log_directory(DISK, str(log_set.data)).partitions:
        result = results[found.path]
        transactions = AbortedTransactions.for_partition(DISK, found)
        assert result.end_offset == transactions.log_end_offset
        assert result.last_stable_offset == transactions.last_stable_offset
        assert [txn.first_offset for txn in result.open_transactions] == [
            txn.first_offset for txn in transactions.open_transactions
        ]
        assert (result.records_below_start > 0) == ((found.topic, found.partition) in starts and result.log_start_offset > 0)
        if found.topic.startswith("transactions"):
            assert result.aborted_records > 0 and result.committed_transactions > 0


def test_records_below_the_log_start_are_counted_one_by_one(tmp_path: Path) -> None:
    """The log start offset may lie inside of a batch, between batches, or behind the log's end."""
    partition(tmp_path, "t-0", [batch(0, 5), batch(5, 5)], [batch(10, 5)])
    for start, below in ((0, 0), (3, 3), (5, 5), (12, 12), (15, 15)):
        root_files(tmp_path, log_start={"t-0": start})
        assert verify(tmp_path).partitions[0].records_below_start == below


def test_of_a_segment_that_was_cleaned_away_snapshots_may_know_more(tmp_path: Path) -> None:
    """A cleaner leaves it empty; what its producers did shows in the snapshots behind it alone."""
    batches = [batch(8, 2, producer=7, sequence=9)]
    path = partition(tmp_path, "t-0", [], batches, snapshots={4: [entry(9, 3, 3)], 8: [entry(9, 3, 3)]})
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(path / f"{0:020d}{suffix}", path / f"{4:020d}{suffix}")
    root_files(tmp_path)
    assert "snapshot-mismatch" not in codes(verify(tmp_path))


# ---------------------------------------------------------------------------------------------------------- bad input

TARGETS = ("transactions-0", "codec-zstd-0", "compacted-txn-0", "odd-records-0")
# Kinds that leave a log which a broker may have written: an index or a snapshot fewer, a transaction index that the cleaner
# would have emptied as well, a topic id that only the cluster's metadata could refute.
HARMLESS = {
    *("forged_producer_epoch", "index_empty_last", "index_empty_old", "index_zeroed_last", "txnindex_lost_old"),
    *("txnindex_empty_old", "lost_all_snapshots", "lost_last_snapshot", "snapshot_between_segments"),
    "partition_metadata_of_other_topic",
}


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_every_kind_of_damage_is_found(name: str, tmp_path: Path) -> None:
    """Of all that a disk, a crash or a person can do to a partition, nothing that matters goes unseen."""
    sources = [found.data / target for found in every_log_set() for target in TARGETS if (found.data / target).is_dir()]
    root_files(tmp_path)
    done = 0
    for source in sources:
        try:
            copy = damaged_copy(name, source, tmp_path, seed=3)
        except NotApplicableError:
            continue
        done += 1
        report = verify(tmp_path)
        if name not in HARMLESS:
            assert codes(report) - {"transaction-open"}, f"{name} of {source.name} goes unseen"
        shutil.rmtree(copy)
    if not done:
        pytest.skip("none of the given partitions offers anything for this kind")


@given(st.binary(max_size=600), st.sampled_from((".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_told_and_never_raise(data: bytes, suffix: str) -> None:
    """Any bytes in any file: findings, and places that lie in the file."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        path = partition(root, "t-0", [batch(0, 3), batch(3, 2)])
        root_files(root)
        name = f"{0:020d}{suffix}" if suffix != ".checkpoint" else "bootstrap.checkpoint"
        target = (root if suffix == ".checkpoint" else path) / name
        target.write_bytes(data)
        for finding in verify(root).findings:
            assert finding.position is None or finding.position <= Path(finding.file).stat().st_size


@given(st.integers(0, 10**9), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_flipped_bits_are_told_and_never_raise(seed: int, flips: int) -> None:
    """Bits flipped anywhere in a partition of every kind of batch."""
    import tempfile

    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        set_of_two = b"".join(encode_message(NewLegacyRecord(i, 5, b"k", b"v"), 1) for i in range(2))
        wrapper = encode_message(NewLegacyRecord(1, 5, None, deflate(1, set_of_two, magic=1)), 1, 1)
        mixed = [batch(2, 3), batch(5, 2, codec=1), batch(7, 2, codec=4), batch(9, producer=7, sequence=0, transactional=True)]
        path = partition(root, "t-0", [wrapper, *mixed], snapshots={10: [entry(7, 0, 9, open_from=9)]})
        (path / f"{0:020d}.log").write_bytes(wrapper + b"".join(one.encode() for one in mixed))
        root_files(root)
        for _ in range(flips):
            victim = rng.choice([file for file in path.iterdir() if file.stat().st_size])
            flip(victim, rng.randrange(victim.stat().st_size), 1 << rng.randrange(8))
        verify(root)


def bomb(size_bytes: int) -> bytes:
    """A record with a value of that many zeros, deflated by zstd, never held."""
    import zstandard

    head = b"\0\0\0\x01" + write_varint(size_bytes)
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    parts = [compressor.compress(write_varint(len(head) + size_bytes + 1) + head)]
    parts += [compressor.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)]
    return b"".join((*parts, compressor.compress(bytes(size_bytes % (1 << 20)) + b"\0"), compressor.flush()))


def test_a_bomb_is_walked_over_and_a_larger_one_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What inflates to much is verified in windows; what inflates beyond the limit is told."""
    large = limits.INFLATE_WINDOW_BYTES * 5
    one = batch(0)._replace(records=bomb(large), attributes=4, max_timestamp=batch(0).base_timestamp)
    partition(tmp_path, "t-0", [one, batch(1)])
    root_files(tmp_path)
    assert codes(verify(tmp_path)) == set()
    assert verify(tmp_path).partitions[0].data_records == 2
    monkeypatch.setitem(compression.inflate_stream.__kwdefaults__, "limit", large // 2)
    assert codes(verify(tmp_path)) == {"batch-inflate-limit"}


def test_large_messages_of_old_formats_are_verified_as_held_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Message sets that are walked over piece by piece give the report of those that are held."""
    legacy = [found for found in every_log_set() if found.data.parent.name == "kafka-logs-legacy"]
    if not legacy:
        pytest.skip("neither ../shared nor fixtures/ holds kafka-logs-legacy")
    held = verify(legacy[0].data)
    monkeypatch.setattr(batches, "is_large", lambda one, header: True)
    assert verify(legacy[0].data) == held and held.is_sound


def test_a_file_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    """No permission (or a disk that fails) is told of that file, and the others are verified."""

    class Forbidding(OsDisk):
        def open_file(self, path: str) -> OsFile:
            if path.endswith("t-0/" + f"{0:020d}.log"):
                raise PermissionError(13, "Permission denied", path)
            return super().open_file(path)

    partition(tmp_path, "t-0", [batch(0)])
    partition(tmp_path, "u-0", [batch(0)])
    root_files(tmp_path)
    report = verify(tmp_path, disk=Forbidding())
    assert [(finding.code, finding.file) for finding in report.findings] == [
        ("file-unreadable", str(tmp_path / "t-0" / f"{0:020d}.log"))
    ]
    assert report.partitions[1].data_records == 1


def test_nothing_is_written(tmp_path: Path) -> None:
    """Verification leaves every byte and every time as it was."""
    partition(tmp_path, "t-0", [batch(0, 3)])
    root_files(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    verify(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_interleaved_producers_are_followed(tmp_path: Path) -> None:
    """More producers in turn than runs are kept; each one's sequence counts by itself."""
    turns = [(round_, producer) for round_ in range(3) for producer in range(100)]
    logs = [batch(offset, producer=producer, sequence=round_) for offset, (round_, producer) in enumerate(turns)]
    state = [entry(producer, 2, 200 + producer) for producer in range(100)]
    partition(tmp_path, "t-0", logs, snapshots={300: state})
    root_files(tmp_path)
    assert codes(verify(tmp_path)) == set()
    logs[250] = logs[250]._replace(base_sequence=7)
    shutil.rmtree(tmp_path / "t-0")
    partition(tmp_path, "t-0", logs, snapshots={300: state})
    assert codes(verify(tmp_path)) == {"producer-sequence-gap", "snapshot-mismatch"}
