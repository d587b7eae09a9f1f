"""Protects an operator from a recovery that removes records without a line: each removal is reported before it is done, with
the offsets that are lost, and is kept where that is asked for."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogDisk
from kcli.log.errors import AllLogDirsOfflineError
from kcli.log.file_cache import FileCache
from kcli.log.loading.recovery_journal import PROGRESS_INTERVAL_MS
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.managing.log_registry import LogManagerSettings
from kcli.log.report_line import FailureLine, WarningLine, fields_of
from kcli.server.shell.log_writer import LogWriter
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault, SimulatedCrash
from tests.conftest import given_partition
from tests.damage import DAMAGES, NotApplicableError, copy_partition
from tests.damage.layout import log_end_offset
from tests.log.log_nodes import crash

DIRECTORY_ID = Uuid(b"directory-of-us.")
# Every kind of damage to one of these, so that segments of one and of several batches, compacted and transactional ones come.
PARTITIONS = ("many-segments-0", "transactions-0", "compacted-0", "codec-zstd-0")
# Damage that leaves zeros, or nothing, behind the last batch: no record goes with the bytes.
NO_LOSS = {"zero_tail", "short_zero_tail", "garbage_tail"}
# The records whose offsets are lost were not there any more before the recovery began.
LOST_BEFORE = {"emptied_old_segment", "lost_batch", "delete_half_renamed", "delete_snapshot_left"}


class Started(NamedTuple):
    """What a start left: the lines, (log start offset, log end offset) by topic, and where the removed bytes are."""

    lines: list[str]
    logs: dict[str, tuple[int, int]]
    kept: Path

    def losses(self, topic: str) -> list[WarningLine]:
        """The warnings of a topic's log."""
        return [line for line in self.lines if isinstance(line, WarningLine) and fields_of(line).get("topic") == topic]


def start(data: Path, disk: LogDisk | None = None, *, quarantine: bool = True, interval_bytes: int = 4096) -> Started:
    """Start a manager on a log directory; what it removes is kept beside it."""
    lines: list[str] = []
    disk, kept = disk or OsDisk(), data.with_name("kept")
    settings = LogManagerSettings(recovery_quarantine_dir=str(kept) if quarantine else "")
    manager = LogManager(disk, FileCache(disk), {str(data): DIRECTORY_ID}, random.Random(1), settings, lines.append)
    logs = {}
    try:
        for _ in manager.start(
            lambda topic: LogConfig(index_interval_bytes=interval_bytes), lambda topic_id, partition: True, 0
        ):
            pass
        logs = {topic: (log.log_start_offset, log.log_end_offset) for (topic, _), log in manager.logs.items()}
    except AllLogDirsOfflineError:
        pass
    crash(manager)
    return Started(lines, logs, kept)


def write_checkpoint(data: Path, name: str, topic: str, offset: int) -> None:
    (data / f"{name}-offset-checkpoint").write_text(f"0\n1\n{topic} 0 {offset}\n")


def damaged(source: Path, data: Path, kind: str) -> Path | None:
    """A copy of a partition with some damage, as the only one in a log directory that was not stopped cleanly."""
    copy = copy_partition(source, data)
    try:
        DAMAGES[kind](copy, random.Random(5))
    except NotApplicableError:
        return None
    return copy


