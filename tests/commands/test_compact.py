"""Protects `kcli compact` as a program: the plan is what the work then does, nothing else is touched, refusals come first."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kcli.commands.app import main
from kcli.format import limits
from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.format.record_batch import NewRecordBatch, RecordBatch, read_header
from kcli.inspect.compacting.compaction import Compaction, RefusedError, RunOptions
from kcli.inspect.compacting.jobs import CompactOptions
from kcli.inspect.compacting.partition_selection import asked_for
from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import resolve_paths
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_log
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.commands.test_repair_output import HOLD_LOCK, tree
from tests.commands.test_verify import run_with_stderr_on_a_terminal
from tests.conftest import given_partition
from tests.damage.layout import flip
from tests.inspect import verified
from tests.inspect.verified import TOPIC_ID, codes, root_files, verify
from tests.log.live_logs import NOW_MS, LiveLog, new_batch
from tests.log_builder import PartitionBuilder

Row = tuple[int, int, bytes | None, bytes | None]
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)
KEYS = 7


def make(root: Path, name: str, *, batches: int = 60, codec: int = 0) -> Path:
    """A partition of some segments, few keys, and now and then a tombstone."""
    live = LiveLog(root / name, CONFIG)
    for number in range(batches):
        keys = [b"key-%d" % ((number + at) % KEYS) for at in range(3)]
        values = [None if (number + at) % 11 == 0 else b"%d" % number * 10 for at in range(3)]
        live.append(new_batch(values, keys=keys, codec=codec, timestamps=[NOW_MS + number + at for at in range(3)]))
    live.log.close()
    (root / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    return root / name


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory of a broker that was stopped: a compacted topic of two partitions, and one that is not."""
    root = tmp_path / "logs"
    for name in ("__consumer_offsets-0", "__consumer_offsets-1", "orders-0"):
        make(root, name, batches=80 if name.endswith("1") else 60)
    root_files(root, replication={"__consumer_offsets-0": 180, "__consumer_offsets-1": 240, "orders-0": 180})
    return root


def start(partition: Path) -> None:
    """Open a log as a broker does after a clean stop, and stop it."""
    disk = OsDisk()
    log = open_log(disk, FileCache(disk, 8), str(partition), "t", 0, CONFIG, NOW_MS, clean_shutdown=True)
    log.close()


def batches_in(partition: Path) -> Iterator[LogBatch]:
    for path in sorted(partition.glob("*.log")):
        with SegmentReader(OsDisk(), str(path)) as reader:
            for batch in reader.batches():
                assert isinstance(batch, LogBatch) and batch.is_valid
                yield batch


def rows_in(partition: Path) -> list[Row]:
    """Every record: offset, timestamp, key, value."""
    found: list[Row] = []
    for batch in batches_in(partition):
        for window in batch.windows(RecordScanner()):
            assert window.error is None
            columns = window.columns
            found += [
                (columns.offset[at], columns.timestamp[at], window.key(at), window.value(at)) for at in range(window.count)
            ]
    return found


def last_of_each_key(rows: list[Row], end_offset: int) -> list[Row]:
    """What a cleaner leaves that has been everywhere up to an offset; tombstones stay for now."""
    last = {key: offset for offset, _, key, _ in rows if offset < end_offset}
    return [row for row in rows if row[0] >= end_offset or last[row[2]] == row[0]]


def tombstones_in(rows: list[Row]) -> int:
    return sum(value is None for _, _, _, value in rows)


def active_base(partition: Path) -> int:
    return int(max(path.name for path in partition.glob("*.log"))[:20])


def log_bytes(partition: Path) -> int:
    return sum(path.stat().st_size for path in partition.glob("*.log"))


def run(*words: str | Path) -> int:
    """Run `kcli compact`, with --apply unless a plan or another directory is asked for."""
    applies = () if "--dry-run" in words or "--to" in words else ("--apply",)
    return main(["compact", *applies, *map(str, words)])


