"""Protects "what arrives is what dump-log shows": random logs, options and kills, from directories and from a cluster.

A log has what a broker and its cleaner leave: transactions, delete horizons, gaps, LogAppendTime, all codecs, deleted
records; in a directory also messages of format 1, and old replicas. It grows between runs, and runs are killed at any event. A
seed that fails is run again by its number.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kcli.client.errors import ClientError
from kcli.format.primitives import TopicPartition
from kcli.format.records import Header
from kcli.log.disk.os_disk import OsDisk
from kcli.replay.cluster_source import ClusterSource, ClusterStream
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.group_offsets import GroupProgress
from kcli.replay.preparation import Preparation, ReplayOptions
from kcli.replay.replayer import Replayer
from kcli.replay.source import NO_RUN, EarlierRun
from kcli.selecting.selection import Selection, parse_selection
from tests.log_builder import BASE_TIMESTAMP, PartitionBuilder
from tests.message_sets import NewLegacyRecord, encode_message_set
from tests.replay.delivered import Records, delivered
from tests.replay.fake_cluster import FakeCluster, FakeNetwork

PRODUCERS = (7, 8)
MOST_KILLS = 6
DAY_MS = 86_400_000


class RandomLog:
    """A partition that grows at random."""

    def __init__(self, rng: random.Random, directory: Path, *, has_legacy: bool) -> None:
        self.rng = rng
        self.builder = PartitionBuilder(directory, first_offset=rng.choice((0, 0, 5)))
        self.aborted: list[tuple[int, int, int]] = []
        self._has_legacy = has_legacy
        self._first_of: dict[int, int] = {}

    def grow(self, batches: int) -> None:
        """Append some batches."""
        if self._has_legacy:  # formats never go back
            for _ in range(self.rng.randrange(6)):
                self._legacy_set()
            self._has_legacy = False
        for _ in range(batches):
            self._step()
        self.builder.flush()

    def _step(self) -> None:
        rng, builder = self.rng, self.builder
        kind = rng.random()
        if kind < 0.5:
            builder.append(self._records(), codec=rng.choice((0, 0, 0, 1, 2, 3, 4)), headers=self._headers())
        elif kind < 0.7:
            producer = rng.choice(PRODUCERS)
            at = builder.append(self._records(), producer=producer, transactional=True, codec=rng.choice((0, 4)))
            self._first_of.setdefault(producer, at)
        elif kind < 0.8 and self._first_of:
            producer = rng.choice(sorted(self._first_of))
            is_committed = rng.random() < 0.5
            at = builder.end_transaction(producer, commit=is_committed)
            first = self._first_of.pop(producer)
            if not is_committed:
                self.aborted.append((producer, first, at))
        elif kind < 0.84:
            builder.append(self._records(), append_time=True, timestamp=BASE_TIMESTAMP + rng.randrange(5000))
        elif kind < 0.88:
            builder.append([(b"k1", None)], horizon=BASE_TIMESTAMP + 400 * DAY_MS, codec=rng.choice((0, 4)))
        elif kind < 0.93:
            builder.offset += rng.randrange(1, 9)  # a cleaner has removed the batches there
        elif kind < 0.97:
            builder.roll()
        else:
            builder.append([(None, bytes(rng.randrange(3000)))])

    def _records(self) -> list[tuple[bytes | None, bytes | None]]:
        rng = self.rng
        return [
            (rng.choice((None, b"k1", b"k2", b"k3")), rng.choice((None, b"", rng.randbytes(rng.randrange(40)))))
            for _ in range(rng.randrange(1, 6))
        ]

    def _headers(self) -> tuple[Header, ...]:
        return (Header(b"h", self.rng.choice((None, b"1"))),) if self.rng.random() < 0.2 else ()

    def _legacy_set(self) -> None:
        rng, builder = self.rng, self.builder
        records = []
        for key, value in self._records():
            records.append(NewLegacyRecord(builder.offset, BASE_TIMESTAMP + rng.randrange(99), key, value))
            builder.offset += rng.choice((1, 1, 3))
        builder.log += encode_message_set(records, magic=1, codec=rng.choice((0, 0, 1, 2, 3)))

    @property
    def stable(self) -> int | None:
        """The last stable offset while a transaction is open."""
        return min(self._first_of.values(), default=None)


class EagerSource(ClusterSource):
    """A source cluster on a network of its own: a partition is read to its end when it is opened."""

    network_of_source: FakeNetwork

    def open(
        self, partition: TopicPartition, from_offset: int, watched: list[int], earlier: EarlierRun = NO_RUN
    ) -> ClusterStream:
        stream = super().open(partition, from_offset, watched, earlier)
        assert self.network_of_source.run(self.poll, lambda: stream.is_read or stream.failure is not None)
        return stream


class Model:
    """A random source of the topic `t`, and its replay."""

    def __init__(self, seed: int, root: Path, *, is_cluster: bool) -> None:
        self.rng = random.Random(seed)
        self.root = root
        self.is_cluster = is_cluster
        self.words = self._draw_options()
        self.join_bytes = self.rng.choice((0, 100, 700, 100_000))
        self.target = FakeCluster(self.rng)
        self.network = FakeNetwork(self.target, self.rng, self.rng.choice((0.0, 0.1)))
        self.logs = [
            RandomLog(self.rng, root / "one" / f"t-{number}", has_legacy=not is_cluster and self.rng.random() < 0.3)
            for number in range(self.rng.randrange(1, 3))
        ]
        if (
            not is_cluster and len(self.logs) == 1 and self.rng.random() < 0.2
        ):  # what is left for others depends on the first one
            self.words["limit"] = str(self.rng.randrange(1, 40))
        self.paths = [root / "one"]
        self.starts = [0] * len(self.logs)

    def _draw_options(self) -> dict[str, str]:
        rng = self.rng
        words = {"isolation": rng.choice(("read_committed", "read_committed", "read_uncommitted"))}
        if rng.random() < 0.2:
            words["offset"] = f"{rng.randrange(30)}..{rng.choice(('', 40, 60))}"
        elif rng.random() < 0.2:
            words["key"] = "k1"
        elif rng.random() < 0.1:
            words["time"] = f"{BASE_TIMESTAMP + 100}..{BASE_TIMESTAMP + 500}"
        return words

    @property
    def selection(self) -> Selection:
        words = dict(self.words)
        keys = [words.pop("key")] if "key" in words else []
        return parse_selection(**words, keys=keys)  # type: ignore[arg-type]

    def copy_replica(self) -> None:
        """Keep the present state as another node's directory, which is named first."""
        shutil.copytree(self.root / "one", self.root / "old")
        self.paths.insert(0, self.root / "old")

    def delete_records(self) -> None:
        """DeleteRecords at any offset, also inside a batch; a directory keeps what the segment has."""
        self.starts = [self.rng.randrange(log.builder.rows[0].offset, log.builder.offset + 1) for log in self.logs]

    def _source(self, problems: Problems) -> DirectorySource | EagerSource:
        if not self.is_cluster:
            paths = map(str, self.paths)
            return DirectorySource(OsDisk(), paths, self.selection, lambda topic: True, problems, str, self.join_bytes)
        cluster = FakeCluster(self.rng)
        cluster.most_fetched = self.rng.choice((None, 1, 3))
        cluster.cluster_id = "source"
        cluster.create("t", len(self.logs))
        for log, fake, start in zip(self.logs, cluster.logs["t"], self.starts, strict=True):
            for path in sorted(log.builder.directory.glob("*.log")):
                fake.load(path.read_bytes())
            fake.end = log.builder.offset
            fake.start, fake.stable, fake.aborted = max(start, log.builder.rows[0].offset), log.stable, log.aborted
        network = FakeNetwork(cluster, self.rng)
        source = EagerSource(network.client(), self.selection, lambda topic: True, problems, self.join_bytes)
        source.network_of_source = network
        found: list[ClientError | None] = []
        source.discover(lambda result, now_ms: found.append(result), 0)
        assert network.run(source.poll, lambda: bool(found)) and found == [None]
        return source

    def run(self, most_events: int = 1_000_000) -> bool:
        """Run -> whether the run came to its end before it was killed."""
        client = self.network.client()
        source = self._source(Problems(lambda sentence: None))
        store = GroupProgress(client, "replay", "model")
        prepare = Preparation(client, source, store, {"t": "t"}, ReplayOptions(), {}, lambda note: None).steps
        ended: list[ClientError | None] = []
        replayer = Replayer(client, source, store, prepare)
        replayer.run(lambda result, now_ms: ended.append(result), self.network.now_ms)
        is_over = self.network.run(replayer.poll, lambda: bool(ended), most_events)
        if is_over and ended[0] is not None:
            raise ended[0]
        return is_over

    def run_killed(self) -> None:
        """Run, and be killed at some event, several times; then to the end."""
        for _ in range(self.rng.randrange(MOST_KILLS)):
            if self.run(self.rng.randrange(5, 150)):
                break
        self.run()

    def expected(self) -> Records:
        # dump-log shows control records, which count for its limit; replay sends none.
        applied = {"limit", "offset"} if self.is_cluster else {"limit"}
        words = {name: value for name, value in self.words.items() if name not in applied}
        options = [word for name, value in words.items() for word in (f"--{name}", value)]
        if not self.is_cluster:
            most = int(self.words.get("limit", 10**9))
            return {key: rows[:most] for key, rows in delivered(self.root / "one", options=tuple(options)).items()}
        shown: Records = {}
        for number, log in enumerate(self.logs):
            first, last = ([*map(int, filter(None, self.words.get("offset", "0..").split(".."))), 10**9])[:2]
            first = max(first, self.starts[number])
            if first < last:
                shown |= delivered(log.builder.directory, options=(*options, "--offset", f"{first}..{last}"))
        return shown

    def arrived(self) -> Records:
        directory = self.root / "target"
        for number, log in enumerate(self.target.logs.get("t", ())):
            path = directory / f"t-{number}"
            path.mkdir(parents=True)
            (path / f"{0:020}.log").write_bytes(b"".join(log.batches))
        found = delivered(directory, options=("--isolation", "read_uncommitted"))
        return {where: rows for where, rows in found.items() if rows}