def log_bytes(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def lost_offsets(lines: list[WarningLine]) -> set[int]:
    lost: set[int] = set()
    for line in lines:
        fields = fields_of(line)
        if "first_lost_offset" in fields:
            lost |= set(range(int(str(fields["first_lost_offset"])), int(str(fields["last_lost_offset"])) + 1))
    return lost


@pytest.mark.parametrize("name", PARTITIONS)
@pytest.mark.parametrize("has_snapshot", [True, False], ids=["end-known", "end-unknown"])
def test_whatever_is_cut_is_said(tmp_path: Path, name: str, has_snapshot: bool) -> None:
    """For each kind of damage: bytes go from a .log only with a warning, and what it says lost and what stays is all there was.

    Without the snapshot at the log's end, as after a crash, the headers of what is cut have to show it.
    """
    source = given_partition(name)
    topic, end = name.rpartition("-")[0], log_end_offset(source)
    cut = 0
    for kind in sorted(DAMAGES):
        data = tmp_path / kind / "data"
        directory = damaged(source, data, kind)
        if directory is None:
            continue
        if not has_snapshot:
            for path in directory.glob(f"{end:020}.snapshot"):
                path.unlink()
        before = log_bytes(directory)
        started = start(data, interval_bytes=1024 if topic == "many-segments" else 4096)
        if topic not in started.logs:
            assert any(isinstance(line, WarningLine) and str(data) in line for line in started.lines), kind
            continue
        losses = started.losses(topic)
        if sum(map(len, log_bytes(directory).values())) >= sum(map(len, before.values())):
            continue
        if any("an interrupted swap" in line for line in started.lines) and not losses:
            continue  # the cleaned segment has taken the place of larger ones
        if kind in ("zero_tail", "short_zero_tail"):
            assert not losses and any("no offset is lost" in line for line in started.lines), kind
            continue
        assert losses and all(line.startswith(f"{name}: ") for line in losses), (kind, started.lines)
        cut += 1
        lost = lost_offsets(losses)
        start_offset, log_end = started.logs[topic]
        assert not lost & set(range(start_offset, log_end)), kind
        if has_snapshot and kind not in LOST_BEFORE:
            assert lost | set(range(start_offset, log_end)) == set(range(end)), (kind, losses)
        elif kind not in LOST_BEFORE:
            unsaid = set(range(end)) - lost - set(range(start_offset, log_end))
            assert not unsaid or any("at least" in line or "are unknown" in line for line in losses), (kind, losses)
            assert lost <= set(range(end)), (kind, losses)
    assert cut > 15


def test_a_recovery_says_that_it_begins_and_how_it_ended(tmp_path: Path) -> None:
    """Both are INFO, with their numbers as fields; after a clean stop, and without partitions, there is no line at all."""
    data = tmp_path / "data"
    damaged(given_partition("transactions-0"), data, "bad_last_batch")
    size = sum(len(content) for content in log_bytes(data / "transactions-0").values())
    lines = start(data).lines
    assert lines[0] == f"{data} was not stopped cleanly: recovering 1 partition"
    assert lines[-1].startswith(f"{data}: 1 partition is recovered in 0 ms, {size} bytes in ")
    assert {type(line).__name__ for line in (lines[0], lines[-1])} == {"Line"}
    counts = fields_of(lines[-1])
    cut = fields_of(lines[1])
    assert (counts["partitions"], counts["bytes_read"], counts["bytes_removed"]) == (1, size, cut["bytes"])
    written: list[str] = []
    LogWriter("json", written.append, lambda: 0.0)(lines[1])
    found = json.loads(written[0])
    assert (found["level"], found["topic"], found["partition"]) == ("WARN", "transactions", 0)
    assert found["last_lost_offset"] == 1831 and found["path"].endswith(".log") and isinstance(found["position"], int)


def test_a_start_after_a_clean_stop_says_nothing(tmp_path: Path) -> None:
    """Nor does it read a segment whole: no journal begins."""
    data = tmp_path / "data"
    copy_partition(given_partition("transactions-0"), data)
    (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    assert start(data).lines == []
    (tmp_path / "empty").mkdir()
    assert start(tmp_path / "empty").lines == []


def test_a_cut_below_the_checkpoints_says_what_was_promised(tmp_path: Path) -> None:
    """Records below the high watermark were committed, those below the recovery point flushed: the line says so."""
    data = tmp_path / "data"
    damaged(given_partition("transactions-0"), data, "bad_last_batch")
    write_checkpoint(data, "replication", "transactions", 1832)
    write_checkpoint(data, "recovery-point", "transactions", 1800)
    (line,) = start(data).losses("transactions")
    expected = "the log ends at offset 1782, below the high watermark 1832 and the recovery point 1800"
    assert f"; {expected}: records up to there had been committed and flushed" in line


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_that_ends_too_early_is_said_though_nothing_is_cut(tmp_path: Path, clean: bool) -> None:
    """A segment that is not there leaves nothing to cut: the checkpoints still know what there was."""
    data = tmp_path / "data"
    directory = copy_partition(given_partition("codec-zstd-0"), data)
    for path in [*directory.glob("*.log"), *directory.glob("*.*index"), *directory.glob("*.snapshot")]:
        path.unlink()
    write_checkpoint(data, "replication", "codec-zstd", 402)
    if clean:
        (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    (line,) = start(data).losses("codec-zstd")
    assert "the log ends at offset 0, below the high watermark 402: records up to there had been committed" in line
    assert lost_offsets([line]) == set(range(402))


def test_what_is_removed_is_kept_as_a_repair_keeps_it(tmp_path: Path) -> None:
    """The cut bytes and the segments behind them, and a manifest that says what came from where; the log is served."""
    data = tmp_path / "data"
    directory = damaged(given_partition("transactions-0"), data, "bad_batch_in_old_segment")
    assert directory is not None
    before = log_bytes(directory)
    started = start(data)
    assert "transactions" in started.logs, "the load goes on with the files that are left"
    cut, removed = started.losses("transactions")
    fields = fields_of(cut)
    name, position = Path(str(fields["path"])).name, int(str(fields["position"]))
    kept = {path.name: path.read_bytes() for path in (started.kept / "1" / "transactions-0").iterdir()}
    behind = {file: content for file, content in before.items() if file > name}
    assert kept == {f"{name}.bytes-{position}-{len(before[name])}": before[name][position:], **behind}
    assert fields["kept_in"] in {str(path) for path in started.kept.rglob("*.bytes-*")}
    assert fields_of(removed)["kept_in"] == str(started.kept / "1" / "transactions-0")
    manifest = json.loads((started.kept / "1" / "manifest.json").read_text())
    assert manifest["complete"] and {entry["kept_as"] for entry in manifest["kept"]} == {f"transactions-0/{at}" for at in kept}
    assert log_bytes(directory).keys() == {file for file in before if file <= name}
    again = start(data)
    assert not again.losses("transactions") and not (started.kept / "2").exists()


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    damaged(given_partition("transactions-0"), data, "bad_batch_in_old_segment")
    started = start(data, quarantine=False)
    assert len(started.losses("transactions")) == 2 and not started.kept.exists()


def on_simulated_disk(directory: Path, data: Path) -> SimulatedDisk:
    """A machine whose disk has a log directory, all of it flushed."""
    disk = SimulatedDisk(random.Random(3))
    for path in sorted(data.rglob("*")):
        if path.is_file():
            disk.make_directory(str(path.parent))
            disk.append(str(path), path.read_bytes())
            disk.flush(str(path))
            for at in path.parents:
                disk.flush_directory(str(at))
    return disk


@pytest.mark.parametrize(("call", "code"), [("append", errno.ENOSPC), ("flush", errno.EIO), ("rename", errno.EACCES)])
def test_what_cannot_be_kept_is_not_cut(tmp_path: Path, call: str, code: int) -> None:
    """The log directory fails with a sentence that says what to do, and all its bytes are as they were."""
    data = tmp_path / "data"
    directory = damaged(given_partition("transactions-0"), data, "bad_batch_in_old_segment")
    assert directory is not None
    disk = on_simulated_disk(directory, data)
    disk.faults.append(Fault(call, str(tmp_path / "kept" / "1"), code, count=-1))
    if call == "rename":
        disk.faults[-1].path = str(directory)
    started = start(data, disk)
    (line,) = [line for line in started.lines if "is offline" in line]
    assert "recovery has to remove" in line and "kcli.recovery.quarantine.dir" in line and str(directory) in line
    for path in directory.glob("*.log"):
        assert disk.read_file(str(path), 1 << 30) == path.read_bytes()


def test_across_file_systems_segments_are_copied(tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = damaged(given_partition("transactions-0"), data, "bad_batch_in_old_segment")
    assert directory is not None
    disk = on_simulated_disk(directory, data)
    disk.faults.append(Fault("rename", str(directory), errno.EXDEV, count=-1))
    start(data, disk)
    last = sorted(directory.glob("*.log"))[-1]
    kept = tmp_path / "kept" / "1" / directory.name / last.name
    assert disk.read_file(str(kept), 1 << 30) == last.read_bytes() and not disk.exists(str(last))


@pytest.mark.parametrize("kind", ["bad_batch_in_old_segment", "torn_tail_in_records", "last_batch_overflows"])
def test_a_crash_in_a_recovery_loses_no_byte(tmp_path: Path, kind: str) -> None:
    """Whenever the power goes, each byte of a segment is in the log or in the quarantine, on the device; and the next recovery
    comes to the same log, with no segment behind a cut that a restart would take for a hole."""
    data = tmp_path / "data"
    directory = damaged(given_partition("transactions-0"), data, kind)
    assert directory is not None
    before = {path: path.read_bytes() for path in directory.glob("*.log")}
    expected = start(data, on_simulated_disk(directory, data)).logs
    for calls in range(400):
        disk = on_simulated_disk(directory, data)
        disk.die_in(calls)
        try:
            start(data, disk)
            break
        except SimulatedCrash:
            pass
        disk.lose_power(random.Random(calls))
        again = start(data, disk)
        assert again.logs == expected, (calls, again.lines)
        if kind != "last_batch_overflows":
            check_all_bytes(disk, tmp_path / "kept", before)
    else:
        raise AssertionError("the recovery did not come to its end")
    assert calls > 10


def check_all_bytes(disk: SimulatedDisk, kept: Path, before: dict[Path, bytes]) -> None:
    """What the log has not any more of a segment is in some folder of the quarantine."""
    folders = [kept / name / "transactions-0" for name in disk.list_directory(str(kept)) if disk.is_directory(str(kept / name))]
    files = [
        (folder, name) for folder in folders if disk.is_directory(str(folder)) for name in disk.list_directory(str(folder))
    ]
    for path, content in before.items():
        held = disk.read_file(str(path), 1 << 30) if disk.exists(str(path)) else b""
        assert content.startswith(held)
        copies = {disk.read_file(str(folder / name), 1 << 30) for folder, name in files if name.startswith(path.name)}
        assert len(held) == len(content) or content[len(held) :] in copies


def test_a_long_recovery_reports_now_and_then(tmp_path: Path) -> None:
    """A line each PROGRESS_INTERVAL_MS, however many slices go by."""
    data = tmp_path / "data"
    for number in range(6):
        copy_partition(given_partition("codec-zstd-0"), data / "one").rename(data / f"codec-zstd-{number}")
    (data / "one").rmdir()
    lines: list[str] = []
    time_ms = 0

    def clock() -> int:
        return time_ms

    manager = LogManager(OsDisk(), FileCache(OsDisk()), {str(data): DIRECTORY_ID}, random.Random(1), report=lines.append)
    slices = 0
    for _ in manager.start(lambda topic: LogConfig(), lambda topic_id, partition: True, 0, clock=clock):
        time_ms += PROGRESS_INTERVAL_MS // 4
        slices += 1
    crash(manager)
    progress = [line for line in lines if " of 6 partitions are recovered, " in line]
    assert 2 <= len(progress) <= slices // 4
    assert f"6 partitions are recovered in {fields_of(lines[-1])['took_ms']} ms" in lines[-1]
    assert fields_of(lines[-1])["took_ms"] == (slices - 5) * (PROGRESS_INTERVAL_MS // 4), (
        "topic ids and four checkpoints are before"
    )


def test_files_that_are_rebuilt_have_kafkas_levels(tmp_path: Path) -> None:
    """A lost index is an ERROR where a broker had written it; an index without its segment, a damaged snapshot are a WARN."""
    for kind, recovery_point, level, words in (
        ("index_lost_old", 1832, FailureLine, "the offset index is missing"),
        ("index_lost_old", 0, None, ""),
        ("roll_lost_log", 0, WarningLine, "its segment is missing"),
        ("roll_torn_snapshot", 0, WarningLine, "is damaged and is rebuilt"),
    ):
        data = tmp_path / f"{kind}-{recovery_point}" / "data"
        damaged(given_partition("transactions-0"), data, kind)
        write_checkpoint(data, "recovery-point", "transactions", recovery_point)
        found = [line for line in start(data).lines if isinstance(line, FailureLine | WarningLine)]
        assert {type(line) for line in found} == ({level} if level else set()), kind
        assert all(words in line for line in found)


def test_a_leftover_that_alone_has_its_records_is_not_dropped_in_silence(tmp_path: Path) -> None:
    """A *.swap that goes because of a *.cleaned is a copy, unless the segment that it came from is gone."""
    data = tmp_path / "data"
    directory = damaged(given_partition("transactions-0"), data, "clean_half_swap")
    assert directory is not None
    (swap,) = directory.glob("*.log.swap")
    content = swap.read_bytes()
    for path in directory.glob("*.log"):
        path.unlink()
    started = start(data)
    (line, *_) = [line for line in started.losses("transactions") if "swap" in line]
    assert "are lost" in line and 0 in lost_offsets([line])
    assert (started.kept / "1" / directory.name / swap.name).read_bytes() == content