def reported(capfd: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, Any]]]:
    """The rows of --output json, by type."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in capfd.readouterr().out.splitlines():
        row = json.loads(line)
        found.setdefault(row["type"], []).append(row)
    return found


def assert_sound(*paths: Path) -> None:
    report = verify(*paths)
    assert report.is_sound, report.findings
    assert "leftover" not in " ".join(codes(report))


def test_of_each_key_the_last_record_stays(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In the closed segments; the active one is as it was, and so is a topic that is not compacted."""
    partitions = [logs / "__consumer_offsets-0", logs / "__consumer_offsets-1"]
    before = {path: rows_in(path) for path in partitions}
    ends = {path: active_base(path) for path in partitions}
    kept = tree(logs / "orders-0")
    assert run(logs) == 0
    out, err = capfd.readouterr()
    for path in partitions:
        assert rows_in(path) == last_of_each_key(before[path], ends[path])
        assert f"  {path}" in out
    assert tree(logs / "orders-0") == kept
    assert "left alone: orders: cleanup.policy is not known, since no metadata log of the node was named; name the log" in err
    assert "--any-policy" not in out + err
    assert out.splitlines()[-1].startswith("349 of 363 records of 2 partitions removed, ")
    checkpoint = decode_offset_checkpoint((logs / "cleaner-offset-checkpoint").read_bytes()).offsets()
    assert checkpoint == {("__consumer_offsets", number): ends[path] for number, path in enumerate(partitions)}
    assert_sound(logs)
    after = {path: path.read_bytes() for path in logs.rglob("*.log")}
    assert run(logs) == 0
    out, err = capfd.readouterr()
    why = "all records that were not cleaned yet are in the active segment; --active cleans it, too"
    assert out == f"{partitions[0]}, {partitions[1]}: {why}\nnothing to clean in 2 partitions\n"
    assert after == {path: path.read_bytes() for path in logs.rglob("*.log")}


