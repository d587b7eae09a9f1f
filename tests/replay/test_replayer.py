"""Protects "nothing is lost and nothing is sent twice": a replay on an unreliable network, killed at any event, run again.

The cluster checks sequences as Kafka does (tests/replay/fake_cluster); what arrives is compared with what the source has.
"""

from __future__ import annotations

import errno
import random
import struct
from pathlib import Path

import pytest

from kcli.client.errors import ClientError
from kcli.commands.app import build_parser
from kcli.format.compression import inflate
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.protocol import error_codes
from kcli.replay.checking import Checker
from kcli.replay.directory_source import DirectorySource, DirectoryStream, Problems
from kcli.replay.group_offsets import GroupProgress
from kcli.replay.preparation import Preparation, ReplayOptions
from kcli.replay.progress import FileProgress, ProgressStore
from kcli.replay.replayer import Replayer
from kcli.replay.scheduling import AtRate, AtSpeed, Schedule
from kcli.replay.source import CommittedOffset
from kcli.selecting.selection import Selection, parse_selection
from tests.log_builder import PartitionBuilder
from tests.replay.fake_cluster import FakeCluster, FakeLog, FakeNetwork

COMMITTED = Selection(read_committed=True)


def build(root: Path, partitions: int = 3, batches: int = 40) -> dict[TopicPartition, list[bytes]]:
    """Partitions of the topic t -> the values that a consumer with read_committed reads."""
    expected: dict[TopicPartition, list[bytes]] = {}
    for number in range(partitions):
        builder = PartitionBuilder(root / f"t-{number}")
        values: list[bytes] = []
        for batch in range(batches):
            records = [(b"k", b"%d-%d-%d" % (number, batch, at)) for at in range(1 + batch % 4)]
            producer = 7 if batch % 10 == 3 else -1
            builder.append(records, codec=batch % 2, producer=producer, transactional=producer > 0)
            if producer > 0:
                builder.end_transaction(producer, commit=batch % 20 == 3)
            if producer < 0 or batch % 20 == 3:
                values += [value for _, value in records]
            if batch % 15 == 14:
                builder.roll()
        builder.flush()
        expected["t", number] = values
    return expected


def values_of(log: FakeLog) -> list[bytes]:
    found = []
    for batch in log.batches:
        header = check_batch(batch)
        records = inflate(header.codec, batch[HEADER_BYTES:], limit=1 << 20)
        found += [record.value or b"" for record in read_records(records, header.record_count)]
    return found


class Scene:
    """One replay of `root`, in as many runs as it takes."""

    def __init__(self, root: Path, seed: int, faults: float, progress: Path | None = None) -> None:
        self.rng = random.Random(seed)
        self.cluster = FakeCluster(self.rng)
        self.network = FakeNetwork(self.cluster, self.rng, faults)
        self.root = root
        self.progress = progress
        self.selection = COMMITTED
        self.committed: dict[TopicPartition, list[CommittedOffset]] = {}
        self.schedule: Schedule | None = None
        self.notes: list[str] = []
        self.options = ReplayOptions()
        self.is_checked = False
        self.join_bytes = 0
        self.group, self.identity = "replay", "hash"
        self.older: dict[str, str] = {}  # identities by group
        self.disk = OsDisk()

    def start(self) -> tuple[Replayer, list[ClientError | None]]:
        """Start a run -> it, and what will have ended it."""
        client = self.network.client()
        self.problems = problems = Problems(self.notes.append)
        source = DirectorySource(
            self.disk, [str(self.root)], self.selection, lambda topic: True, problems, str, self.join_bytes
        )
        names = {topic: f"copy-{topic}" for topic in source.topics()}
        store: ProgressStore = GroupProgress(client, self.group, self.identity, self.older.items())
        if self.progress is not None:
            store = FileProgress(
                OsDisk(), str(self.progress), self.identity, self.older.values(), lambda: client.metadata.cluster_id
            )
        prepare = Preparation(client, source, store, names, self.options, self.committed, self.notes.append).steps
        self.checker = Checker(client, source, self.notes.append)
        check = self.checker.steps if self.is_checked else None
        replayer = Replayer(client, source, store, prepare, self.schedule, self.committed, check)
        ended: list[ClientError | None] = []
        replayer.run(lambda result, now_ms: ended.append(result), self.network.now_ms)
        return replayer, ended

    def run(self, most_events: int = 1_000_000) -> Replayer | None:
        """Run -> None if it was killed after so many events. Raises what ended it."""
        replayer, ended = self.start()
        if not self.network.run(replayer.poll, lambda: bool(ended), most_events):
            return None
        if ended[0] is not None:
            raise ended[0]
        return replayer

    def arrived(self) -> dict[TopicPartition, list[bytes]]:
        logs = self.cluster.logs["copy-t"]
        return {("t", number): values_of(log) for number, log in enumerate(logs)}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kept", ["group", "file"])
