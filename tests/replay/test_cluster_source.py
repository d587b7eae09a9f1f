"""Protects the reader of a cluster: what the source has deleted or lost is reported and counted, and no read waits forever."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.client.errors import ClientError
from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, read_header
from kcli.format.records import read_records
from kcli.protocol import error_codes
from kcli.replay.cluster_source import ClusterSource, ClusterStream
from kcli.replay.directory_source import Problems
from kcli.replay.source import CommittedOffset
from kcli.replay.steps import ReplayError
from kcli.selecting.selection import Selection
from tests.log_builder import PartitionBuilder
from tests.replay.fake_cluster import FakeCluster, FakeNetwork

WHERE = ("t", 0)


class Reader:
    """A source cluster with ten records of the topic t, each a batch or `batch_records` in one, and the reader."""

    def __init__(self, root: Path, join_bytes: int = 0, *, batch_records: int = 1, start: int = 0, codec: int = 0) -> None:
        self.cluster = FakeCluster(random.Random(1))
        self.cluster.create("t", 1)
        self.log = self.cluster.logs["t"][0]
        builder = PartitionBuilder(root / "t-0")
        for at in range(0, 10, batch_records):
            builder.append([(b"k", b"%d" % (at + slot)) for slot in range(batch_records)], codec=codec)
        builder.flush()
        self.log.load(builder.path(".log").read_bytes())
        self.log.start = start
        self.sentences: list[str] = []
        self.problems = Problems(self.sentences.append)
        self.network = FakeNetwork(self.cluster, random.Random(1))
        client = self.network.client()
        self.source = ClusterSource(client, Selection(read_committed=True), lambda topic: True, self.problems, join_bytes)
        ended: list[ClientError | None] = []
        self.source.discover(lambda result, now_ms: ended.append(result), 0)
        assert self.network.run(self.source.poll, lambda: bool(ended)) and ended == [None]

    def read(self, from_offset: int) -> ClusterStream:
        """Open the partition, and read it to its end."""
        stream = self.source.open(WHERE, from_offset, [])
        assert self.network.run(self.source.poll, lambda: stream.is_read or stream.failure is not None, 10_000)
        return stream


def offsets(stream: ClusterStream) -> list[int]:
    return [batch.first_offset for batch in stream.queue]


def test_records_deleted_between_runs_are_damage(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.log.delete_before(5)
    reader.source._starts[WHERE] = 5
    stream = reader.read(2)
    assert offsets(stream) == [5, 6, 7, 8, 9]
    assert (
        reader.sentences == ["t-0: the source has deleted the offsets 2 to 4; they are left out"]
        and reader.problems.damages == 1
    )


def test_records_deleted_during_the_run_are_damage(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.log.delete_before(5)
    stream = reader.read(0)
    assert offsets(stream) == [5, 6, 7, 8, 9]
    assert (
        reader.sentences == ["t-0: the source has deleted the offsets 0 to 4; they are left out"]
        and reader.problems.damages == 1
    )


@pytest.mark.parametrize("join_bytes", [0, 10_000])
@pytest.mark.parametrize("codec", [0, 4])
def test_records_that_delete_records_has_removed_inside_a_batch_are_not_sent(
    tmp_path: Path, codec: int, join_bytes: int
) -> None:
    """The answer to Fetch begins with the whole batch: its records below the log start offset were sent."""
    reader = Reader(tmp_path, join_bytes, batch_records=5, start=3, codec=codec)
    stream = reader.read(0)
    assert sent_values(stream) == [b"%d" % at for at in range(3, 10)] and not reader.problems.damages
    (again, *_), first = reader.read(0).queue, stream.queue[0]
    assert (first.first_offset, first.record_count, bytes(first.data)) == (3, again.record_count, bytes(again.data))


def test_records_that_delete_records_removes_during_the_run_are_not_sent(tmp_path: Path) -> None:
    reader = Reader(tmp_path, batch_records=5)
    reader.log.start = 7
    assert sent_values(reader.read(0)) == [b"7", b"8", b"9"]
    assert reader.sentences == ["t-0: the source has deleted the offsets 0 to 6; they are left out"]


def sent_values(stream: ClusterStream) -> list[bytes | None]:
    """The values of the batches that wait."""
    found = []
    for batch in stream.queue:
        header = read_header(batch.data)
        records = inflate(header.codec, bytes(batch.data[HEADER_BYTES:]), limit=1 << 20)
        found += [record.value for record in read_records(records, header.record_count)]
    return found


def test_what_was_deleted_before_the_first_run_is_not_damage(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.log.delete_before(5)
    reader.source._starts[WHERE] = 5
    assert offsets(reader.read(0)) == [5, 6, 7, 8, 9] and not reader.problems.damages


def test_a_source_that_is_truncated_does_not_hold_the_run(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.log.truncate(6)
    stream = reader.read(0)
    assert offsets(stream) == [0, 1, 2, 3, 4, 5] and stream.is_read and stream.is_cut
    (sentence,) = reader.sentences
    assert "t-0: the source ends at offset 6 now, and ended at 10 when the run began" in sentence
    assert reader.problems.damages == 1


@pytest.mark.parametrize("kept", [0, 10])
def test_a_topic_made_again_during_the_run_is_not_read(tmp_path: Path, kept: int) -> None:
    """Its records would follow those of the old topic in the target, as if they were its continuation."""
    reader = Reader(tmp_path)
    leader, batches = reader.cluster.leaders[WHERE], reader.log.batches
    reader.cluster.create("t", 1)
    reader.cluster.leaders[WHERE] = 3 - leader  # so that the reader asks for the leader, and gets the new id
    for batch in batches[:kept]:
        reader.cluster.logs["t"][0].append(batch)
    stream = reader.read(5)
    assert not stream.queue
    with pytest.raises(ReplayError, match="the topic 't' of the source was deleted and created again during the run"):
        stream.peek()


def test_offsets_without_records_at_the_end_do_not_hold_the_run(tmp_path: Path) -> None:
    """The log cleaner and a repair may leave an empty active segment: its first offset is the log end offset."""
    reader = Reader(tmp_path)
    reader.log.end += 50
    reader.source._ends[WHERE] = 60
    stream = reader.read(0)
    assert offsets(stream) == list(range(10)) and stream.is_read and not stream.is_cut
    assert not reader.problems.damages


def test_a_read_waits_while_the_source_throttles_it(tmp_path: Path) -> None:
    """A broker answers a client above its consumer_byte_rate at once, without any partition (KIP-219)."""
    reader = Reader(tmp_path)
    reader.cluster.throttles = [11_000] * 10
    start_ms = reader.network.now_ms
    stream = reader.read(0)
    assert stream.failure is None and offsets(stream) == list(range(10))
    assert reader.network.now_ms - start_ms >= 110_000


def test_a_last_stable_offset_that_went_back_does_not_hold_the_run(tmp_path: Path) -> None:
    """An unclean leader election lost the marker of a transaction; other records have come since then."""
    reader = Reader(tmp_path)
    reader.log.stable = 6
    stream = reader.read(0)
    assert offsets(stream) == [0, 1, 2, 3, 4, 5] and stream.is_read and stream.is_cut
    (sentence,) = reader.sentences
    assert "t-0: the source ends at offset 6 now, and ended at 10 when the run began" in sentence


def test_batches_are_joined(tmp_path: Path) -> None:
    assert len(Reader(tmp_path / "one", 10_000).read(0).queue) == 1


def test_a_broker_that_refuses_to_list_its_groups_is_reported(tmp_path: Path) -> None:
    """The offsets of its groups would be missing in the target without a word."""
    reader = Reader(tmp_path)
    reader.cluster.list_errors[2] = error_codes.CLUSTER_AUTHORIZATION_FAILED
    reader.cluster.offsets["g1", "t", 0] = 7, "m"
    found: list[list[CommittedOffset] | ClientError] = []
    reader.source.find_committed([])(lambda result, now_ms: found.append(result), 0)
    assert reader.network.run(reader.source.poll, lambda: bool(found))
    (sentence,) = reader.sentences
    assert sentence.startswith("broker 2 does not list its groups: CLUSTER_AUTHORIZATION_FAILED")
    assert found == [[CommittedOffset("g1", "t", 0, 7, "m")]]