def test_damage_that_is_found_leaves_a_partition_as_it_is(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = logs / "__consumer_offsets-0" / f"{0:020}.log"
    data = flip(path, 70)
    assert run(logs) == 1
    assert "wrong CRC" in capfd.readouterr().err
    assert path.read_bytes() == data


def test_an_index_that_contradicts_an_offset_is_not_written_anew(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """After that verify found the wrong offset sound. The batch is in a gap, so that no other batch contradicts it."""
    log = PartitionBuilder(logs / "__consumer_offsets-2")
    for number in range(30):
        position, offset = len(log.log), log.offset
        log.append([(b"k%d" % (number % 7), b"v")])
        log.offset += 40
    log.roll()
    log.flush()
    path = logs / "__consumer_offsets-2" / f"{0:020}.log"
    (path.parent / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    data = bytearray(path.read_bytes())
    data[position + 7] ^= 8 if offset & 8 == 0 else 16
    path.write_bytes(data)
    before = tree(path.parent)
    for words in ((), ("--unclean", "--from-start", "--assume-committed")):
        assert run(path.parent, *words) == 1
        assert f"{path}: byte {position}: the batch states offsets " in capfd.readouterr().err
        assert tree(path.parent) == before


def test_a_dry_run_changes_no_byte_and_the_work_does_as_it_said(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = tree(logs.parent)
    before_rows = {path: rows_in(path) for path in logs.iterdir() if path.is_dir()}
    assert run("--dry-run", "--output", "json", logs) == 1
    planned = reported(capfd)
    assert tree(logs.parent) == before
    assert [row["done"] for row in planned["summary"]] == [False] and "result" not in planned
    assert run("--output", "json", logs) == 0
    done = reported(capfd)
    assert done["plan"] == planned["plan"]
    assert [row["logBytes"] for row in done["result"]] == [row["logBytesLeft"] for row in planned["plan"]]
    for row in planned["plan"]:
        path = Path(row["path"])
        assert log_bytes(path) == row["logBytesLeft"]
        assert len(rows_in(path)) == len(before_rows[path]) - (row["records"] - row["recordsLeft"])
        assert len(list(path.glob("*.log"))) == row["segmentsLeft"]
        assert row["keys"] == KEYS and row["rounds"] == 1
        left = [one for one in rows_in(path) if one[0] < active_base(path)]
        closed = [one for one in before_rows[path] if one[0] < active_base(path)]
        assert (row["records"], row["recordsLeft"]) == (len(closed), len(left))
        assert (row["tombstones"], row["tombstonesLeft"]) == (tombstones_in(closed), tombstones_in(left))


def test_without_apply_nothing_changes_and_the_last_line_says_so(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As `kcli verify --repair`: exit code 1 while there is something to do, 0 once it is done."""
    before = tree(logs)
    assert main(["compact", str(logs)]) == main(["compact", "--dry-run", str(logs)]) == 1
    assert tree(logs) == before
    assert capfd.readouterr().out.splitlines()[-1].endswith("; nothing was changed: --apply carries it out")
    assert main(["compact", "--apply", str(logs)]) == 0
    assert main(["compact", str(logs)]) == 0


def test_two_runs_to_one_directory_are_not_one(logs: Path, tmp_path: Path) -> None:
    """The second one is refused from the moment when the first one has found the directory empty, and after it."""
    target = str(tmp_path / "new")
    targets, _ = resolve_paths(OsDisk(), [str(logs)])
    asked, _ = asked_for(targets, ())
    compact = CompactOptions(NOW_MS, os.urandom)
    first, second = (Compaction(OsDisk(), asked, RunOptions(compact, {}, target=target)) for _ in range(2))
    with first:
        command = [sys.executable, "-m", "kcli", "compact", "--to", target, str(logs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and f"--to {target}: " in done.stderr
        assert list(Path(target).iterdir()) == [Path(target, ".lock")]
        for outcome in first.outcomes(1, None):
            first.place(outcome)
        first.finish_target()
    assert not Path(target, ".lock").exists()
    before = tree(Path(target))
    with pytest.raises(RefusedError, match="another kcli compact"), second:
        pass
    assert {name: found for name, found in tree(Path(target)).items() if name != ".lock"} == before


def test_more_keys_than_fit_take_rounds_and_a_dry_run_knows(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = logs / "__consumer_offsets-0"
    before, end = rows_in(path), active_base(path)
    words = ["--memory", str(24 * 5), "--output", "json", str(path)]
    assert run("--dry-run", *words) == 1
    (planned,) = reported(capfd)["plan"]
    assert run(*words) == 0
    (done,) = reported(capfd)["plan"]
    assert planned == done and done["rounds"] > 3
    assert rows_in(path) == last_of_each_key(before, end)
    closed, left = ([one for one in rows if one[0] < end] for rows in (before, rows_in(path)))
    assert (done["records"], done["recordsLeft"]) == (len(closed), len(left))
    assert (done["tombstones"], done["tombstonesLeft"]) == (tombstones_in(closed), tombstones_in(left))
    assert log_bytes(path) == done["logBytesLeft"]
    assert_sound(logs)


def test_the_active_segment_is_cleaned_where_asked(logs: Path) -> None:
    path = logs / "__consumer_offsets-0"
    before = rows_in(path)
    assert run("--active", path) == 0
    assert rows_in(path) == last_of_each_key(before, before[-1][0] + 1)
    assert active_base(path) == before[-1][0] + 1
    assert_sound(logs)


def test_an_active_segment_that_began_long_ago_is_cleaned_where_asked(logs: Path) -> None:
    """NOW_MS is years ago: a lag of a day has the segment rolled, one of a hundred years does not."""
    path = logs / "__consumer_offsets-0"
    before = rows_in(path)
    assert run("--max-compaction-lag-ms", str(100 * 365 * 86_400_000), path) == 0
    assert rows_in(path) == last_of_each_key(before, active_base(path))
    assert run("--max-compaction-lag-ms", "86400000", path) == 0
    assert rows_in(path) == last_of_each_key(before, before[-1][0] + 1)


def test_what_is_young_is_left_where_asked(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = logs / "__consumer_offsets-0"
    before = tree(path)
    assert run("--min-compaction-lag-ms", str(100 * 365 * 86_400_000), path) == 0
    assert tree(path) == before
    out = capfd.readouterr().out
    assert "younger than min.compaction.lag.ms, 3153600000000; --min-compaction-lag-ms 0 cleans them now\n" in out


def test_what_is_not_committed_cleans_nothing(logs: Path) -> None:
    """A follower may have to cut what lies above its high watermark: until then it proves nothing obsolete."""
    root_files(logs, replication={"__consumer_offsets-0": 60})
    path = logs / "__consumer_offsets-0"
    before = rows_in(path)
    end = max(int(one.stem) for one in path.glob("*.log") if int(one.stem) <= 60)
    assert run(path) == 0
    assert rows_in(path) == last_of_each_key(before, end) != last_of_each_key(before, active_base(path))


def test_tombstones_go_at_once_where_they_are_not_retained(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = logs / "__consumer_offsets-0"
    end = active_base(path)
    left = [row for row in last_of_each_key(rows_in(path), end) if row[0] >= end or row[3] is not None]
    words = ["--delete-retention-ms", "0", "--output", "json", str(path)]
    assert (run("--dry-run", *words), run(*words)) == (1, 0)
    planned, done = reported(capfd)["plan"]
    assert planned == done and done["tombstones"] > done["tombstonesLeft"] == 0
    assert rows_in(path) == left
    assert_sound(logs)


def test_tombstones_go_when_their_time_is_over(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A first run sets the horizon, one behind it drops them; without --from-start nothing is dirty then."""
    path = logs / "__consumer_offsets-0"
    assert run("--delete-retention-ms", "1", path) == 0
    end = active_base(path)
    tombstones = [row for row in rows_in(path) if row[3] is None and row[0] < end]
    assert tombstones
    assert run(path) == 0
    assert capfd.readouterr().out.endswith("nothing to clean in 1 partition\n")
    assert run("--from-start", path) == 0
    assert not [row for row in rows_in(path) if row[3] is None and row[0] < end]


def test_segments_become_as_large_as_asked(logs: Path) -> None:
    small, large = logs / "__consumer_offsets-0", logs / "__consumer_offsets-1"
    assert run("--segment-bytes", "2000", small) == run("--segment-bytes", "1000000", large) == 0
    assert len(list(small.glob("*.log"))) > len(list(large.glob("*.log"))) == 2
    assert_sound(logs)


def test_to_leaves_the_source_alone(logs: Path, tmp_path: Path) -> None:
    """A whole log directory: all of it is there, the compacted partitions compacted."""
    before, target = tree(logs), tmp_path / "new" / "logs"
    rows = rows_in(logs / "__consumer_offsets-0")
    assert run("--to", target, logs) == 0
    assert tree(logs) == before
    copied = tree(target)
    same = [name for name in before if name.startswith(("orders", "meta", ".kafka", "repl", "log-start"))]
    assert len(same) > 20 and [copied[name][1] for name in same] == [before[name][1] for name in same]
    # Kafka goes by the time where records have none.
    assert [copied[name][0] // 10**6 for name in same if "/" in name] == [
        before[name][0] // 10**6 for name in same if "/" in name
    ]
    path = target / "__consumer_offsets-0"
    assert rows_in(path) == last_of_each_key(rows, active_base(path))
    cleaned = decode_offset_checkpoint((target / "cleaner-offset-checkpoint").read_bytes()).offsets()
    assert cleaned["__consumer_offsets", 0] == active_base(path)
    assert {name for name in copied if "/" not in name} == {*(name for name in before if "/" not in name)}
    assert_sound(target)
    assert run("--to", target, logs) == 2


def test_to_takes_single_partitions(logs: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    before = tree(logs)
    assert run("--to", target, logs / "__consumer_offsets-0") == 0
    assert tree(logs) == before
    checkpoints = [f"{name}-offset-checkpoint" for name in ("cleaner", "log-start", "recovery-point", "replication")]
    assert {path.name for path in target.iterdir()} == {
        *(".kafka_cleanshutdown", "__consumer_offsets-0", "meta.properties", *checkpoints)
    }
    assert_sound(target)


def test_to_is_refused_where_it_would_do_harm(logs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = tree(logs)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_bytes(b"")
    for target in (logs / "in-it", tmp_path / "full", logs / "meta.properties"):
        assert run("--to", target, logs) == 2
    for other in ("--dry-run", "--apply"):
        with pytest.raises(SystemExit):
            run("--to", tmp_path / "new", other, logs)
    assert tree(logs) == before and not (tmp_path / "new").exists()
    assert "a broker would not start on it" in capfd.readouterr().err


def test_a_topic_that_is_not_compacted_is_refused_by_name(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = tree(logs)
    assert run(logs / "orders-0") == 2
    assert "too, or say --any-policy if the topic is compacted\n" in capfd.readouterr().err
    assert run("--topic", "orders", logs) == 2
    assert tree(logs / "orders-0") == {name[9:]: one for name, one in before.items() if name.startswith("orders-0/")}
    rows, end = rows_in(logs / "orders-0"), active_base(logs / "orders-0")
    assert run("--any-policy", logs) == 0
    assert rows_in(logs / "orders-0") == rows, "of a whole directory it is not named"
    assert run("--any-policy", "--topic", "ord*", logs) == 0
    assert rows_in(logs / "orders-0") == last_of_each_key(rows, end)


def test_a_partition_by_the_directory_one_is_in(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name tells whose it is, so `.` will not do as it stands."""
    path = logs / "__consumer_offsets-0"
    before = rows_in(path)
    monkeypatch.chdir(path)
    assert run(".", path, f"{path}/") == 0
    assert rows_in(path) == last_of_each_key(before, active_base(path))
    monkeypatch.chdir(logs)
    assert run(".", "--dry-run") == 1


def test_a_progress_bar_on_terminals(logs: Path) -> None:
    for words in ([], ["--processes", "1"], ["--compression", "zstd"]):
        code, shown = run_with_stderr_on_a_terminal(["compact", "--apply", *words, str(logs)])
        assert code == 0 and b"\x1b[" in shown and "\u2501".encode() in shown and b"Traceback" not in shown


def test_settings_come_from_the_metadata_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of the directory itself, or of another one of the node that is named; what has another policy is left alone."""
    first, second = tmp_path / "first", tmp_path / "second"
    for name in ("__cluster_metadata-0", "compacted-0", "compacted-txn-0", "orders-0"):
        given = given_partition(name)
        shutil.copytree(given, (second if name == "compacted-txn-0" else first) / name)
    for path in tmp_path.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    before = tree(first / "orders-0")
    assert run("--from-start", second) == 2
    assert "no metadata log of the node was named; name the log directory that has __cluster_metadata-0, too" in (
        capfd.readouterr().err
    )
    assert run("--from-start", "--assume-committed", "--output", "json", first, second) == 0
    plans = {row["topic"]: row for row in reported(capfd)["plan"]}
    assert plans.keys() == {"compacted", "compacted-txn"}
    # segment.bytes is the topic's: with Kafka's default all would have become one.
    assert all(row["segments"] > 1 and row["recordsLeft"] < row["records"] for row in plans.values())
    assert tree(first / "orders-0") == before
    assert run(first / "orders-0") == 2
    assert (
        "its topic is not compacted (cleanup.policy is delete): cleaning would remove every record but the last"
        in capfd.readouterr().err
    )


def test_the_metadata_log_is_never_compacted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = make(tmp_path / "logs", "__cluster_metadata-0")
    assert run("--any-policy", path) == run("--compression", "zstd", path) == 2
    assert capfd.readouterr().err.count("never compacted: its snapshots keep it small") == 2


def test_a_locked_directory_is_refused(logs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything is written, in each way to run."""
    (logs / ".lock").write_bytes(b"")
    before = tree(logs)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(logs / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        for words in ((), ("--dry-run",), ("--to", tmp_path / "new"), ("--compression", "zstd")):
            assert run(*words, logs) == 2
            assert "a broker or another command uses this directory; stop it or wait, then compact" in capfd.readouterr().err
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()
    assert tree(logs) == before | {".lock": tree(logs)[".lock"]}
    assert run(logs) == 0


def test_an_unclean_directory_is_refused_with_what_helps(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (logs / ".kafka_cleanshutdown").unlink()
    before = tree(logs)
    for words in ((), ("--dry-run",), ("--compression", "zstd")):
        assert run(*words, logs) == 2
        err = capfd.readouterr().err
        assert "start the broker and stop it; or repair it with `kcli verify --repair --apply" in err
    assert tree(logs) == before
    rows = rows_in(logs / "__consumer_offsets-0")
    assert run("--unclean", logs) == 0
    path = logs / "__consumer_offsets-0"
    assert rows_in(path) == last_of_each_key(rows, active_base(path))
    assert_sound(logs)


@pytest.mark.parametrize("lacks_high_watermarks", [False, True])
def test_a_repaired_directory_needs_options_that_are_named_at_once(
    logs: Path, lacks_high_watermarks: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """After a repair the message does not ask for a repair; the options that it names are enough."""
    path = sorted((logs / "__consumer_offsets-0").glob("*.log"))[1]
    flip(path, 70)
    if lacks_high_watermarks:
        (logs / "replication-offset-checkpoint").unlink()
    assert main(["verify", "--repair", "--apply", str(logs)]) == 3
    capfd.readouterr()
    assert run(logs) == 2
    also = " and, because no high watermark is known, --assume-committed if every record is committed"
    assert capfd.readouterr().err == (
        f"kcli: {logs} has no .kafka_cleanshutdown, but was repaired (the quarantine {logs}.quarantine exists): give --unclean"
        f"{also if lacks_high_watermarks else ''}; or start the broker and stop it\n"
    )
    assert run("--compression", "zstd", logs) == 2
    assert "--assume-committed" not in capfd.readouterr().err
    assert run("--unclean", *(["--assume-committed"] if lacks_high_watermarks else []), logs) == 0


def test_an_unclean_log_that_needs_a_recovery_is_left_alone(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (logs / ".kafka_cleanshutdown").unlink()
    path = max((logs / "__consumer_offsets-0").glob("*.log"))
    path.write_bytes(path.read_bytes()[:-5])
    before = tree(logs / "__consumer_offsets-0")
    assert run("--unclean", logs) == 1
    assert "its log needs a recovery, which would cut records; the partition was not changed" in capfd.readouterr().err
    assert tree(logs / "__consumer_offsets-0") == before


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--compression", "zstd"), ("--to", "new")])
def test_a_damaged_partition_is_left_alone_and_the_others_go_on(
    logs: Path, tmp_path: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """One sentence with the file, the byte and what helps; exit code 1."""
    words = tuple(str(tmp_path / word) if word == "new" else word for word in words)
    path = sorted((logs / "__consumer_offsets-0").glob("*.log"))[1]
    flip(path, 70)
    before, other = tree(logs / "__consumer_offsets-0"), log_bytes(logs / "__consumer_offsets-1")
    assert run(*words, "--output", "json", logs) == 1
    out, err = capfd.readouterr()
    (problem,) = [json.loads(line) for line in out.splitlines() if '"type":"problem"' in line]
    assert f"{path}: the batch at byte 0 " in problem["message"] and "kcli verify --repair" in problem["message"]
    assert problem["message"] in err
    assert tree(logs / "__consumer_offsets-0") == before
    changed = tmp_path / "new" if "--to" in words else logs
    if "--dry-run" not in words:
        assert log_bytes(changed / "__consumer_offsets-1") < other
        assert log_bytes(changed / "__consumer_offsets-0") == log_bytes(logs / "__consumer_offsets-0")


@pytest.mark.parametrize("words", [(), ("--compression", "zstd")])
def test_records_that_cannot_be_read_are_reported_with_file_and_byte(
    logs: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """Under a right CRC: a codec that its bytes are not of."""
    path = min((logs / "__consumer_offsets-0").glob("*.log"))
    data = path.read_bytes()
    second = read_header(data).size_bytes
    header = read_header(data, second)
    bad = NewRecordBatch(
        header.base_offset, 2, NOW_MS, NOW_MS, 3, data[second + 61 : second + header.size_bytes], 1, 0
    ).encode()
    path.write_bytes(data[:second] + bad + data[second + header.size_bytes :])
    assert run(*words, logs / "__consumer_offsets-0") == 1
    assert f"{path}: the batch at byte {second}: " in capfd.readouterr().err


@pytest.mark.parametrize("codec", ["none", "gzip", "gzip:9", "snappy", "lz4", "lz4:3", "zstd", "zstd:12"])
def test_another_codec_and_the_same_records(logs: Path, codec: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Of any topic, active segments too; headers change in codec, length and CRC alone."""
    name, _, level = codec.partition(":")
    wanted = ("none", "gzip", "snappy", "lz4", "zstd").index(name)
    make(logs, "mixed-0", codec=4 if wanted != 4 or level else 0)
    path = logs / "mixed-0"
    before, rows = [batch.header for batch in batches_in(path)], rows_in(path)
    others = tree(path)
    assert run("--compression", codec, "--dry-run", "--output", "json", logs) == 1
    planned = reported(capfd)
    assert tree(path) == others
    assert run("--compression", codec, "--output", "json", logs) == 0
    assert reported(capfd)["plan"] == planned["plan"]
    after = [batch.header for batch in batches_in(path)]
    assert rows_in(path) == rows
    for one, other in zip(before, after, strict=True):
        assert isinstance(one, RecordBatch) and isinstance(other, RecordBatch)
        assert other.codec == wanted
        same = {"position": 0, "batch_length": 0, "crc": 0, "attributes": one.attributes & ~7}
        assert one._replace(**same) == other._replace(**{**same, "attributes": other.attributes & ~7})
    assert_sound(logs)


def test_a_batch_with_too_many_bytes_of_records_keeps_its_codec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A small batch may inflate to 2 GiB, which would have to be in memory; the others get the new codec."""
    monkeypatch.setattr(limits, "MAX_RECOMPRESSED_BYTES", 2000)
    batches = [verified.batch(offset, count, codec=1) for offset, count in ((0, 5), (5, 500), (505, 5))]
    path = verified.partition(tmp_path, "t-0", batches)
    before = rows_in(path)
    assert run("--compression", "zstd", path) == 0
    assert [one.header.codec for one in batches_in(path)] == [4, 1, 4] and rows_in(path) == before
    assert "1 batch with more than" in capfd.readouterr().out


def test_codecs_and_levels_that_do_not_exist(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = tree(logs)
    for codec in ("brotli", "zstd:23", "gzip:0", "snappy:1", "lz4:", "zstd:x"):
        assert run("--compression", codec, logs) == 2
    assert run("--compression", "zstd", "--active", logs) == 2
    assert run("--memory", "0", logs) == 2 and run() == 2 and run(logs / "meta.properties") == 2
    assert capfd.readouterr().err.count("--compression: ") == 6
    assert tree(logs) == before


def test_without_room_for_all_each_partition_comes_true_before_the_next(
    logs: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsDisk, "free_bytes", lambda *_: 10)
    assert run("--output", "json", logs) == 0
    types = [json.loads(line)["type"] for line in capfd.readouterr().out.splitlines()]
    assert types == ["schema", "skipped", "plan", "result", "plan", "result", "summary"]
    assert_sound(logs)


def test_a_topic_that_is_not_there_is_reported(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A pattern that matches none is a slip, also where another one matches; exit code and sentence are those of describe."""
    for words in (["--topic", "nothing*"], ["--topic", "order"], ["--dry-run", "--topic", "order"]):
        assert run(*words, logs) == 1
        compacted = capfd.readouterr()
        assert main(["describe", "--topic", words[-1], str(logs)]) == 1
        assert compacted == capfd.readouterr() and compacted.out == ""
    assert compacted.err == f"kcli: {logs}: no topic here is called 'order'; did you mean 'orders'?\n"
    assert run("--topic", "nothing*", "--topic", "__consumer*", logs) == 1
    out, err = capfd.readouterr()
    assert "no topic here matches 'nothing*'; there are " in err and "of 2 partitions removed" in out
    assert run("--topic", "order", "--output", "json", logs) == 1
    schema, problem, summary = map(json.loads, capfd.readouterr().out.splitlines())
    assert (schema["type"], problem["type"], summary["type"]) == ("schema", "problem", "summary")
    assert problem["path"] == str(logs) and (summary["partitions"], summary["problems"]) == (0, 1)
    assert run("--topic", "order", logs, logs.parent / "missing") == 2


def test_a_full_disk_behind_to_is_reported_with_what_is_left(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A write names no file itself. What was begun lacks the mark of a clean stop."""
    append = OsDisk.append

    def full(self: OsDisk, path: str, data: bytes | memoryview) -> None:
        if path.endswith("/00000000000000000000.log") and "orders-0" in path:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, path, data)

    monkeypatch.setattr(OsDisk, "append", full)
    target, before = tmp_path / "target", tree(logs)
    assert run("--to", target, logs) == 2
    assert f"kcli: {target}: No space left on device; --to {target} is incomplete: remove it" in capfd.readouterr().err
    assert not (target / ".kafka_cleanshutdown").exists() and tree(logs) == before


def test_an_interruption_while_files_take_their_places(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C at any of the renames: each partition is what it was or should become, and what is left to do is reported."""
    rename, names = OsDisk.rename, ("__consumer_offsets-0", "__consumer_offsets-1")
    before = {name: rows_in(logs / name) for name in names}
    after = {name: last_of_each_key(rows, active_base(logs / name)) for name, rows in before.items()}
    calls, interrupted = 0, True
    seen = set()
    while interrupted:
        left, copy = calls, tmp_path / f"copy-{calls}"
        shutil.copytree(logs, copy)

        def interrupting(self: OsDisk, source: str, target: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
            rename(self, source, target)

        monkeypatch.setattr(OsDisk, "rename", interrupting)
        code = run(copy)
        interrupted = code == 130
        assert interrupted or code == 0
        err = capfd.readouterr().err
        assert not interrupted or "of 2 partitions done, the next run does the others" in err
        for name in names:
            rows = rows_in(copy / name)
            assert rows in (before[name], after[name])
            assert not [path for path in (copy / name).iterdir() if path.suffix in (".cleaned", ".swap")]
            seen.add(rows == after[name])
        calls += 5
    assert seen == {True, False}


def test_the_work_is_done_though_nobody_reads_of_it(logs: Path) -> None:
    """As in `kcli compact ... | head -1`; a dry run ends."""
    before = rows_in(logs / "__consumer_offsets-0")
    for words, expected in (
        (["--dry-run"], before),
        (["--apply"], last_of_each_key(before, active_base(logs / "__consumer_offsets-0"))),
    ):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "kcli", "compact", *words, str(logs)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
        os.close(writer)
        assert done.returncode == 0 and b"Traceback" not in done.stderr
        assert rows_in(logs / "__consumer_offsets-0") == expected


def test_all_cores_do_what_one_does(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kcli.inspect.compacting import compaction

    shutil.copytree(logs, tmp_path / "again")
    assert run("--processes", "1", logs) == 0
    monkeypatch.setattr(compaction, "SMALL_BYTES", 0)
    assert run("--processes", "2", tmp_path / "again") == 0
    for name in ("__consumer_offsets-0", "__consumer_offsets-1"):
        assert rows_in(logs / name) == rows_in(tmp_path / "again" / name)
        assert sorted(os.listdir(logs / name)) == sorted(os.listdir(tmp_path / "again" / name))


def test_json_is_what_the_page_says(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every line an object, every member in docs/compact.md, the schema first and the summary last."""
    assert run("--output", "json", logs, logs / "nothing") == 2
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert rows[0] == {"type": "schema", "name": "kcli.compact", "version": 1} and rows[-1]["type"] == "summary"
    assert {row["type"] for row in rows} == {"schema", "skipped", "problem", "plan", "result", "summary"}
    page = (Path(__file__).parents[2] / "docs" / "compact.md").read_text()
    for row in rows:
        assert f"| `{row['type']}` |" in page
        for member in row:
            assert member == "type" or member in page, member


def test_a_killed_process_leaves_each_partition_old_or_new(tmp_path: Path) -> None:
    """kill -9 at random moments; a start finishes the work, and the next run ends like one without a kill."""
    source = tmp_path / "source"
    for number in range(4):
        make(source, f"__consumer_offsets-{number}", batches=200 + number)
    root_files(source, replication={f"__consumer_offsets-{number}": 3 * (200 + number) for number in range(4)})
    whole = tmp_path / "whole"
    shutil.copytree(source, whole)
    assert run(whole) == 0
    old = {path.name: rows_in(path) for path in source.glob("__c*")}
    new = {path.name: rows_in(path) for path in whole.glob("__c*")}
    rng = Random(5)
    for number in range(6):
        logs = tmp_path / f"killed-{number}"
        shutil.copytree(source, logs)
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(rng.randrange(200)), "compact", "--apply", str(logs)],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.wait() == -9
        started = tmp_path / f"started-{number}"
        shutil.copytree(logs, started)
        for name in new:
            start(started / name)
            assert rows_in(started / name) in (old[name], new[name])
        assert_sound(started)
        assert run(logs) == 0
        assert {name: rows_in(logs / name) for name in new} == new
        assert_sound(logs)


# A kcli that ends itself with SIGKILL in its so-manieth call that changes the disk, and else says how many were left.
KILLED = """
import os, signal, sys
from kcli.commands.app import main
from kcli.log.disk.os_disk import OsDisk
left = int(sys.argv[1])
def dying(call):
    def called(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return called
for name in ("append", "open_log_file", "rename", "remove", "write_file", "set_mtime_ms", "flush", "truncate"):
    setattr(OsDisk, name, dying(getattr(OsDisk, name)))
code = main(sys.argv[2:])
print(left, file=sys.stderr)
sys.exit(code)
"""