def test_killed_at_any_event_and_run_again(tmp_path: Path, seed: int, kept: str) -> None:
    expected = build(tmp_path / "data")
    scene = Scene(tmp_path / "data", seed, 0.1, tmp_path / "progress" if kept == "file" else None)
    scene.is_checked = True
    scene.join_bytes = 200 * (seed % 3)
    kills = 0
    while scene.run(scene.rng.randint(5, 120)) is None:
        kills += 1
        assert kills < 400
    assert scene.arrived() == expected
    assert not scene.checker.differences and scene.checker.records == sum(map(len, expected.values()))
    assert scene.run() is not None and scene.arrived() == expected  # all is there, nothing is sent


def test_batches_go_as_they_are(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    for codec in range(5):
        builder.append([(b"a", b"x" * 50), (None, None)], codec=codec)
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    replayer = scene.run()
    assert replayer is not None
    sources = bytes(builder.path(".log").read_bytes())
    position = 0
    for stored in scene.cluster.logs["copy-t"][0].batches:
        size = len(stored)
        assert stored[HEADER_BYTES:] == sources[position : position + size][HEADER_BYTES:]
        header = check_batch(stored)
        assert (header.producer_id, header.producer_epoch) == (101, 0)
        position += size
    assert position == len(sources)


def test_a_first_batch_that_is_refused_for_a_moment_keeps_its_place(tmp_path: Path) -> None:
    """The target has no state of the producer and would take the second batch, after which the first one is out of order."""
    expected = build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.cluster.produce_errors = [error_codes.NOT_ENOUGH_REPLICAS]
    scene.run()
    assert scene.arrived() == expected


def test_a_topic_that_was_made_again_gets_all_records(tmp_path: Path) -> None:
    expected = build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.run()
    scene.cluster.create("copy-t", 1)
    scene.run()
    assert scene.arrived() == expected


def test_another_source_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    events = 10
    while "copy-t" not in scene.cluster.logs or not scene.cluster.logs["copy-t"][0].batches:
        assert scene.run(events) is None
        events += 1
    scene.selection = parse_selection(isolation="read_committed", offset="3..")
    with pytest.raises(ClientError, match="to send all records again, use --restart"):
        scene.run()


def test_a_target_that_lost_records_is_refused(tmp_path: Path) -> None:
    """A lost disk or an unclean election: the saved progress is above the end of the target's log."""
    build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.run()
    log = scene.cluster.logs["copy-t"][0]
    end = log.end
    log.truncate(end - 3)
    with pytest.raises(ClientError, match=rf"log ends at {log.end}, but the records up to {end} were .*: it was truncated"):
        scene.run()


def test_restarted_everything_is_sent_again(tmp_path: Path) -> None:
    expected = build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.run()
    scene.options = ReplayOptions(is_restarted=True)
    scene.run()
    assert scene.arrived()["t", 0] == expected["t", 0] * 2


def test_fewer_partitions_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "data", 3)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.cluster.create("copy-t", 2)
    with pytest.raises(ClientError, match=r"has 2 partitions, and partition 2 of 't' has records"):
        scene.run()
    assert not any(log.batches for log in scene.cluster.logs["copy-t"])


