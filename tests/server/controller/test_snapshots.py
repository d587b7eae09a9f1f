"""Protects snapshots: what is written while the metadata changes is the image of one moment; old ones and the log below go; a
disk that fails costs the snapshot alone; a node that starts from a snapshot and the log behind it has the same image.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS
from kcli.server.log_lines import WarningLine
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.snapshot_writer import SnapshotWriter
from kcli.simulator.disk import SimulatedDisk
from kcli.state.image_records import image_records, new_record
from kcli.state.metadata_image import MetadataImage
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import Surroundings, formatted, started_raft

BYTES = "metadata.log.max.record.bytes.between.snapshots"


def files(node: ControllerNode, suffix: str) -> list[str]:
    return sorted(path.name for path in Path(node.core.raft.log.directory).iterdir() if path.name.endswith(suffix))


def begin_snapshot(node: ControllerNode, snapshot: SnapshotId) -> None:
    """Begin a snapshot of what is committed now."""
    records = image_records(node.core.state.committed_image())
    node.quorum.snapshot_writer.begin(snapshot, node.now_ms, records, node.now_ms)


def state_of(image: MetadataImage) -> dict[str, Any]:
    """What an image knows, but for who leads and when its snapshot was taken: those change with a start."""
    volatile = ("_own_topics", "registration_offsets", "index", "leader_id", "snapshot_timestamp_ms", "controllers")
    return {name: value for name, value in vars(image).items() if name not in volatile}


def test_a_node_starts_from_its_snapshot(tmp_path: Path) -> None:
    """After so many bytes there is one; with the log behind it, it gives the same image, to the broker too."""
    directory = formatted(tmp_path / "data")
    node = ControllerNode(directory, f"{BYTES}=5000").start_with_broker()
    for index in range(12):
        node.create_topic(f"topic-{index}", 10, retention_ms="1000")
    written = node.core.raft.log.snapshots
    assert len(written) >= 2
    assert written[-1].end_offset < node.core.raft.next_offset
    expected = state_of(node.core.state.image)
    node.stop()
    again = ControllerNode(directory).start()
    assert again.core.raft.log.snapshots == written
    assert again.broker.image.snapshot_timestamp_ms is not None
    assert state_of(again.core.state.image) == expected
    assert state_of(again.broker.image) == expected
    assert again.core.state.image.registration_offsets.keys() == {1}
    again.stop()


def test_slices_see_one_moment(tmp_path: Path) -> None:
    """Topics that are made, grown and removed between two slices are not in the snapshot that began before them."""
    directory = formatted(tmp_path / "data")
    node = ControllerNode(directory).start_with_broker()
    for index in range(30):
        node.create_topic(f"topic-{index}", 20)
    expected = state_of(node.core.state.image.frozen())
    raft = node.core.raft
    snapshot = SnapshotId(raft.next_offset, raft.epoch)
    begin_snapshot(node, snapshot)
    create = API_KEYS[CREATE_TOPICS].request
    for step in range(3):
        topic = create.classes["CreatableTopic"](name=f"later-{step}", num_partitions=2, replication_factor=1)
        node.send(CREATE_TOPICS, create.new(topics=[topic]))
        node.timer.advance(node.now_ms)
    assert snapshot not in raft.log.snapshots, "it takes more slices than these"
    node.run()
    image = MetadataImage()
    for batch in raft.log.snapshot_batches(snapshot):
        for control in batch.control_records:
            image.apply_control(control)
        for record in batch.records:
            image.apply(record)
    assert state_of(image) == expected
    node.stop()


def test_old_snapshots_and_segments_go(tmp_path: Path) -> None:
    """Beyond the retention only the newest snapshot stays, and the log begins at it; files go a minute later."""
    node = ControllerNode(
        formatted(tmp_path / "data"),
        f"{BYTES}=5000",
        "metadata.max.retention.bytes=1000",
        "metadata.max.idle.interval.ms=0",
    ).start_with_broker()
    for index in range(10):
        node.create_topic(f"topic-{index}", 20)
    assert len(node.core.raft.log.snapshots) == 1
    assert files(node, ".deleted")
    assert node.core.raft.log.start_offset == node.core.raft.log.snapshots[0].end_offset
    node.run(130_000)
    assert not files(node, ".deleted")
    node.stop()


def test_a_damaged_old_snapshot_goes(tmp_path: Path) -> None:
    """Its age cannot be read, and no node can load it: the later ones replace it, a line says so, and the node goes on."""
    settings = (f"{BYTES}=2000", "metadata.max.idle.interval.ms=0")
    node = ControllerNode(formatted(tmp_path / "data"), *settings).start_with_broker()
    node.create_topic("orders", 40)
    node.create_topic("more", 40)
    log = node.core.raft.log
    damaged, *later = log.snapshots
    assert later
    Path(log.snapshot_path(damaged)).write_bytes(b"no snapshot" * 20)
    node.run(61_000)
    assert log.snapshots[0] == later[0] > damaged
    assert log.start_offset == later[0].end_offset
    (line,) = [line for line in node.lines if "damaged" in line]
    assert isinstance(line, WarningLine)
    assert line.startswith(f"{log.snapshot_path(damaged)}: ")
    node.run(120_000)
    assert node.core.raft.is_leader
    node.stop()


def test_an_idle_log_gets_a_snapshot_by_time(tmp_path: Path) -> None:
    """Once an hour, where anything was committed; NoOp records are."""
    node = ControllerNode(formatted(tmp_path / "data"), "metadata.log.max.snapshot.interval.ms=60000").start()
    node.run(59_000)
    assert len(files(node, ".checkpoint")) == 1
    node.run(2_000)
    assert len(files(node, ".checkpoint")) == 2
    node.stop()


def test_a_full_disk_costs_the_snapshot_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line says so, requests are served on, and the next one that is due is written."""
    node = ControllerNode(formatted(tmp_path / "data"), f"{BYTES}=3000").start_with_broker()
    append = node.disk.append

    def full(path: str, data: Any) -> None:
        if path.endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        append(path, data)

    monkeypatch.setattr(node.disk, "append", full)
    for index in range(4):
        assert node.create_topic(f"topic-{index}", 20).error_code == 0
    assert len(files(node, ".checkpoint")) == 1
    assert "cannot be written: No space left" in node.lines[0]
    monkeypatch.undo()
    for index in range(4):
        assert node.create_topic(f"more-{index}", 20).error_code == 0
    assert len(files(node, ".checkpoint")) > 1
    node.stop()