def check(seed: int, root: Path, *, is_cluster: bool) -> None:
    """Replay a random source in several runs, and compare."""
    model = Model(seed, root, is_cluster=is_cluster)
    rng = model.rng
    for phase in range(rng.randrange(1, 4)):
        for log in model.logs:
            log.grow(rng.randrange(2, 25))
        if phase == 0 and is_cluster and rng.random() < 0.4:
            model.delete_records()
        if phase == 1 and not is_cluster and rng.random() < 0.5 and len(model.paths) == 1:
            model.copy_replica()
            for log in model.logs:  # so that the old replica is the shorter one
                log.builder.append([(b"k1", b"newer")])
                log.builder.flush()
        model.run_killed()
    assert model.run()
    assert model.arrived() == model.expected(), f"seed {seed}: {model.words}, join {model.join_bytes}"


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["directories", "cluster"])
@pytest.mark.parametrize("seed", range(8))
def test_what_arrives_is_what_dump_log_shows(tmp_path: Path, seed: int, kind: str) -> None:
    check(seed, tmp_path, is_cluster=kind == "cluster")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["directories", "cluster"])
@pytest.mark.parametrize("seed", range(100, 400))
def test_more_seeds(tmp_path: Path, seed: int, kind: str) -> None:
    check(seed, tmp_path, is_cluster=kind == "cluster")
