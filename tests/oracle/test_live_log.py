"""Kafka judges live logs: it opens what a stopped one left, changes nothing, dumps it whole; and it recovers what a crash left
to the same offsets, sizes and files as an opening log does.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_opener import open_log
from tests.conftest import every_log_set
from tests.damage import DAMAGES, NotApplicableError, copy_partition, damaged_copy
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch, of_producer
from tests.oracle.peer import LoadCase, Peer, digests, stated

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

INDEX_INTERVAL = 300
SMALL = LogConfig(segment_bytes=4000, index_interval_bytes=INDEX_INTERVAL)


def plain(live: LiveLog) -> None:
    for at in range(60):
        live.append(new_batch([b"x" * (at * 7 % 90)] * (1 + at % 4), timestamps=[NOW_MS + at % 13] * (1 + at % 4)))


def idempotent(live: LiveLog) -> None:
    for at in range(40):
        live.append(of_producer(7, 3 * at, 3, epoch=1), of_producer(2**40 + at, 0, 2), epoch=at // 15)
    live.log.append_as_leader(of_producer(7, 117, 3, epoch=1), 2, NOW_MS)


def transactional(live: LiveLog) -> None:
    for at in range(25):
        live.append(of_producer(7, 2 * at, 2, transactional=True), of_producer(8, at, transactional=True))
        live.append(marker(7, abort=at % 2 == 0), of_producer(9, at))
        if at % 3 == 0:
            live.append(marker(8, abort=at % 2 == 1, coordinator_epoch=at))


def codecs(live: LiveLog) -> None:
    for at in range(40):
        live.log.config = live.config._replace(
            compression_type=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")[at % 6],
            message_timestamp_type=LOG_APPEND_TIME if at % 5 == 0 else "CreateTime",
        )
        live.append(new_batch([b"abc" * 50] * 5, timestamps=[NOW_MS - at] * 5, codec=at % 5), now_ms=NOW_MS + at)
    live.log.config = live.config


def cut_and_shortened(live: LiveLog) -> None:
    plain(live)
    live.log.truncate_to(live.log.base_offsets[-1] + 1, NOW_MS)
    live.append(*(of_producer(7, at) for at in range(9)), epoch=3)
    live.log.maybe_increment_log_start_offset(live.log.base_offsets[2] + 1)
    live.log.delete_old_segments(NOW_MS)
    for path in live.directory.glob("*.deleted"):
        path.unlink()


def empty(live: LiveLog) -> None:
    pass


FILLINGS: dict[str, Callable[[LiveLog], None]] = {
    found.__name__: found for found in (plain, idempotent, transactional, codecs, cut_and_shortened, empty)
}


def filled(parent: Path) -> list[LiveLog]:
    logs = []
    for name, fill in FILLINGS.items():
        live = LiveLog(parent / f"{name}-0", SMALL)
        fill(live)
        logs.append(live)
    return logs


def test_kafka_opens_what_a_stop_left(kafka_peer: Peer, tmp_path: Path) -> None:
    """The same start and end, and not a byte of any file is other afterwards."""
    logs = filled(tmp_path)
    cases, expected = [], []
    for live in logs:
        live.log.close()
        expected.append((live.log.log_start_offset, live.log.log_end_offset, digests(live.directory)))
        end, start = live.log.log_end_offset, live.log.log_start_offset
        cases.append(LoadCase(live.directory, True, end, start, {"index.interval.bytes": str(INDEX_INTERVAL)}))
    for case, answer, (start, end, files) in zip(cases, kafka_peer.load_logs(cases), expected, strict=True):
        assert "exception" not in answer, (case.directory.name, answer)
        assert (answer["log"]["start_offset"], answer["log"]["end_offset"]) == (start, end), case.directory.name
        found = stated(answer)
        if case.directory.name.startswith("cut"):
            # A load drops epochs and snapshots before the log start offset; while it runs, a broker leaves them on disk.
            found, files = (
                {name: digest for name, digest in each.items() if name.endswith(("log", "index"))} for each in (found, files)
            )
        assert found == files, case.directory.name


def test_kafka_dumps_what_a_stop_left(kafka_peer: Peer, tmp_path: Path) -> None:
    """Its dump tool finds no mismatch between logs and indexes, and no bad batch, in any file."""
    logs = filled(tmp_path)
    commands = []
    for live in logs:
        live.log.close()
        for path in sorted(live.directory.iterdir()):
            if path.suffix == ".log":
                commands.append(["--files", str(path), "--deep-iteration"])
            elif path.suffix in (".index", ".timeindex"):
                commands += [["--files", str(path), "--verify-index-only"], ["--files", str(path), "--index-sanity-check"]]
            elif path.suffix in (".txnindex", ".snapshot"):
                commands.append(["--files", str(path)])
    for command, outcome in zip(commands, kafka_peer.dump_many(commands), strict=True):
        text = outcome.stdout.decode()
        assert outcome.exit_code == 0, (command, outcome.stderr)
        assert not any(word in text for word in ("Mismatch", "isvalid: false", "not found", "Found timestamp mismatch")), text
        assert "exception" not in outcome.stderr.lower(), (command, outcome.stderr)


def opened_and_closed(directory: Path, interval: int, recovery_point: int) -> tuple[int, int, int] | None:
    """Open as after a crash and close -> start, end, recovery point; None where the log is refused."""
    disk = OsDisk()
    files = FileCache(disk)
    config = LogConfig(index_interval_bytes=interval)
    try:
        log = open_log(disk, files, str(directory), "t", 0, config, NOW_MS, recovery_point=recovery_point)
    except LogRefusedError:
        return None
    found = log.log_start_offset, log.log_end_offset, log.recovery_point
    log.close()
    return found


def judge_recoveries(kafka_peer: Peer, cases: list[tuple[str, Path, Path, int]], interval: int) -> None:
    """Each case is a name, a copy for Kafka, one for us, and the recovery point.

    A stray `*.tmp` goes when its file is written the next time, which Kafka may do at its start where we need not.
    """
    loads = [LoadCase(theirs, False, point, 0, {"index.interval.bytes": str(interval)}) for _, theirs, _, point in cases]
    for (name, _, ours, point), answer in zip(cases, kafka_peer.load_logs(loads), strict=True):
        found = opened_and_closed(ours, interval, point)
        if found is None:
            assert "exception" in answer, name
            continue
        assert "exception" not in answer, (name, answer["exception"])
        log = answer["log"]
        assert found == (log["start_offset"], log["end_offset"], log["recovery_point_offset"]), name
        left = {name: digest for name, digest in digests(ours).items() if not name.endswith(".tmp")}
        assert left == {name: digest for name, digest in stated(answer).items() if not name.endswith(".tmp")}, name


def test_kafka_recovers_what_a_crash_left_alike(kafka_peer: Peer, tmp_path: Path) -> None:
    """Live logs that were not closed, their last batch whole, torn or gone, from the start and from the last segment on."""
    cases: list[tuple[str, Path, Path, int]] = []
    for live in filled(tmp_path / "live"):
        live.log.local_log().active.write_indexes()
        active = f"{live.log.base_offsets[-1]:020d}.log"
        for cut in (0, 1, 30, 75):
            for point in sorted({0, live.log.base_offsets[-1]}):
                name = f"{live.directory.name}-cut-{cut}-from-{point}"
                copies = [tmp_path / use / name / "t-0" for use in ("kafka", "own")]
                for copy in copies:
                    shutil.copytree(live.directory, copy)
                    data = (copy / active).read_bytes()
                    (copy / active).write_bytes(data[: max(0, len(data) - cut)])
                cases.append((name, copies[0], copies[1], point))
    judge_recoveries(kafka_peer, cases, INDEX_INTERVAL)


def damaged(kind: str, source: Path, at: Path) -> Path:
    return copy_partition(source, at) if kind == "none" else damaged_copy(kind, source, at)


@pytest.mark.parametrize("name", ["transactions-0", pytest.param("many-segments-0", marks=pytest.mark.slow)])
def test_every_damage_is_recovered_as_kafka_does(kafka_peer: Peer, tmp_path: Path, name: str) -> None:
    """Kafka's own partitions, damaged in every way that we know: the files in the end are Kafka's, byte for byte."""
    source = next((found.data / name for found in every_log_set() if (found.data / name).is_dir()), None)
    if source is None:
        pytest.skip(f"neither ../shared nor fixtures/ holds {name}")
    last = max(int(path.name[:20]) for path in source.glob("*.log"))
    cases: list[tuple[str, Path, Path, int]] = []
    for point in sorted({0, last}):
        for kind in ("none", *DAMAGES):
            at = tmp_path / f"{kind}-{point}"
            try:
                copies = [damaged(kind, source, at / use) for use in ("kafka", "own")]
            except NotApplicableError:
                continue
            cases.append((f"{kind} from {point}", copies[0], copies[1], point))
    judge_recoveries(kafka_peer, cases, 1024 if name.startswith("many-segments") else 4096)