def test_a_snapshot_that_does_not_fit_gives_its_space_back() -> None:
    """What was written of it would keep the disk full, and no later snapshot has the same name."""
    disk = SimulatedDisk(random.Random(1))
    around = Surroundings(disk=disk)
    raft = started_raft(formatted(Path("/data"), disk=disk), around)
    around.run()
    writer = SnapshotWriter(raft, around.timer, around.scheduler, around.lines.append)
    before = disk.used_bytes()
    disk.capacity_bytes = before + 5000
    records = (new_record("TopicRecord", name=f"topic-{index}", topic_id=Uuid(bytes(16))) for index in range(2000))
    writer.begin(SnapshotId(raft.next_offset, raft.epoch), around.now_ms, records, around.now_ms)
    written = disk.used_bytes()
    around.run()
    assert written > before, "some of it was written"
    assert "the snapshot cannot be written: No space left" in around.lines[-1]
    assert (disk.used_bytes(), writer.is_writing, raft.is_leader) == (before, False, True)
    assert not [name for name in disk.list_directory(raft.log.directory) if name.endswith(".part")]


def test_a_name_that_the_device_may_not_have_ends_the_leadership(tmp_path: Path) -> None:
    """Nothing may be let go of for a snapshot whose name could be gone after a loss of power."""
    node = ControllerNode(formatted(tmp_path / "data"), f"{BYTES}=3000").start_with_broker()
    before = files(node, ".log") + files(node, ".checkpoint")
    node.flush_faults[node.core.raft.log.directory,] = OSError(errno.EIO, "Input/output error")
    for index in range(4):
        node.create_topic(f"topic-{index}", 20)
    node.run(600_000)
    assert not node.flush_faults and not node.core.raft.is_leader
    assert "the metadata log cannot be written: Input/output error" in node.lines[0]
    assert set(before) <= set(files(node, ".log") + files(node, ".checkpoint"))


def test_leftovers_of_an_interrupted_snapshot_go_at_start(tmp_path: Path) -> None:
    """A `.part` and a `.deleted` are removed; a log that lacks what the latest snapshot has begins behind it."""
    directory = formatted(tmp_path / "data")
    node = ControllerNode(directory, f"{BYTES}=2000").start_with_broker()
    node.create_topic("orders", 40)
    node.create_topic("more")
    expected = state_of(node.core.state.image)
    latest = node.core.raft.log.snapshots[-1]
    node.stop()
    metadata = directory / "__cluster_metadata-0"
    (metadata / "00000000000000000999-0000000001-123.checkpoint.part").write_bytes(b"half")
    (metadata / "00000000000000000001-0000000001.checkpoint.deleted").write_bytes(b"old")
    for path in [*metadata.glob("*.log"), *metadata.glob("*index"), *metadata.glob("*.snapshot")]:
        path.unlink()
    (metadata / "leader-epoch-checkpoint").unlink()
    again = ControllerNode(directory).start()
    assert not [name for name in files(again, "") if name.endswith((".part", ".deleted"))]
    assert again.core.raft.log.start_offset == latest.end_offset
    orders = again.core.state.image.topic("orders")
    assert orders is not None
    assert len(orders.partitions) == 40
    assert expected["features"] == again.core.state.image.features
    again.stop()