def test_a_batch_too_large_for_the_target(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"a", b"x")])
    builder.append([(b"a", b"x" * 5000)])
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    scene.cluster.create("copy-t", 1)
    scene.cluster.configs["copy-t"] = {"max.message.bytes": "1000"}
    with pytest.raises(ClientError, match=r"at offset 1 of t-0 is larger than max\.message\.bytes=1000 of the topic 'copy-t'"):
        scene.run()


@pytest.mark.parametrize(
    ("retention_ms", "text"),
    [(86_400_000, "1 day"), (604_800_000, "7 days"), (5_400_000, "90 minutes"), (1500, "1,500 milliseconds")],
)
def test_a_retention_of_the_target_is_reported_with_the_command_that_ends_it(
    tmp_path: Path, retention_ms: int, text: str
) -> None:
    build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.cluster.create("copy-t", 1)
    scene.cluster.configs["copy-t"] = {"retention.ms": str(retention_ms)}
    scene.run()
    (note,) = (note for note in scene.notes if f"older than {text} (retention.ms)" in note)
    words = note.partition("run: kcli configs ")[2].split()
    args = build_parser("configs").parse_args(words)
    assert (args.topic, args.add_config, args.bootstrap_server) == ("copy-t", ["retention.ms=-1"], "fake:1")


def test_settings_of_a_target_topic_are_reported_by_the_first_run_alone(tmp_path: Path) -> None:
    """A run that continues does not report them again; one with --restart does."""
    build(tmp_path / "data", 1)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.cluster.create("copy-t", 1)
    scene.cluster.configs["copy-t"] = {"retention.ms": "86400000", "message.timestamp.type": "LogAppendTime"}

    def reported() -> list[str]:
        scene.notes.clear()
        scene.run()
        return [note for note in scene.notes if "retention.ms" in note or "LogAppendTime" in note]

    assert len(reported()) == 2
    assert reported() == []
    scene.options = ReplayOptions(is_restarted=True)
    assert len(reported()) == 2


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_offsets_of_groups_are_translated(tmp_path: Path, seed: int, is_late: bool) -> None:
    """A group that has read up to an offset of the source finds the same records ahead of it in the target.

    Late: records of the first runs were sent without a thought of groups.
    """
    build(tmp_path / "data", 2)
    scene = Scene(tmp_path / "data", seed, 0.05)
    scene.join_bytes = 200 * (seed % 2)
    scene.schedule = AtRate(40, is_bytes=False)  # so that the progress is saved several times
    ends = dict.fromkeys((("t", 0), ("t", 1)), 200)
    scene.committed = {
        where: [CommittedOffset(f"g{offset}", *where, offset, "m") for offset in range(0, end, 7)]
        for where, end in ends.items()
    }
    committed, scene.committed = scene.committed, {} if is_late else scene.committed
    while scene.run(scene.rng.randint(20, 400)) is None:
        scene.committed = committed if scene.rng.random() < 0.2 else scene.committed
    scene.committed = committed
    if is_late:
        assert scene.run() is not None
    for where, offsets in scene.committed.items():
        for one in offsets:
            ahead = len(sent_from(tmp_path / "data", where, one.offset))
            target, metadata = scene.cluster.offsets[one.group, "copy-t", where[1]]
            assert (scene.cluster.logs["copy-t"][where[1]].end - target, metadata) == (ahead, "m"), one


