"""Protects which log is replayed if paths have several of one name: replicas, old copies, and topics of other clusters.

What is not chosen is not sent, so that a wrong choice loses records, settings or offsets without a message.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.metadata_files import MetaProperties, encode_meta_properties
from kcli.log.disk.os_disk import OsDisk
from kcli.protocol.internal_records import OFFSETS
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.source import NO_RUN, CommittedOffset, EarlierRun, OutgoingBatch, SourceError, SourceTopic
from kcli.selecting.selection import Selection
from kcli.server.coordinator.group.offset_manager import OffsetToCommit, offset_commit_record
from kcli.server.raft.metadata_batches import encode_data_batch, encode_metadata_record, new_record
from tests.log_builder import PartitionBuilder

A, B = "clusterAclusterAcluste", "clusterBclusterBcluste"
T, OTHER = Uuid(b"\1" * 16), Uuid(b"\2" * 16)


def log_dir(root: Path, cluster: str | None = A, node: int = 1) -> Path:
    """A log directory of a node."""
    root.mkdir()
    if cluster is not None:
        meta = encode_meta_properties(MetaProperties(1, cluster, node), date="Sat Nov 21 03:50:00 UTC 2026")
        (root / "meta.properties").write_bytes(meta)
    return root


def partition(root: Path, name: str, values: list[bytes], topic_id: Uuid | None = T, epoch: int = 0) -> PartitionBuilder:
    """A partition with a batch for each value."""
    builder = PartitionBuilder(root / name)
    builder.epoch = epoch
    for value in values:
        builder.append([(b"k", value)])
    builder.flush()
    if topic_id is not None:
        (root / name / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
    return builder


def metadata_log(root: Path, policies: list[str | None], *, epoch: int = 1, topic: str = "t", topic_id: Uuid = T) -> None:
    """A metadata log with the topic, and a record for each of its settings of cleanup.policy (None: the topic is deleted)."""
    records = [new_record("TopicRecord", name=topic, topic_id=topic_id)]
    for policy in policies:
        named = {"resource_type": 2, "resource_name": topic, "name": "cleanup.policy", "value": policy}
        records.append(new_record("ConfigRecord", **named) if policy else new_record("RemoveTopicRecord", topic_id=topic_id))
    (root / "__cluster_metadata-0").mkdir()
    data = encode_data_batch([encode_metadata_record(record) for record in records], 0, epoch, 0)
    (root / "__cluster_metadata-0" / f"{0:020}.log").write_bytes(data)


def source_of(*roots: Path, join_bytes: int = 0) -> DirectorySource:
    wants = lambda topic: not topic.startswith("__")  # noqa: E731
    problems = Problems(lambda sentence: None)
    return DirectorySource(OsDisk(), map(str, roots), Selection(), wants, problems, str, join_bytes)


def sent(source: DirectorySource, topic: str = "t") -> int:
    """The number of batches that are sent."""
    stream, count = source.open((topic, 0), 0, []), 0
    while stream.peek() is not None:
        stream.take()
        count += 1
    return count


@pytest.mark.parametrize(
    ("clusters", "ids", "sentence"),
    [
        (
            (A, B),
            (None, None),
            "one/meta.properties states cluster.id clusterA.*two/meta.properties states cluster.id clusterB",
        ),
        ((A, B), (T, OTHER), "one/t-0/partition.metadata has topic id .* for t, .*two/t-0/partition.metadata has"),
        ((A, A), (T, OTHER), "two topics named t; replay each log directory by itself, one of them with --map t=NEW"),
        ((None, None), (T, OTHER), "partition.metadata has topic id"),
    ],
)
def test_two_topics_of_one_name_are_refused(
    tmp_path: Path, clusters: tuple[str | None, str | None], ids: tuple[Uuid | None, Uuid | None], sentence: str
) -> None:
    """The longer log was sent, and the other one left out without a message."""
    for name, cluster, topic_id, count in zip(("one", "two"), clusters, ids, (10, 1), strict=True):
        partition(log_dir(tmp_path / name, cluster), "t-0", [b"v"] * count, topic_id)
    with pytest.raises(SourceError, match=sentence):
        source_of(tmp_path / "one", tmp_path / "two")


def test_topics_of_other_names_may_be_of_two_clusters(tmp_path: Path) -> None:
    """Each one gets the settings of its own cluster."""
    for name, cluster, topic, topic_id in (("one", A, "t", T), ("two", B, "u", OTHER)):
        root = log_dir(tmp_path / name, cluster)
        partition(root, f"{topic}-0", [b"v"], topic_id)
        metadata_log(root, [f"policy-{name}"], topic=topic, topic_id=topic_id)
    source = source_of(tmp_path / "one", tmp_path / "two")
    assert source.topics() == {
        "t": SourceTopic(1, {"cleanup.policy": "policy-one"}),
        "u": SourceTopic(1, {"cleanup.policy": "policy-two"}),
    }
    assert (source.topic_id("t"), source.topic_id("u")) == (T, OTHER)


def test_a_meta_properties_that_cannot_be_read_is_refused_if_it_decides(tmp_path: Path) -> None:
    for name, topic_id in (("one", None), ("two", None)):
        partition(log_dir(tmp_path / name), "t-0", [b"v"], topic_id)
    (tmp_path / "two" / "meta.properties").write_text("version=7\n")
    with pytest.raises(SourceError, match=r"two/meta.properties.*; so it is not known whether .* are of one cluster"):
        source_of(tmp_path / "one", tmp_path / "two")


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("one", "two"),
    [((0, 3), (0, 5)), ((0, 9), (1, 5))],
    ids=["the one that ends last", "the one of the newer epoch, after an unclean election"],
)
def test_the_newest_replica_is_replayed(tmp_path: Path, one: tuple[int, int], two: tuple[int, int], is_first: bool) -> None:
    for name, node, (epoch, count) in (("one", 1, one), ("two", 2, two)):
        partition(log_dir(tmp_path / name, A, node), "t-0", [b"v"] * count, epoch=epoch)
    paths = [tmp_path / "one", tmp_path / "two"]
    assert sent(source_of(*(paths if is_first else reversed(paths)))) == two[1]


@pytest.mark.parametrize("join_bytes", [0, 10_000])
@pytest.mark.parametrize("damaged", [[(0, 4)], [(0, 0)], [(0, 3), (1, 6)], [(0, 5), (0, 6), (1, 2)]], ids=str)
def test_what_is_damaged_in_one_replica_is_read_from_another(
    tmp_path: Path, damaged: list[tuple[int, int]], join_bytes: int
) -> None:
    """One replica was sent, without the batches that are damaged there, though another one has them."""
    paths = []
    for node in range(2):
        root = log_dir(tmp_path / str(node), A, node)
        builder = partition(root, "t-0", [])
        for at in range(10):
            builder.append([(b"k", b"%d" % at)] * 3)
            if at == 5:
                builder.roll()
        builder.flush()
        paths.append(root)
    for node, batch in damaged:
        flip(paths[node] / "t-0", batch)
    sentences: list[str] = []
    problems = Problems(sentences.append)
    source = DirectorySource(OsDisk(), map(str, paths), Selection(), lambda topic: True, problems, str, join_bytes)
    whole = [batch.data for batch in batches_of(source_of(paths[1], join_bytes=join_bytes))] if damaged == [(0, 4)] else None
    batches = batches_of(source)
    assert [offset for one in batches for offset in range(one.first_offset, one.next_offset)] == list(range(30))
    assert whole is None or [batch.data for batch in batches] == whole
    assert not problems.damages and len(sentences) == sum(node == 0 for node, _ in damaged)
    assert all("; its records were read from" in sentence for sentence in sentences)
    for at, batch in enumerate(batches):  # a run that goes on makes the same batches, in which nothing is damaged any more
        rest = batches_of(source, EarlierRun(batch.first_offset))
        assert [one.data for one in rest] == [one.data for one in batches[at:]]
    assert not problems.damages


def test_what_is_damaged_in_all_replicas_is_left_out(tmp_path: Path) -> None:
    for node in range(2):
        partition(log_dir(tmp_path / str(node), A, node), "t-0", [b"v"] * 9)
        flip(tmp_path / str(node) / "t-0", 4)
    sentences: list[str] = []
    problems = Problems(sentences.append)
    paths = [str(tmp_path / str(node)) for node in range(2)]
    source = DirectorySource(OsDisk(), paths, Selection(), lambda topic: True, problems)
    assert [batch.first_offset for batch in batches_of(source)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert problems.damages == 1 and sentences[0].endswith("; left out")


def flip(partition: Path, batch: int) -> None:
    """Flip a bit in the last byte of a batch."""
    for path in sorted(partition.glob("*.log")):
        data = bytearray(path.read_bytes())
        position = 0
        while position < len(data):
            position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if batch == 0:
                data[position - 1] ^= 1
                path.write_bytes(data)
                return
            batch -= 1


def batches_of(source: DirectorySource, earlier: EarlierRun = NO_RUN) -> list[OutgoingBatch]:
    stream = source.open(("t", 0), earlier.last_offset or 0, [], earlier)
    found = []
    while (batch := stream.peek()) is not None:
        stream.take()
        found.append(batch)
    return found


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("old", "new", "old_epoch"), [(["delete"], ["delete", "compact"], 1), (["a", "b", "delete"], ["compact"], 0)]
)
def test_the_newest_metadata_log_has_the_settings(
    tmp_path: Path, old: list[str | None], new: list[str | None], old_epoch: int, is_first: bool
) -> None:
    """By leader epoch and end offset, whichever directory was named first; the topic was created with old settings."""
    for name, node in (("one", 1), ("two", 2)):
        partition(log_dir(tmp_path / name, A, node), "t-0", [b"v"])
    metadata_log(tmp_path / "one", old, epoch=old_epoch)
    metadata_log(tmp_path / "two", new, epoch=1)
    paths = [tmp_path / "one", tmp_path / "two"]
    source = source_of(*(paths if is_first else reversed(paths)))
    assert source.topics()["t"].configs == {"cleanup.policy": "compact"}


def test_a_metadata_log_that_does_not_have_the_topic_is_not_used(tmp_path: Path) -> None:
    """The newest one has deleted the topic since, or has another one of its name: the older copy knows it."""
    for name, node in (("one", 1), ("two", 2), ("three", 3)):
        partition(log_dir(tmp_path / name, A, node), "t-0", [b"v"])
    metadata_log(tmp_path / "one", ["compact"])
    metadata_log(tmp_path / "two", ["delete", None])
    metadata_log(tmp_path / "three", ["a", "b", "other"], topic_id=OTHER)
    roots = [tmp_path / name for name in ("one", "two", "three")]
    assert source_of(*roots).topics()["t"].configs == {"cleanup.policy": "compact"}
    assert not source_of(tmp_path / "three").topics()["t"].is_known
    assert source_of(tmp_path / "three").topic_id("t") == T


def commits(root: Path, offsets: dict[str, int | None], name: str = "__consumer_offsets-0") -> None:
    """A partition of __consumer_offsets with commits of groups for t-0, and tombstones (None)."""
    builder = PartitionBuilder(root / name)
    for group, offset in offsets.items():
        record = offset_commit_record(group, OffsetToCommit("t", ZERO_UUID, 0, offset or 0, -1, None), 1000, -1, -1)
        key, value = OFFSETS.encode(record.key, record.value)
        builder.append([(key, value)])
        if offset is None:
            builder.append([(key, None)])
    builder.flush()


@pytest.mark.parametrize("is_first", [True, False])
def test_deleted_groups_are_not_committed_again(tmp_path: Path, is_first: bool) -> None:
    """An older replica of __consumer_offsets still has them; so has one after whose end they were deleted."""
    for name, node in (("one", 1), ("two", 2)):
        partition(log_dir(tmp_path / name, A, node), "t-0", [b"v"] * 5)
    commits(tmp_path / "one", {"gone": 2, "kept": 3})
    commits(tmp_path / "two", {"gone": None, "kept": 3})
    commits(tmp_path / "one", {"another": 1}, "__consumer_offsets-1")
    paths = [tmp_path / "one", tmp_path / "two"]
    found = source_of(*(paths if is_first else reversed(paths))).committed_offsets()
    assert found == [CommittedOffset("another", "t", 0, 1, ""), CommittedOffset("kept", "t", 0, 3, "")]


def test_groups_of_two_clusters_are_refused(tmp_path: Path) -> None:
    for name, cluster, topic in (("one", A, "t"), ("two", B, "u")):
        partition(log_dir(tmp_path / name, cluster), f"{topic}-0", [b"v"], None)
        commits(tmp_path / name, {"g": 1})
    with pytest.raises(
        SourceError, match="two topics named __consumer_offsets; replay each log directory by itself, or leave out --groups"
    ):
        source_of(tmp_path / "one", tmp_path / "two").committed_offsets()


@pytest.mark.parametrize("seed", range(30))
def test_the_newest_of_drawn_metadata_logs(tmp_path: Path, seed: int) -> None:
    """Copies that are older, that end with what an old leader did not commit, or that have a damaged batch or zeros."""
    rng = random.Random(seed)
    history, epoch = [], 1
    for at in range(rng.randrange(2, 9)):
        epoch += rng.random() < 0.3
        history.append((epoch, f"policy-{at}"))
    ends: list[tuple[int, int, str]] = []
    for node in range(rng.randrange(2, 5)):
        root = log_dir(tmp_path / str(node), A, node)
        partition(root, "t-0", [b"v"])
        metadata_log(root, [])
        kept = history[: rng.randrange(1, len(history) + 1)]
        if kept[-1][0] < epoch and rng.random() < 0.4:
            kept += [(kept[-1][0], f"not committed by {node}")] * rng.randrange(1, 9)
        path = root / "__cluster_metadata-0" / f"{0:020}.log"
        data, damaged = path.read_bytes(), rng.choice((-1, -1, rng.randrange(len(kept))))
        for at, (of_epoch, policy) in enumerate(kept):
            named = {"resource_type": 2, "resource_name": "t", "name": "cleanup.policy", "value": policy}
            batch = bytearray(
                encode_data_batch([encode_metadata_record(new_record("ConfigRecord", **named))], 1 + at, of_epoch, 0)
            )
            batch[-1] ^= at == damaged
            data += batch
        path.write_bytes(data + bytes(rng.choice((0, 0, 40))))
        ends.append(
            max([(of_epoch, at, policy) for at, (of_epoch, policy) in enumerate(kept) if at != damaged], default=(0, 0, ""))
        )
    roots = [tmp_path / str(node) for node in range(len(ends))]
    rng.shuffle(roots)
    wanted = {policy for of_epoch, at, policy in ends if (of_epoch, at) == max(ends)[:2]}
    assert source_of(*roots).topics()["t"].configs.get("cleanup.policy", "") in wanted, ends


@pytest.mark.parametrize(("field", "bit"), [(7, 64), (7, 128), (5, 1), (4, 1), (15, 4)])
def test_one_wrong_bit_makes_no_replica_the_newest(tmp_path: Path, field: int, bit: int) -> None:
    """No CRC covers the offset and the leader epoch of the shorter log's last batch; half of the records were missing."""
    for name, count in (("long", 20), ("short", 10)):
        builder = partition(log_dir(tmp_path / name), "t-0", [b"v"] * count)
        (builder.directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    last = int.from_bytes(builder.path(".index").read_bytes()[-4:], "big")
    data = bytearray(builder.log)
    data[last + field] ^= bit
    builder.path(".log").write_bytes(data)
    told: list[str] = []
    wants = lambda topic: True  # noqa: E731
    roots = [str(tmp_path / name) for name in ("short", "long")]
    source = DirectorySource(OsDisk(), roots, Selection(), wants, Problems(told.append), str, 0)
    assert sent(source) == 20
    assert len(told) == 1 and told[0].startswith(f"{builder.path('.log')}: byte {last}: the batch states ")


def test_a_leader_epoch_with_a_witness_makes_a_log_the_newest(tmp_path: Path) -> None:
    """The checkpoint or a second batch has the epoch, or no checkpoint contradicts it: the shorter log is newer."""
    for number, (epochs, batches) in enumerate((("0\n2\n0 0\n9 4\n", 1), ("0\n1\n0 0\n", 2), (None, 1))):
        root = tmp_path / str(number)
        root.mkdir()
        partition(log_dir(root / "long"), "t-0", [b"v"] * 20)
        builder = PartitionBuilder(log_dir(root / "short") / "t-0")
        for at in range(10):
            builder.epoch = 4 if at >= 10 - batches else 0
            builder.append([(b"k", b"v")])
        builder.flush()
        if epochs is not None:
            (builder.directory / "leader-epoch-checkpoint").write_text(epochs)
        assert sent(source_of(root / "long", root / "short")) == 10
