"""A controller with everything below it, and a broker that asks it, for tests: requests in, responses out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.file_cache import FileCache
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.protocol.apis import API_KEYS, BROKER_HEARTBEAT, BROKER_REGISTRATION, CREATE_TOPICS
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.config.loading import load_config
from kcli.server.controller.controller_server import ControllerServer
from kcli.server.controller.formatting import read_meta_properties
from kcli.server.events import Connection, Effect, Flush, Flushed
from kcli.server.features import supported_features
from kcli.server.log_lines import Loggers
from kcli.server.node_parts import NodeParts
from kcli.server.outstanding import Computations, Flushes
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.raft.raft_manager import KafkaRaftManager
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_image import MetadataImage
from tests.server.raft.nodes import START_MS, NoNetwork


class Broker:
    """Who follows the metadata as a broker does: its image, and the offset it has got to."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.metadata_offset = -1
        self.seen: list[Message] = []

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        self.image = MetadataImage()

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        for control in batch.control_records:
            self.image.apply_control(control)
        for record in batch.records:
            self.image.apply(record)
            self.seen.append(record)
        self.metadata_offset = batch.last_offset

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        pass


class ControllerNode:
    """ControllerServer on a directory; `ask` sends a request and waits for its answer, `run` lets time go by."""

    def __init__(self, directory: Path, *overrides: str, now_ms: int = START_MS, seed: int = 1, port: int = 19092) -> None:
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}"
        self.config = load_config(None, [f"log.dirs={directory}", f"listeners={listeners}", "node.id=1", *overrides])
        disk = OsDisk()
        meta = read_meta_properties(disk, str(directory))
        assert meta is not None and meta.cluster_id is not None
        self.meta = meta
        self.disk = disk
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.timer = Timer(now_ms)
        self.flushes = Flushes(self.effects)
        self.lines: list[str] = []
        self.storage_failures: list[OSError] = []
        self.flush_count = 0
        self.flush_faults: dict[tuple[str, ...], OSError] = {}  # once, by the paths to be flushed
        scheduler, loggers = Scheduler(self.timer, self.flushes.flush), Loggers(self.lines.append)
        parts = NodeParts(
            disk,
            FileCache(disk),
            random.Random(seed),
            self.timer,
            self.effects,
            self.flushes,
            Computations(self.effects),
            scheduler,
            cast(Peers, NoNetwork()),
            loggers,
        )
        self.quorum = KafkaRaftManager(
            self.config,
            meta.cluster_id,
            {str(directory): meta.directory_id},
            parts,
            lambda error, now_ms: self.storage_failures.append(error),
        )
        raft = self.quorum.client
        self.core = ControllerServer(self.config, meta.cluster_id, raft, parts)
        self.broker = Broker()
        raft.register(self.broker)
        self.broker_epoch = -1
        self.connection = Connection(1, "internal", "127.0.0.1", is_internal=True)

    def start(self) -> ControllerNode:
        self.core.begin()
        self.quorum.start(self.core.committed_image, self.now_ms)
        self.run()
        return self

    def run(self, for_ms: int = 0) -> None:
        """Let all flushes come back and what is due within `for_ms` happen."""
        until_ms = self.now_ms + for_ms
        while True:
            deadline_ms = self.timer.next_deadline_ms()
            if self.effects:
                effect = self.effects.pop(0)
                assert isinstance(effect, Flush)
                self.flush_count += 1
                error = self.flush_faults.pop(tuple(effect.paths), None)
                for path in effect.paths if error is None else ():
                    self.disk.flush(path)
                self.flushes.flushed(Flushed(effect.flush_id, error), self.now_ms)
            elif deadline_ms is not None and deadline_ms <= until_ms:
                self.now_ms = max(self.now_ms, deadline_ms)
                self.timer.advance(self.now_ms)
            else:
                self.now_ms = until_ms
                return

    def send(self, key: int, request: Message, version: int | None = None) -> list[bytes | None]:
        """Send a request -> the list that its answer will be put into."""
        api = API_KEYS[key]
        version = api.highest_version if version is None else version
        answers: list[bytes | None] = []
        frame = encode_request(7, api, version, "test", request)
        self.core.receive(self.connection, memoryview(frame)[4:], answers.append, self.now_ms)
        return answers

    def ask(self, key: int, request: Message, version: int | None = None) -> Any:
        """Send a request and let the disk work -> its response."""
        answers = self.send(key, request, version)
        self.run()
        assert len(answers) == 1
        answer = answers[0]
        assert answer is not None
        api = API_KEYS[key]
        version = api.highest_version if version is None else version
        correlation_id, position = read_response_header(answer[4:], api, version)
        assert correlation_id == 7
        response, end = api.response.decode(answer[4:], version, position)
        assert end == len(answer) - 4
        return response

    def register(self, broker_id: int = 1, incarnation: int = 1, **changes: object) -> Any:
        """Register a broker."""
        request = API_KEYS[BROKER_REGISTRATION].request
        classes = request.classes
        assert self.meta.directory_id is not None
        fields: dict[str, object] = {
            "broker_id": broker_id,
            "cluster_id": self.meta.cluster_id,
            "incarnation_id": Uuid(incarnation.to_bytes(16, "big")),
            "listeners": [classes["Listener"](name="PLAINTEXT", host="127.0.0.1", port=19092, security_protocol=0)],
            "features": [
                classes["Feature"](name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
                for name, levels in supported_features().items()
            ],
            "log_dirs": [self.meta.directory_id if broker_id == 1 else Uuid((1000 + broker_id).to_bytes(16, "big"))],
        }
        return self.ask(BROKER_REGISTRATION, request.new(**(fields | changes)))

    def beat(self, broker_id: int = 1, **changes: object) -> Any:
        """Send a heartbeat of a registered broker."""
        broker = self.core.state.image.brokers[broker_id]
        fields: dict[str, object] = {
            "broker_id": broker_id,
            "broker_epoch": broker.broker_epoch,
            "current_metadata_offset": self.broker.metadata_offset,
        }
        return self.ask(BROKER_HEARTBEAT, API_KEYS[BROKER_HEARTBEAT].request.new(**(fields | changes)))

    def start_with_broker(self) -> ControllerNode:
        """Start, and have broker 1 registered and unfenced."""
        self.start()
        assert self.register().error_code == 0
        assert not self.beat().is_fenced
        return self

    def create_topic(self, name: str, partitions: int = 1, replication_factor: int = 1, **configs: str) -> Any:
        """Create a topic -> its result."""
        request = API_KEYS[CREATE_TOPICS].request
        classes = request.classes
        topic = classes["CreatableTopic"](
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[
                classes["CreatableTopicConfig"](name=key.replace("_", "."), value=value) for key, value in configs.items()
            ],
        )
        return self.ask(CREATE_TOPICS, request.new(topics=[topic])).topics[0]

    def stop(self) -> None:
        stopped: list[int] = []
        self.quorum.stop(self.now_ms, stopped.append)
        assert stopped, "the only voter need not wait"