@pytest.mark.parametrize("deleted", [0, 5])
def test_offsets_of_groups_follow_the_source_and_never_go_back(tmp_path: Path, deleted: int) -> None:
    """Consumers of the source continue between two runs; those of the target may be further than they are already."""
    of_values(tmp_path, [b"%d" % number for number in range(20)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.run()
    scene.cluster.logs["copy-t"][0].delete_before(deleted)
    place = "g", "copy-t", 0

    def run(source_offset: int) -> tuple[tuple[int, str], dict[str, int], dict[str, int]]:
        scene.committed = {("t", 0): [CommittedOffset("g", "t", 0, source_offset, "m")]}
        replayer = scene.run()
        assert replayer is not None
        return scene.cluster.offsets[place], replayer.committed_groups, replayer.kept_groups

    for offset in (3, 6, 12, 20):
        assert run(offset) == ((max(offset, deleted), "m"), {"g": 1}, {})
    scene.cluster.offsets[place] = 33, "of the target"
    for offset in (12, 20):
        assert run(offset) == ((33, "of the target"), {}, {"g": 1})


def sent_from(root: Path, where: TopicPartition, offset: int) -> list[int]:
    """The offsets of the records that a consumer at `offset` would read."""
    selection = parse_selection(isolation="read_committed", offset=f"{offset}..")
    source = DirectorySource(OsDisk(), [str(root)], selection, lambda topic: True, Problems(lambda sentence: None))
    stream = source.open(where, 0, [])
    found: list[int] = []
    while (batch := stream.peek()) is not None:
        stream.take()
        found += range(batch.record_count)
    return found


@pytest.mark.parametrize(
    ("schedule", "least_ms", "most_ms"),
    [(AtSpeed(1), 900, 1100), (AtSpeed(10), 90, 300), (AtRate(100, False), 800, 1100)],
)
def test_pace(tmp_path: Path, schedule: Schedule, least_ms: int, most_ms: int) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    for _ in range(101):
        builder.append([(b"a", b"x")])  # 10 ms apart
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = schedule
    replayer = scene.run()
    assert replayer is not None and len(scene.arrived()["t", 0]) == 101
    assert least_ms <= scene.network.now_ms <= most_ms + 100


def of_values(root: Path, values: list[bytes]) -> None:
    """The partition t-0 with one batch for each value."""
    builder = PartitionBuilder(root / "t-0")
    for value in values:
        builder.append([(b"k", value)])
    builder.flush()


@pytest.mark.parametrize("kept", ["group", "file"])
@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ([b"a", b"b"], "ends at offset 2, but its records up to 3 were sent already: it was truncated or replaced"),
        (
            [b"x", b"y", b"z", b"more"],
            "the last batch that was sent, 1 record at offset 2 of t-0, is not in the source any more",
        ),
    ],
)
def test_a_source_that_was_replaced_is_refused(tmp_path: Path, second: list[bytes], sentence: str, kept: str) -> None:
    of_values(tmp_path / "one", [b"a", b"b", b"c"])
    of_values(tmp_path / "two", second)
    scene = Scene(tmp_path / "one", 1, 0.0, tmp_path / "progress" if kept == "file" else None)
    scene.run()
    scene.root = tmp_path / "two"
    with pytest.raises(ClientError, match=sentence):
        scene.run()
    assert scene.arrived()["t", 0] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("join_bytes", [0, 10_000])
def test_a_source_that_has_grown_is_continued(tmp_path: Path, join_bytes: int) -> None:
    """Also with --join: the last batch of the first run is not made larger by what came after it."""
    of_values(tmp_path / "one", [b"a", b"b", b"c"])
    of_values(tmp_path / "two", [b"a", b"b", b"c", b"d", b"e"])
    scene = Scene(tmp_path / "one", 1, 0.0)
    scene.join_bytes = join_bytes
    scene.run()
    scene.root = tmp_path / "two"
    scene.run()
    assert scene.arrived()["t", 0] == [b"a", b"b", b"c", b"d", b"e"]
    scene.is_checked = True
    scene.run()
    assert (scene.checker.differences, scene.checker.records) == (0, 5), scene.notes


