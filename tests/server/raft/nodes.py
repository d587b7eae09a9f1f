"""A node for tests of the controller: a disk, a timer, and flushes that come back when the test says so."""

from __future__ import annotations

import random
from pathlib import Path

from kcli.format.kafka_uuid import random_uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.network.events import PeerAddress
from kcli.network.timing_wheel import Timer
from kcli.server.controller.formatting import METADATA_PARTITION, FormatPlan, format_directories, read_meta_properties
from kcli.server.features import initial_features
from kcli.server.outstanding import FlushCallback
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, RaftConfig
from kcli.server.raft.messages import ListenerEndpoint, ReplicaKey, SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.raft.replica import RaftCoreConfig
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import Voter

NODE_ID = 1
PORT = 19093
START_MS = 1_700_000_000_000


class Surroundings:
    """What the shell gives a core, in a test's hands: `run` makes all that is under way come back."""

    def __init__(self, now_ms: int = START_MS, disk: LogDisk | None = None) -> None:
        self.disk: LogDisk = OsDisk() if disk is None else disk
        self.files = FileCache(self.disk)
        self.timer = Timer(now_ms)
        self.now_ms = now_ms
        self.flushes: list[tuple[tuple[str, ...], FlushCallback]] = []
        self.flush_count = 0
        self.lines: list[str] = []
        self.storage_failures: list[OSError] = []
        self.scheduler = Scheduler(self.timer, self.flush)

    def flush(self, paths: tuple[str, ...], callback: FlushCallback) -> None:
        self.flushes.append((paths, callback))

    def finish_flush(self, error: OSError | None = None) -> None:
        paths, callback = self.flushes.pop(0)
        try:
            for path in paths if error is None else ():
                self.disk.flush(path)
        except OSError as failed:
            error = failed
        self.flush_count += 1
        callback(error, self.now_ms)

    def run(self, for_ms: int = 0) -> None:
        """Let all flushes come back and what is due within `for_ms` happen."""
        until_ms = self.now_ms + for_ms
        while True:
            deadline_ms = self.timer.next_deadline_ms()
            if self.flushes:
                self.finish_flush()
            elif deadline_ms is not None and deadline_ms <= until_ms:
                self.now_ms = max(self.now_ms, deadline_ms)
                self.timer.advance(self.now_ms)
            else:
                self.now_ms = until_ms
                return


class NoNetwork:
    """A network on which nothing is answered."""

    def send(self, destination: PeerAddress, *request: object) -> None:
        """Lose the request."""

    def is_backing_off(self, destination: PeerAddress, listener: str) -> bool:
        return False


class Follower:
    """A listener that keeps an image, and what it was told."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.batches: list[MetadataBatch] = []
        self.leaders: list[tuple[int, int]] = []

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        self.image = MetadataImage()

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        self.batches.append(batch)
        for record in batch.control_records:
            self.image.apply_control(record)
        for message in batch.records:
            self.image.apply(message)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        self.leaders.append((leader_id, epoch))


def formatted(directory: Path, seed: int = 1, disk: LogDisk | None = None, release: str | None = None) -> Path:
    """A directory that was formatted for one node with a dynamic quorum."""
    dice, disk = random.Random(seed), OsDisk() if disk is None else disk
    voter = Voter(NODE_ID, random_uuid(dice.randbytes), {"CONTROLLER": ("127.0.0.1", PORT)})
    features = initial_features({}, release, is_dynamic_quorum=True)
    plan = FormatPlan(None, NODE_ID, (str(directory),), str(directory), features, [voter])
    format_directories(disk, plan, dice.randbytes, START_MS)
    return directory


def raft_config(directory: Path, disk: LogDisk | None = None, **changes: object) -> RaftConfig:
    meta = read_meta_properties(disk or OsDisk(), str(directory))
    assert meta is not None and meta.directory_id is not None
    endpoints = (ListenerEndpoint("CONTROLLER", "127.0.0.1", PORT),)
    core = RaftCoreConfig(ReplicaKey(NODE_ID, meta.directory_id), meta.cluster_id or "", "CONTROLLER", endpoints)
    config = RaftConfig(f"{directory}/{METADATA_PARTITION}", core)
    log = changes.pop("log", config.log)
    return config._replace(core=core._replace(**changes), log=log)  # type: ignore[arg-type]


def started_raft(directory: Path, around: Surroundings, *listeners: Follower, **changes: object) -> KafkaRaftClient:
    config = raft_config(directory, around.disk, **changes)
    raft = raft_client(config, around)
    for listener in listeners:
        raft.register(listener)
    raft.start(around.now_ms)
    return raft


def stop(raft: KafkaRaftClient, around: Surroundings) -> None:
    """Stop a node, which must be done at once if it is the only voter."""
    stopped: list[int] = []
    raft.stop(stopped.append, around.now_ms)
    assert stopped


def voters_of(raft: KafkaRaftClient) -> dict[int, Voter]:
    """The voters by id, as an image has them."""
    voters = (Voter(*voter.key, {at.listener: (at.host, at.port) for at in voter.endpoints}) for voter in raft.voters)
    return {voter.voter_id: voter for voter in voters}


def raft_client(config: RaftConfig, around: Surroundings) -> KafkaRaftClient:
    return KafkaRaftClient(
        config,
        around.disk,
        around.files,
        around.timer,
        around.flush,
        around.scheduler,
        NoNetwork(),
        random.Random(1),
        around.lines.append,
        lambda error, now_ms: around.storage_failures.append(error),
    )
