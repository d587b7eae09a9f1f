"""A broker of 200 lines behind the seam of a node: one file a partition, metadata as JSON. It is right, and easily made wrong:
what the simulator finds in broken children of it shows that it can find something."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import crc32c
from kcli.format.record_batch import CRC_START, LOG_APPEND_TIME_FLAG, RecordBatch, read_header
from kcli.log.wall_time import WallTime
from kcli.protocol import apis, error_codes
from kcli.protocol.framing import encode_response_parts, read_request_header
from kcli.protocol.message import Message
from kcli.server.events import (
    Connection,
    ConnectionClosed,
    Effect,
    Event,
    FileRegion,
    Flush,
    Flushed,
    NoResponse,
    RequestReceived,
    SendFile,
)
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.sent_records import placed_records, whole_batches

DATA = "/data"
META = f"{DATA}/meta.json"
LOG = "00000000000000000000.log"


class SmallLog:
    """One partition: one file, its batches' places, what each producer did last."""

    def __init__(self, disk: SimulatedDisk, path: str, configs: dict[str, str]) -> None:
        self.configs = configs
        self.path = f"{path}/{LOG}"
        disk.make_directory(path)
        self.file = disk.open_log_file(self.path, create=True)
        # Of one that is there, too: it may have died before it came to this.
        for directory in ("", DATA, path):
            disk.flush_directory(directory)
        self.start = self.end = self.size = 0
        self.batches: list[RecordBatch] = []
        self.producers: dict[int, deque[RecordBatch]] = {}
        for batch in whole_batches(self.file.read_at(0, 1 << 30)):
            if batch.base_offset != self.end:
                break
            self.note(batch)
        self.recover()

    def recover(self) -> None:
        """Cut what is torn."""
        if self.file.size() != self.size:
            self.file.truncate(self.size)

    def note(self, batch: RecordBatch) -> None:
        """Append a batch."""
        self.batches.append(batch)
        self.end, self.size = batch.next_offset, batch.end_position
        if batch.producer_id >= 0:
            self.producers.setdefault(batch.producer_id, deque(maxlen=5)).append(batch)

    def append(self, data: memoryview, now_ms: int) -> tuple[int, int]:
        """Append a batch -> (error code, first offset)."""
        batch = read_header(data)
        if batch.producer_id >= 0:
            before = self.producers.get(batch.producer_id)
            if before:
                for known in before:
                    if (known.base_sequence, known.last_offset_delta) == (batch.base_sequence, batch.last_offset_delta):
                        return 0, known.base_offset
                if batch.base_sequence != before[-1].last_sequence + 1:
                    return error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        patched = bytearray(data)
        patched[:8] = self.end.to_bytes(8, "big")
        patched[12:16] = bytes(4)
        if "message.timestamp.type" in self.configs:
            patched[CRC_START : CRC_START + 2] = (batch.attributes | LOG_APPEND_TIME_FLAG).to_bytes(2, "big")
            patched[35:43] = now_ms.to_bytes(8, "big")
            patched[CRC_START - 4 : CRC_START] = crc32c(memoryview(patched)[CRC_START:]).to_bytes(4, "big")
        first = self.end
        self.write(patched)
        self.note(read_header(patched, 0, self.size))
        return 0, first

    def write(self, data: bytearray) -> None:
        """To the file."""
        self.file.append([data])

    def offset_at(self, timestamp: int) -> int:
        """Of the first record at or behind a time, -1 for none."""
        data = self.file.read_at(0, self.size)
        found = (
            offset
            for batch in self.batches
            for offset, record in placed_records(data, batch)
            if record.timestamp >= timestamp and offset >= self.start
        )
        return next(found, -1)

    def region(self, offset: int) -> FileRegion | bytes:
        """All from the batch with an offset on."""
        position = next((batch.position for batch in self.batches if batch.next_offset > offset), self.size)
        return FileRegion(self.file, position, self.size - position) if position < self.size else b""