@pytest.mark.parametrize("join_bytes", [0, 10_000])
def test_a_source_that_has_grown_before_the_progress_was_saved(tmp_path: Path, join_bytes: int) -> None:
    """The batch that the killed run has sent is found in the target, and is not made larger by what came after it."""
    of_values(tmp_path / "one", [b"a", b"b", b"c"])
    of_values(tmp_path / "two", [b"a", b"b", b"c", b"d", b"e"])
    unsaved = 0
    for events in range(5, 60):
        scene = Scene(tmp_path / "one", 1, 0.0)
        scene.join_bytes = join_bytes
        is_killed = scene.run(events) is None
        unsaved += is_killed and bool(scene.cluster.logs.get("copy-t")) and len(scene.arrived()["t", 0]) == 3
        scene.root = tmp_path / "two"
        scene.run()
        assert scene.arrived()["t", 0] == [b"a", b"b", b"c", b"d", b"e"]
        if not is_killed:
            break
    assert unsaved


def test_batches_are_not_joined_to_what_the_target_refuses(tmp_path: Path) -> None:
    of_values(tmp_path / "one", [b"a" * 100] * 8)
    scene = Scene(tmp_path / "one", 1, 0.0)
    scene.join_bytes = 10_000
    scene.cluster.create("copy-t", 1)
    scene.cluster.configs["copy-t"] = {"max.message.bytes": "500", "segment.bytes": "400"}
    scene.run()
    assert len(scene.arrived()["t", 0]) == 8
    assert [len(batch) <= 400 for batch in scene.cluster.logs["copy-t"][0].batches] == [True] * 4


def test_a_target_whose_last_offsets_have_no_records_is_continued(tmp_path: Path) -> None:
    """The log cleaner of the target removes the last batch after a roll: the log still ends at the same offset."""
    of_values(tmp_path / "one", [b"a", b"b", b"c"])
    of_values(tmp_path / "two", [b"a", b"b", b"c", b"d"])
    scene = Scene(tmp_path / "one", 1, 0.0)
    scene.run()
    scene.cluster.logs["copy-t"][0].end += 50
    scene.root = tmp_path / "two"
    scene.run()
    assert scene.arrived()["t", 0] == [b"a", b"b", b"c", b"d"]


def test_progress_of_older_versions_is_taken(tmp_path: Path) -> None:
    of_values(tmp_path, [b"a", b"b", b"c"])
    scene = Scene(tmp_path, 1, 0.0)
    scene.run()
    where = "replay", "copy-t", 0
    offset, metadata = scene.cluster.offsets[where]
    scene.cluster.offsets[where] = offset, " ".join(metadata.split(" ")[:8])
    scene.run()
    assert scene.arrived()["t", 0] == [b"a", b"b", b"c"]


def test_a_source_topic_that_was_made_again_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_values(tmp_path, [b"a", b"b", b"c"])
    scene = Scene(tmp_path, 1, 0.0)
    monkeypatch.setattr(DirectorySource, "topic_id", lambda source, topic: Uuid(b"a" * 16))
    scene.run()
    monkeypatch.setattr(DirectorySource, "topic_id", lambda source, topic: Uuid(b"b" * 16))
    with pytest.raises(ClientError, match=r"the topic 't' of the source has the id .* it was deleted and created again"):
        scene.run()


class FaultyDisk(OsDisk):
    """A disk that fails to open some files."""

    def __init__(self, failing: set[str]) -> None:
        super().__init__()
        self.failing = failing

    def open_file(self, path: str) -> OsFile:
        if path in self.failing:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().open_file(path)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_segment_that_cannot_be_read_now_is_sent_by_the_next_run(tmp_path: Path, slot: int) -> None:
    """The rest of the partition waits, the other partitions are sent, and the exit code is 1."""
    expected = build(tmp_path / "data", 2)
    segments = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.disk = FaultyDisk({str(segments[slot])})
    scene.committed = {("t", 0): [CommittedOffset("g", "t", 0, 10_000, "")]}
    scene.run()
    arrived = scene.arrived()
    assert arrived["t", 1] == expected["t", 1]
    assert arrived["t", 0] == expected["t", 0][: len(arrived["t", 0])] != expected["t", 0]
    assert scene.problems.damages and any(
        "Input/output error; the rest of the partition is not sent" in one for one in scene.notes
    )
    assert ("g", "copy-t", 0) not in scene.cluster.offsets
    scene.disk = OsDisk()
    scene.run()
    assert scene.arrived() == expected and not scene.problems.damages
    assert scene.cluster.offsets["g", "copy-t", 0][0] == len(expected["t", 0])