class SmallNode:
    """See the head of this module."""

    log_class = SmallLog

    def __init__(self, disk: SimulatedDisk, rng: Random, now_ms: int, log: Callable[[str], None], wall: WallTime) -> None:
        self.wall = wall
        self.node_id = 1
        self.is_ready = self.is_stopped = False
        self.disk = disk
        self.rng = rng
        self.effects: list[Effect] = []
        self.flushes: dict[int, Callable[[], None]] = {}
        self.meta: dict[str, Any] = {"next_producer_id": 0, "topics": {}}
        self.logs: dict[tuple[str, int], SmallLog] = {}
        log("a small node")

    def start(self, now_ms: int) -> list[Effect]:
        """Read the metadata and open the logs."""
        self.disk.make_directory(DATA)
        if self.disk.exists(META):
            self.meta = json.loads(self.disk.read_file(META, 1 << 20))
        self.open_logs()
        self.is_ready = True
        return []

    def is_open(self, listener: str) -> bool:
        """Every listener opens at the start."""
        return self.is_ready

    def open_logs(self) -> None:
        """Of all partitions that have none yet."""
        for name, topic in self.meta["topics"].items():
            for index in range(topic["partitions"]):
                if (name, index) not in self.logs:
                    self.logs[name, index] = self.log_class(self.disk, f"{DATA}/{name}-{index}", topic["configs"])

    def stop(self, now_ms: int) -> list[Effect]:
        """Flush and end."""
        for log in self.logs.values():
            log.file.flush()
        self.is_stopped = True
        return []

    def next_deadline_ms(self) -> int | None:
        """None: it does nothing by itself."""
        return None

    def save(self) -> None:
        """Write the metadata."""
        self.disk.write_file(META, json.dumps(self.meta).encode())
        self.disk.flush_directory("/")
        self.open_logs()

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event."""
        if isinstance(event, RequestReceived):
            key, version, correlation_id, _, position = read_request_header(event.frame)
            api = apis.API_KEYS[key]
            request, _ = api.request.decode(event.frame, version, position)
            self.now_ms = self.wall.at(now_ms)

            def respond(response: Message | None) -> None:
                if response is None:
                    self.effects.append(NoResponse(event.connection))
                else:
                    parts = encode_response_parts(correlation_id, api, version, response)
                    self.effects.append(SendFile(event.connection, parts))

            try:
                self.serve(api, request, event.connection, respond)
            except OSError:
                self.is_stopped = True
        elif isinstance(event, Flushed):
            done = self.flushes.pop(event.flush_id)
            if event.error is None or isinstance(event.error, FileNotFoundError):
                done()  # or its topic was deleted meanwhile
            else:
                self.is_stopped = True
        else:
            assert isinstance(event, ConnectionClosed)
        effects, self.effects = self.effects, []
        return effects

    def serve(self, api: apis.Api, request: Message, connection: Connection, respond: Callable[[Message | None], None]) -> None:
        """Answer a request."""
        if api.key == apis.PRODUCE:
            self.produce(api, request, respond)
            return
        respond(getattr(self, f"on_{api.name.lower()}")(api, request))

    def topic(self, name: str, topic_id: bytes) -> tuple[str, dict[str, Any] | None]:
        """A topic by its name or id."""
        for known, topic in self.meta["topics"].items():
            if known == name or (not name and topic["id"] == bytes(topic_id).hex()):
                return known, topic
        return name, None

    def produce(self, api: apis.Api, request: Message, respond: Callable[[Message | None], None]) -> None:
        """Append, flush where asked, answer."""
        make = api.response.classes
        paths, topics = [], []
        for asked in request.topic_data:
            name, topic = self.topic(asked.name, asked.topic_id)
            answers = []
            for part in asked.partition_data:
                code, offset = error_codes.UNKNOWN_TOPIC_OR_PARTITION, -1
                if topic is not None and part.index < topic["partitions"]:
                    log = self.logs[name, part.index]
                    code, offset = log.append(memoryview(part.records), self.now_ms)
                    if topic["configs"].get("flush.messages") == "1":
                        paths.append(log.path)
                answers.append(make["PartitionProduceResponse"](index=part.index, error_code=code, base_offset=offset))
            topics.append(make["TopicProduceResponse"](name=asked.name, topic_id=asked.topic_id, partition_responses=answers))
        response = None if request.acks == 0 else api.response.new(responses=topics)
        if paths:
            self.flush(paths, lambda: respond(response))
        else:
            respond(response)

    def flush(self, paths: list[str], done: Callable[[], None]) -> None:
        """Have files flushed, then go on."""
        number = self.rng.getrandbits(60)
        self.flushes[number] = done
        self.effects.append(Flush(number, tuple(paths)))

    def on_fetch(self, api: apis.Api, request: Message) -> Message:
        make = api.response.classes
        topics = []
        for asked in request.topics:
            name, topic = self.topic(asked.topic, asked.topic_id)
            answers = []
            for part in asked.partitions:
                log = self.logs.get((name, part.partition)) if topic else None
                fields: dict[str, Any] = {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION, "high_watermark": -1}
                if log is not None:
                    fields = {"error_code": 0, "high_watermark": log.end, "records": log.region(part.fetch_offset)}
                    if not log.start <= part.fetch_offset <= log.end:
                        fields = {"error_code": error_codes.OFFSET_OUT_OF_RANGE, "high_watermark": -1}
                answers.append(make["PartitionData"](partition_index=part.partition, **fields))
            topics.append(make["FetchableTopicResponse"](topic=asked.topic, topic_id=asked.topic_id, partitions=answers))
        return api.response.new(responses=topics)

    def on_listoffsets(self, api: apis.Api, request: Message) -> Message:
        asked = request.topics[0]
        part = asked.partitions[0]
        log = self.logs.get((asked.name, part.partition_index))
        code, offset = error_codes.UNKNOWN_TOPIC_OR_PARTITION, -1
        if log is not None:
            code, offset = 0, log.start if part.timestamp == -2 else log.end
            if part.timestamp >= 0:
                offset = log.offset_at(part.timestamp)
        make = api.response.classes
        answer = make["ListOffsetsPartitionResponse"](partition_index=part.partition_index, error_code=code, offset=offset)
        return api.response.new(topics=[make["ListOffsetsTopicResponse"](name=asked.name, partitions=[answer])])

    def on_apiversions(self, api: apis.Api, request: Message) -> Message:
        known = [
            api.response.classes["ApiVersion"](api_key=one.key, min_version=one.lowest_version, max_version=one.highest_version)
            for one in apis.API_KEYS.values()
            if one.key == apis.PRODUCE or hasattr(self, f"on_{one.name.lower()}")
        ]
        return api.response.new(api_keys=known)

    def on_initproducerid(self, api: apis.Api, request: Message) -> Message:
        given = self.meta["next_producer_id"]
        self.meta["next_producer_id"] += 1
        self.save()
        return api.response.new(producer_id=given, producer_epoch=0)

    def on_metadata(self, api: apis.Api, request: Message) -> Message:
        make = api.response.classes
        topics = [
            make["MetadataResponseTopic"](
                error_code=0,
                name=name,
                topic_id=Uuid(bytes.fromhex(topic["id"])),
                partitions=[
                    make["MetadataResponsePartition"](
                        error_code=0, partition_index=at, leader_id=1, replica_nodes=[1], isr_nodes=[1]
                    )
                    for at in range(topic["partitions"])
                ],
            )
            for name, topic in self.meta["topics"].items()
        ]
        return api.response.new(brokers=[], topics=topics)

    def on_createtopics(self, api: apis.Api, request: Message) -> Message:
        asked = request.topics[0]
        code = error_codes.TOPIC_ALREADY_EXISTS
        if asked.name not in self.meta["topics"]:
            code = 0
            configs = {config.name: config.value for config in asked.configs}
            topic = {"id": self.rng.randbytes(16).hex(), "partitions": asked.num_partitions, "configs": configs}
            self.meta["topics"][asked.name] = topic
            self.save()
        return api.response.new(topics=[api.response.classes["CreatableTopicResult"](name=asked.name, error_code=code)])

    def on_createpartitions(self, api: apis.Api, request: Message) -> Message:
        asked = request.topics[0]
        topic = self.meta["topics"].get(asked.name)
        code = error_codes.UNKNOWN_TOPIC_OR_PARTITION if topic is None else 0
        if topic is not None:
            topic["partitions"] = max(topic["partitions"], asked.count)
            self.save()
        return api.response.new(results=[api.response.classes["CreatePartitionsTopicResult"](name=asked.name, error_code=code)])

    def on_deletetopics(self, api: apis.Api, request: Message) -> Message:
        asked = request.topics[0] if request.topics else None
        name, topic = self.topic(asked.name or "", asked.topic_id) if asked else self.topic(request.topic_names[0], b"")
        code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if topic is not None:
            code = 0
            del self.meta["topics"][name]
            self.save()
            for index in range(topic["partitions"]):
                path = self.logs.pop((name, index)).path
                self.disk.remove(path)
                self.disk.remove_directory(path.removesuffix(f"/{LOG}"))
            self.disk.flush_directory(DATA)
        return api.response.new(responses=[api.response.classes["DeletableTopicResult"](name=name, error_code=code)])

    def on_deleterecords(self, api: apis.Api, request: Message) -> Message:
        asked = request.topics[0]
        part = asked.partitions[0]
        log = self.logs.get((asked.name, part.partition_index))
        make = api.response.classes
        fields = {"error_code": error_codes.UNKNOWN_TOPIC_OR_PARTITION, "low_watermark": -1}
        if log is not None and log.configs.get("cleanup.policy") == "compact":
            fields["error_code"] = error_codes.POLICY_VIOLATION
        elif log is not None:
            log.start = max(log.start, part.offset)
            fields = {"error_code": 0, "low_watermark": log.start}
        answer = make["DeleteRecordsPartitionResult"](partition_index=part.partition_index, **fields)
        return api.response.new(topics=[make["DeleteRecordsTopicResult"](name=asked.name, partitions=[answer])])

    def on_incrementalalterconfigs(self, api: apis.Api, request: Message) -> Message:
        asked = request.resources[0]
        topic = self.meta["topics"].get(asked.resource_name)
        code = error_codes.UNKNOWN_TOPIC_OR_PARTITION if topic is None else 0
        if topic is not None:
            topic["configs"][asked.configs[0].name] = asked.configs[0].value
            self.save()
        make = api.response.classes["AlterConfigsResourceResponse"]
        return api.response.new(responses=[make(error_code=code, resource_type=2, resource_name=asked.resource_name)])

    def on_describeconfigs(self, api: apis.Api, request: Message) -> Message:
        asked = request.resources[0]
        make = api.response.classes
        topic = self.meta["topics"].get(asked.resource_name)
        configs = [
            make["DescribeConfigsResourceResult"](name=key, value=value)
            for key, value in (topic or {"configs": {}})["configs"].items()
        ]
        code = error_codes.UNKNOWN_TOPIC_OR_PARTITION if topic is None else 0
        result = make["DescribeConfigsResult"](
            error_code=code, resource_type=2, resource_name=asked.resource_name, configs=configs
        )
        return api.response.new(results=[result])