@pytest.mark.parametrize("newest_produce", [12, 13])
def test_a_target_topic_made_again_during_the_run_ends_it(tmp_path: Path, newest_produce: int) -> None:
    """With topic ids in Produce (version 13) the new topic gets nothing; else the end of the run notices it."""
    of_values(tmp_path, [b"%d" % at for at in range(40)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.cluster.newest_produce = newest_produce
    scene.schedule = AtRate(10, is_bytes=False)

    def make_again() -> None:
        leader = scene.cluster.leaders["copy-t", 0]
        scene.cluster.create("copy-t", 1)
        scene.cluster.leaders["copy-t", 0] = leader

    scene.network.at(2000, make_again)
    with pytest.raises(ClientError, match="the topic 'copy-t' of the target was deleted and created again during the run"):
        scene.run()
    if newest_produce >= 13:
        assert not scene.arrived()["t", 0]
        scene.schedule = None
        scene.run()
        assert scene.arrived()["t", 0] == [b"%d" % at for at in range(40)]


@pytest.mark.parametrize(("has_due", "back_ms"), [(False, 400_000), (True, 100_000)])
def test_a_leader_is_missed_only_while_something_is_due(tmp_path: Path, has_due: bool, back_ms: int) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", b"first")], timestamp=1000)
    builder.append([(b"k", b"last")], timestamp=1000 + (20_000 if has_due else 500_000))
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = AtSpeed(1)

    def lead(has_leaders: bool) -> None:
        scene.cluster.has_leaders = has_leaders
        scene.network.network.request_update()

    scene.network.at(5000, lambda: lead(False))
    scene.network.at(back_ms, lambda: lead(True))
    scene.run()
    assert scene.arrived()["t", 0] == [b"first", b"last"]


def test_a_leader_that_is_missed_for_too_long_ends_the_run(tmp_path: Path) -> None:
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", b"first")], timestamp=1000)
    builder.append([(b"k", b"last")], timestamp=21_000)
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = AtSpeed(1)

    def lead() -> None:
        scene.cluster.has_leaders = False
        scene.network.network.request_update()

    scene.network.at(5000, lead)
    with pytest.raises(ClientError, match="nothing was acknowledged for 120 s: it has no leader"):
        scene.run()
    assert 140_000 < scene.network.now_ms < 145_000


@pytest.mark.parametrize("kept", ["group", "file"])
def test_progress_that_was_lost_is_noticed(tmp_path: Path, kept: str) -> None:
    """Without progress all records would be there twice; --append is for a topic that others write to, too."""
    build(tmp_path / "data", 2)
    scene = Scene(tmp_path / "data", 1, 0.0, tmp_path / "progress" if kept == "file" else None)
    scene.run()
    before = scene.arrived()
    scene.cluster.offsets.clear()
    (tmp_path / "progress").unlink(missing_ok=True)
    with pytest.raises(ClientError, match=r"has records already in copy-t-0, copy-t-1, and .* has no progress of this replay"):
        scene.run()
    assert scene.arrived() == before
    scene.options = ReplayOptions(may_append=True)
    scene.run()
    assert any("its records are added to those of copy-t-0, copy-t-1 in the target" in note for note in scene.notes)
    twice = {where: values * 2 for where, values in before.items()}
    assert scene.arrived() == twice
    scene.run()  # the same command again
    assert scene.arrived() == twice


def test_progress_of_some_partitions_alone_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "data", 2)
    scene = Scene(tmp_path / "data", 1, 0.0)
    scene.run()
    del scene.cluster.offsets["replay", "copy-t", 1]
    scene.options = ReplayOptions(may_append=True)
    with pytest.raises(ClientError, match="has the progress of other partitions, not that of copy-t-1"):
        scene.run()


def test_a_new_partition_of_the_source_is_no_lost_one(tmp_path: Path) -> None:
    build(tmp_path / "one", 1)
    expected = build(tmp_path / "two", 2)
    scene = Scene(tmp_path / "one", 1, 0.0)
    scene.cluster.create("copy-t", 2)
    scene.run()
    scene.root = tmp_path / "two"
    scene.run()
    assert scene.arrived() == expected


def test_progress_of_all_partitions_is_saved_each_day(tmp_path: Path) -> None:
    """Also of a partition that is done: its committed offset would expire before the others."""
    builder = PartitionBuilder(tmp_path / "t-0")
    builder.append([(b"k", b"first")], timestamp=1000)
    builder.append([(b"k", b"last")], timestamp=1000 + 3 * 86_400_000)
    builder.flush()
    builder = PartitionBuilder(tmp_path / "t-1")
    builder.append([(b"k", b"v")], timestamp=1000)
    builder.flush()
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = AtSpeed(1)
    counts: list[int] = []
    scene.network.at(10_000, lambda: counts.append(scene.cluster.commits))
    scene.network.at(2 * 86_400_000 + 10_000, lambda: counts.append(scene.cluster.commits))
    assert scene.run() is not None
    assert counts[1] - counts[0] == 2 * 2  # of two partitions on two days


def test_another_run_of_the_replay_is_named(tmp_path: Path) -> None:
    of_values(tmp_path, [b"%d" % at for at in range(40)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = AtRate(10, is_bytes=False)

    def other_run() -> None:
        log = scene.cluster.logs["copy-t"][0]
        (known,) = log.producers.values()
        known.append((known[-1][1] + 1, known[-1][1] + 7, log.end))

    scene.network.at(2000, other_run)
    with pytest.raises(ClientError, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER: .* is another run of this replay under way\?"):
        scene.run()


@pytest.mark.parametrize(("outage_ms", "is_survived"), [(100_000, True), (400_000, False)])
def test_an_outage_of_the_coordinator_does_not_end_the_run_soon(tmp_path: Path, outage_ms: int, is_survived: bool) -> None:
    """A save that times out is tried again while records are sent; the offsets of groups are, too."""
    of_values(tmp_path, [b"%d" % at for at in range(700)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.schedule = AtRate(1, is_bytes=False)
    scene.committed = {("t", 0): [CommittedOffset("g", "t", 0, 20, "m"), CommittedOffset("g2", "t", 0, 30, "m")]}

    def coordinate(is_coordinating: bool) -> None:
        scene.cluster.is_coordinating = is_coordinating

    scene.network.at(5000, lambda: coordinate(False))
    scene.network.at(5000 + outage_ms, lambda: coordinate(True))
    if is_survived:
        replayer = scene.run()
        assert replayer is not None and not replayer.group_problems
        assert len(scene.arrived()["t", 0]) == 700 and scene.cluster.offsets["replay", "copy-t", 0][0] == 700
        assert scene.cluster.offsets["g", "copy-t", 0] == (20, "m") and scene.cluster.offsets["g2", "copy-t", 0] == (30, "m")
    else:
        with pytest.raises(ClientError, match="has no coordinator that answers"):
            scene.run()
        assert 180_000 < scene.network.now_ms < 300_000


@pytest.mark.parametrize("where", ["peek", "prepare"])
def test_an_unexpected_error_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """A fault of the program must not leave the command waiting for the end of the run."""
    of_values(tmp_path, [b"a"])
    scene = Scene(tmp_path, 1, 0.0)

    def fail(*args: object) -> None:
        raise struct.error("unpack requires a buffer")

    if where == "peek":
        monkeypatch.setattr(DirectoryStream, "peek", fail)
    else:
        monkeypatch.setattr(Preparation, "_prepare_topics", fail)
    with pytest.raises(ClientError, match="not expected, error: unpack requires a buffer"):
        scene.run()


def with_unsaved_records(tmp_path: Path) -> Scene:
    """A replay whose progress is of its beginning, and whose target has deleted all its records."""
    of_values(tmp_path, [b"%d" % at for at in range(10)])
    scene = Scene(tmp_path, 1, 0.0)
    scene.run()
    metadata = scene.cluster.offsets["replay", "copy-t", 0][1]
    words = metadata.split(" ")
    words[4:7] = "2", "2", "0"
    words[9:12] = "-1", "0", "-1"
    scene.cluster.offsets["replay", "copy-t", 0] = 2, " ".join(words)
    scene.cluster.logs["copy-t"][0].delete_before(10)
    return scene


def test_errors_of_describe_producers_are_tried_again(tmp_path: Path) -> None:
    scene = with_unsaved_records(tmp_path)
    scene.cluster.producer_errors = [error_codes.NOT_LEADER_OR_FOLLOWER] * 2
    replayer = scene.run()
    assert replayer is not None and replayer.partitions[0].found_records == 8 and replayer.partitions[0].records == 0
    assert not scene.cluster.producer_errors and scene.cluster.logs["copy-t"][0].end == 10


def test_a_target_that_knows_fewer_records_than_the_progress_is_refused(tmp_path: Path) -> None:
    scene = with_unsaved_records(tmp_path)
    (known,) = scene.cluster.logs["copy-t"][0].producers.values()
    known[-1] = 0, 0, 0
    with pytest.raises(ClientError, match=r"has fewer records of the replay \(last sequence 0\) than the 2 of the progress"):
        scene.run()


@pytest.mark.parametrize("kept", ["group", "file"])
def test_a_name_with_another_selection_is_refused(tmp_path: Path, kept: str) -> None:
    of_values(tmp_path / "data", [b"a"])
    scene = Scene(tmp_path / "data", 1, 0.0, tmp_path / "progress" if kept == "file" else None)
    scene.run()
    scene.identity = "another"
    with pytest.raises(ClientError, match="has the progress of another replay: its paths, selection, --map"):
        scene.run()
    scene.options = ReplayOptions(is_restarted=True)
    scene.run()
    assert scene.arrived()["t", 0] == [b"a"] * 2


@pytest.mark.parametrize("group", ["replay", "replay-new"])
@pytest.mark.parametrize("kept", ["group", "file"])
def test_progress_under_an_older_name_is_found_and_continued(tmp_path: Path, kept: str, group: str) -> None:
    """A cluster as the source was known by its address; all its records would have been sent again.

    All progress gets the new name at once: the next run, with another address, does not know the older one.
    """
    expected = build(tmp_path / "data", 2)
    scene = Scene(tmp_path / "data", 1, 0.0, tmp_path / "progress" if kept == "file" else None)
    scene.identity = "by-address"
    scene.run()
    scene.group, scene.identity, scene.older = group, "by-cluster-id", {"replay": "by-address"}
    scene.run()
    scene.older = {}
    scene.run()
    assert scene.arrived() == expected
    scene.identity = "another"
    with pytest.raises(ClientError, match="has the progress of another replay"):
        scene.run()


def test_a_progress_file_of_another_target_is_refused(tmp_path: Path) -> None:
    of_values(tmp_path / "data", [b"a"])
    scene = Scene(tmp_path / "data", 1, 0.0, tmp_path / "progress")
    scene.run()
    scene.cluster.cluster_id = "another"
    with pytest.raises(ClientError, match=r"has the progress of another replay: .* or target differ"):
        scene.run()
