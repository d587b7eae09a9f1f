"""A cluster of a few lines with logs, idempotence as Kafka checks it, and committed offsets; and an unreliable network to it.

All runs in virtual time from a seed: answers and requests are late or lost, connections end, leaders move, and a client may be
killed at any event while its requests still arrive.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

from kcli.client.client_config import ClientConfig
from kcli.client.network_client import NetworkClient
from kcli.format.record_batch import HEADER, RecordBatch, check_batch
from kcli.network.events import Peer, PeerClosed, ResponseReceived, SendRequest
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message

NODES = (1, 2)
REMEMBERED = 5


class FakeLog:
    """The log of a partition: batches with their offsets, and the last sequences of each producer."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = self.end = 0
        self.stable: int | None = None  # the last stable offset while a transaction is open
        self.aborted: list[tuple[int, int, int]] = []  # producer, offsets of the first record and of the marker
        self.producers: dict[int, list[tuple[int, int, int]]] = {}  # first and last sequence, base offset

    def append(self, data: bytes) -> tuple[int, int]:
        """Append a batch as a leader does -> error code, base offset."""
        header = check_batch(data)
        assert header.last_offset_delta + 1 == header.record_count > 0
        if header.producer_id >= 0:
            known = self.producers.setdefault(header.producer_id, [])
            last = header.base_sequence + header.record_count - 1
            for first_known, last_known, offset in known:
                if (first_known, last_known) == (header.base_sequence, last):
                    return 0, offset
            if known and header.base_sequence != known[-1][1] + 1:
                return error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.append((header.base_sequence, last, self.end))
            del known[:-REMEMBERED]
        stored = bytearray(data)
        HEADER.pack_into(stored, 0, *header._replace(base_offset=self.end, partition_leader_epoch=0)[1:])
        self.batches.append(bytes(stored))
        base, self.end = self.end, self.end + header.record_count
        return 0, base

    def load(self, data: bytes) -> None:
        """Take the batches of a segment as they are."""
        while data:
            size = 12 + int.from_bytes(data[8:12], "big")
            self.batches.append(data[:size])
            self.end = check_batch(data[:size]).last_offset + 1
            data = data[size:]

    def truncate(self, end: int) -> None:
        """Lose the batches that reach above an offset."""
        self.batches = [batch for batch in self.batches if check_batch(batch).last_offset < end]
        self.end = check_batch(self.batches[-1]).last_offset + 1 if self.batches else 0

    def delete_before(self, offset: int) -> None:
        """Delete the batches below an offset, as retention does."""
        self.batches = [batch for batch in self.batches if check_batch(batch).last_offset >= offset]
        self.start = offset

    def headers(self) -> list[RecordBatch]:
        """The headers of all batches."""
        return [check_batch(batch) for batch in self.batches]


class FakeCluster:
    """Two brokers; each partition is led by one of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.logs: dict[str, list[FakeLog]] = {}
        self.generations: dict[str, int] = {}  # how often a topic of that name was made
        self.commits = 0
        self.cluster_id = "fake"
        self.producer_errors: list[int] = []  # of the next answers to DescribeProducers, the last one first
        self.list_errors = dict.fromkeys(NODES, 0)  # what each broker answers to ListGroups
        self.newest_produce = 13
        self.produce_errors: list[int] = []  # of the next batches, the last one first
        self.most_fetched: int | None = None  # the number of batches in an answer to Fetch
        self.empty_fetches = 0  # of the next answers to Fetch, as of a new leader that does not know the high watermark yet
        self.group_errors: dict[str, int] = {}  # the error codes of the answers to OffsetFetch, by group
        self.refused: dict[int, int] = {}  # by API key: the error code of each answer, without anything else
        self.throttles: list[int] = []  # throttle times of the next answers to Fetch, which have no records, the last one first
        self.has_leaders = True
        self.is_coordinating = True
        self.configs: dict[str, dict[str, str]] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}
        self.next_producer_id = 100
        self.leaders: dict[tuple[str, int], int] = {}
        self.epoch = 0
        self._handlers: dict[int, Callable[[int, Message], Message]] = {
            apis.API_VERSIONS: self._api_versions,
            apis.METADATA: self._metadata,
            apis.CREATE_TOPICS: self._create_topics,
            apis.DESCRIBE_CONFIGS: self._describe_configs,
            apis.INIT_PRODUCER_ID: self._init_producer_id,
            apis.LIST_OFFSETS: self._list_offsets,
            apis.FIND_COORDINATOR: self._find_coordinator,
            apis.OFFSET_COMMIT: self._offset_commit,
            apis.OFFSET_FETCH: self._offset_fetch,
            apis.PRODUCE: self._produce,
            apis.FETCH: self._fetch,
            apis.DESCRIBE_LOG_DIRS: self._describe_log_dirs,
            apis.DESCRIBE_PRODUCERS: self._describe_producers,
            apis.LIST_GROUPS: self._list_groups,
        }

    def topic_id(self, name: str) -> bytes:
        return name.encode().ljust(16, bytes([self.generations[name]]))

    def create(self, name: str, partitions: int) -> None:
        """Make a topic."""
        self.generations[name] = self.generations.get(name, 0) + 1
        self.logs[name] = [FakeLog() for _ in range(partitions)]
        for number in range(partitions):
            self.leaders[name, number] = self.rng.choice(NODES)

    def move_leader(self) -> None:
        """Have another broker lead some partition."""
        if self.leaders:
            where = self.rng.choice(sorted(self.leaders))
            self.leaders[where] = NODES[0] + NODES[1] - self.leaders[where]
            self.epoch += 1

    def answer(self, node: int, frame: bytes) -> bytes:
        """Process a request -> the frame of the answer, without its size."""
        key, version, correlation_id, _, position = read_request_header(frame[4:])
        request, _ = API_KEYS[key].request.decode(frame[4:], version, position)
        response = self._new(key, error_code=self.refused[key]) if key in self.refused else self._handlers[key](node, request)
        return bytes(encode_response(correlation_id, API_KEYS[key], version, response))[4:]

    @staticmethod
    def _new(key: int, **fields: Any) -> Message:
        return API_KEYS[key].response.new(**fields)

    @staticmethod
    def _part(key: int, kind: str, /, **fields: Any) -> Message:
        made: Message = API_KEYS[key].response.classes[kind](**fields)
        return made

    def _api_versions(self, node: int, request: Message) -> Message:
        low = {
            apis.PRODUCE: (3, self.newest_produce),
            apis.FETCH: (4, 12),
            apis.OFFSET_COMMIT: (2, 9),
            apis.OFFSET_FETCH: (1, 9),
        }
        keys = [
            self._part(
                apis.API_VERSIONS,
                "ApiVersion",
                api_key=key,
                min_version=low.get(key, (API_KEYS[key].lowest_version,))[0],
                max_version=low[key][1] if key in low else API_KEYS[key].highest_version - API_KEYS[key].is_latest_unstable,
            )
            for key in self._handlers
        ]
        return self._new(apis.API_VERSIONS, api_keys=keys)

    def _metadata(self, node: int, request: Message) -> Message:
        topics = []
        for wanted in sorted(self.logs) if request.topics is None else [topic.name for topic in request.topics]:
            logs = self.logs.get(wanted)
            if logs is None:
                code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                topics.append(self._part(apis.METADATA, "MetadataResponseTopic", name=wanted, error_code=code))
                continue
            partitions = [
                self._part(
                    apis.METADATA,
                    "MetadataResponsePartition",
                    partition_index=number,
                    leader_id=self.leaders[wanted, number] if self.has_leaders else -1,
                    leader_epoch=self.epoch,
                )
                for number in range(len(logs))
            ]
            topic_id = self.topic_id(wanted)
            topics.append(
                self._part(apis.METADATA, "MetadataResponseTopic", name=wanted, topic_id=topic_id, partitions=partitions)
            )
        brokers = [self._part(apis.METADATA, "MetadataResponseBroker", node_id=one, host="fake", port=one) for one in NODES]
        return self._new(apis.METADATA, brokers=brokers, cluster_id=self.cluster_id, controller_id=1, topics=topics)

    def _create_topics(self, node: int, request: Message) -> Message:
        results = []
        for topic in request.topics:
            code = error_codes.TOPIC_ALREADY_EXISTS if topic.name in self.logs else 0
            if not code:
                self.create(topic.name, topic.num_partitions)
                self.configs[topic.name] = {config.name: config.value for config in topic.configs}
            results.append(self._part(apis.CREATE_TOPICS, "CreatableTopicResult", name=topic.name, error_code=code))
        return self._new(apis.CREATE_TOPICS, topics=results)

    def _describe_configs(self, node: int, request: Message) -> Message:
        of_config = "DescribeConfigsResourceResult"
        results = [
            self._part(
                apis.DESCRIBE_CONFIGS,
                "DescribeConfigsResult",
                resource_type=2,
                resource_name=one.resource_name,
                configs=[
                    self._part(apis.DESCRIBE_CONFIGS, of_config, name=name, value=value)
                    for name, value in self.configs.get(one.resource_name, {}).items()
                ],
            )
            for one in request.resources
        ]
        return self._new(apis.DESCRIBE_CONFIGS, results=results)

    def _init_producer_id(self, node: int, request: Message) -> Message:
        self.next_producer_id += 1
        return self._new(apis.INIT_PRODUCER_ID, producer_id=self.next_producer_id, producer_epoch=0)

    def _list_offsets(self, node: int, request: Message) -> Message:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                where = topic.name, part.partition_index
                code = 0 if self.leaders.get(where) == node else error_codes.NOT_LEADER_OR_FOLLOWER
                log = self.logs[topic.name][part.partition_index]
                end = log.end if log.stable is None or not request.isolation_level else log.stable
                offset = -1 if code else log.start if part.timestamp == -2 else end
                parts.append(
                    self._part(
                        apis.LIST_OFFSETS,
                        "ListOffsetsPartitionResponse",
                        partition_index=part.partition_index,
                        error_code=code,
                        offset=offset,
                    )
                )
            topics.append(self._part(apis.LIST_OFFSETS, "ListOffsetsTopicResponse", name=topic.name, partitions=parts))
        return self._new(apis.LIST_OFFSETS, topics=topics)

    def _find_coordinator(self, node: int, request: Message) -> Message:
        code = 0 if self.is_coordinating else error_codes.COORDINATOR_NOT_AVAILABLE
        found = [
            self._part(apis.FIND_COORDINATOR, "Coordinator", key=key, node_id=1, host="fake", port=1, error_code=code)
            for key in request.coordinator_keys
        ]
        return self._new(apis.FIND_COORDINATOR, coordinators=found)

    def _offset_commit(self, node: int, request: Message) -> Message:
        topics = []
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                committed = part.committed_offset, part.committed_metadata
                self.offsets[request.group_id, topic.name, part.partition_index] = committed
                self.commits += 1
                parts.append(
                    self._part(apis.OFFSET_COMMIT, "OffsetCommitResponsePartition", partition_index=part.partition_index)
                )
            topics.append(self._part(apis.OFFSET_COMMIT, "OffsetCommitResponseTopic", name=topic.name, partitions=parts))
        return self._new(apis.OFFSET_COMMIT, topics=topics)

    def _offset_fetch(self, node: int, request: Message) -> Message:
        groups = []
        for group in request.groups:
            topics = []
            wanted = [(topic.name, topic.partition_indexes) for topic in group.topics or []]
            if group.topics is None:
                wanted = [(name, [number]) for group_id, name, number in self.offsets if group_id == group.group_id]
            for topic_name, numbers in wanted:
                parts = []
                for number in numbers:
                    offset, metadata = self.offsets.get((group.group_id, topic_name, number), (-1, ""))
                    parts.append(
                        self._part(
                            apis.OFFSET_FETCH,
                            "OffsetFetchResponsePartitions",
                            partition_index=number,
                            committed_offset=offset,
                            metadata=metadata,
                        )
                    )
                topics.append(self._part(apis.OFFSET_FETCH, "OffsetFetchResponseTopics", name=topic_name, partitions=parts))
            groups.append(
                self._part(
                    apis.OFFSET_FETCH,
                    "OffsetFetchResponseGroup",
                    group_id=group.group_id,
                    error_code=self.group_errors.get(group.group_id, 0),
                    topics=topics,
                )
            )
        return self._new(apis.OFFSET_FETCH, groups=groups)

    def _produce(self, node: int, request: Message) -> Message:
        topics = []
        names = {self.topic_id(name): name for name in self.logs}
        for topic in request.topic_data:
            name = topic.name or names.get(bytes(topic.topic_id), "")
            parts = []
            for part in topic.partition_data:
                code, offset = error_codes.NOT_LEADER_OR_FOLLOWER if name else error_codes.UNKNOWN_TOPIC_ID, -1
                if self.produce_errors:
                    code = self.produce_errors.pop()
                elif self.leaders.get((name, part.index)) == node and self.has_leaders:
                    code, offset = self.logs[name][part.index].append(bytes(part.records))
                parts.append(
                    self._part(apis.PRODUCE, "PartitionProduceResponse", index=part.index, error_code=code, base_offset=offset)
                )
            topics.append(
                self._part(
                    apis.PRODUCE,
                    "TopicProduceResponse",
                    **({"name": name} if topic.name else {"topic_id": topic.topic_id}),
                    partition_responses=parts,
                )
            )
        return self._new(apis.PRODUCE, responses=topics)

    def _fetch(self, node: int, request: Message) -> Message:
        if self.throttles:
            return self._new(apis.FETCH, throttle_time_ms=self.throttles.pop())
        topic = request.topics[0]
        part = topic.partitions[0]
        log = self.logs[topic.topic][part.partition]
        stable = log.end if log.stable is None else log.stable
        most = stable if request.isolation_level else log.end
        end = log.end
        batches = [batch for batch in log.batches if part.fetch_offset <= check_batch(batch).last_offset < most]
        del batches[len(batches) if self.most_fetched is None else self.most_fetched :]
        records = b"".join(batches)
        reached = check_batch(batches[-1]).last_offset if batches else -1
        aborted = [
            self._part(apis.FETCH, "AbortedTransaction", producer_id=producer, first_offset=first)
            for producer, first, last in log.aborted
            if request.isolation_level and last >= part.fetch_offset and first <= reached
        ]
        is_leader = self.leaders[topic.topic, part.partition] == node
        if self.empty_fetches:
            self.empty_fetches -= 1
            end, records = part.fetch_offset, b""
        code = 0 if log.start <= part.fetch_offset <= log.end else error_codes.OFFSET_OUT_OF_RANGE
        answer = self._part(
            apis.FETCH,
            "PartitionData",
            partition_index=part.partition,
            error_code=code if is_leader else error_codes.NOT_LEADER_OR_FOLLOWER,
            high_watermark=end,
            last_stable_offset=stable,
            aborted_transactions=aborted,
            records=records if is_leader and not code else b"",
        )
        return self._new(
            apis.FETCH,
            responses=[self._part(apis.FETCH, "FetchableTopicResponse", topic=topic.topic, partitions=[answer])],
        )

    def _describe_log_dirs(self, node: int, request: Message) -> Message:
        return self._new(apis.DESCRIBE_LOG_DIRS)

    def _list_groups(self, node: int, request: Message) -> Message:
        groups = [self._part(apis.LIST_GROUPS, "ListedGroup", group_id=f"g{node}", protocol_type="consumer")]
        code = self.list_errors[node]
        return self._new(apis.LIST_GROUPS, error_code=code, groups=[] if code else groups)

    def _describe_producers(self, node: int, request: Message) -> Message:
        asked = request.topics[0]
        number = asked.partition_indexes[0]
        code = self.producer_errors.pop() if self.producer_errors else 0
        states = [
            self._part(apis.DESCRIBE_PRODUCERS, "ProducerState", producer_id=one, last_sequence=known[-1][1])
            for one, known in self.logs[asked.name][number].producers.items()
            if not code
        ]
        kind = "PartitionResponse"
        part = self._part(apis.DESCRIBE_PRODUCERS, kind, partition_index=number, error_code=code, active_producers=states)
        topic = self._part(apis.DESCRIBE_PRODUCERS, "TopicResponse", name=asked.name, partitions=[part])
        return self._new(apis.DESCRIBE_PRODUCERS, topics=[topic])


class FakeNetwork:
    """Virtual time and an unreliable network; `faults` is the share of requests that meet one."""

    def __init__(self, cluster: FakeCluster, rng: random.Random, faults: float = 0.0) -> None:
        self.cluster = cluster
        self.rng = rng
        self.faults = faults
        self.now_ms = 0
        self.events = 0
        self._coming: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._last_ms: dict[tuple[int, Peer], int] = {}  # answers of a connection keep their order
        self._generation: dict[tuple[int, Peer], int] = {}  # how often a connection of a client has ended
        self._client = 0

    def at(self, at_ms: int, action: Callable[[], None]) -> None:
        """Have something happen to the cluster at a time."""
        self._at(at_ms, action)

    def client(self) -> NetworkClient:
        """A new client; of the one before it nothing is heard any more, but its requests may still arrive."""
        self._client += 1
        self.network = NetworkClient(
            ClientConfig(bootstrap_servers=("fake:1",), allow_auto_create_topics=False),
            self.rng,
            lambda line: None,
            self.now_ms,
        )
        return self.network

    def run(self, poll: Callable[[int], None], is_over: Callable[[], bool], most_events: int = 1_000_000) -> bool:
        """Carry what is sent until it is over -> False if it is not after so many events."""
        end = self.events + most_events
        while not is_over():
            if self.events >= end:
                return False
            self.events += 1
            poll(self.now_ms)
            for effect in self.network.take_effects():
                if isinstance(effect, SendRequest):
                    self._send(effect)
            if is_over():
                return True
            deadline_ms = self.network.next_deadline_ms()
            if self._coming and (deadline_ms is None or self._coming[0][0] <= deadline_ms):
                at_ms, _, action = heapq.heappop(self._coming)
                self.now_ms = max(self.now_ms, at_ms)
                self.network.timer.observe(self.now_ms)
                action()
            else:
                assert deadline_ms is not None, "nothing will ever happen"
                self.now_ms = max(self.now_ms, deadline_ms)
                self.network.advance(self.now_ms)
        return True

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._coming, (at_ms, self._order, action))

    def _send(self, effect: SendRequest) -> None:
        peer, client = effect.peer, self._client
        generation = self._generation.setdefault((client, peer), 0)
        assert peer.address is not None
        at_ms = max(self.now_ms + self.rng.randint(0, 5), self._last_ms.get((client, peer), 0))
        self._last_ms[client, peer] = at_ms
        frame = bytes(effect.frame)
        if self.rng.random() < self.faults / 4:
            self._at(at_ms, self.cluster.move_leader)
        is_cut = self.rng.random() < self.faults
        arrives = not is_cut or self.rng.random() < 0.5

        def arrive() -> None:
            assert peer.address is not None
            if self._generation[client, peer] != generation:
                return  # what was sent after a lost request on the same connection does not arrive
            answer = self.cluster.answer(peer.address.port, frame) if arrives else b""
            if is_cut:
                self._generation[client, peer] = generation + 1
            if client != self._client:
                return
            if is_cut:
                self.network.handle(PeerClosed(peer, "cut"), self.now_ms)
            else:
                self.network.handle(ResponseReceived(effect.request_id, answer), self.now_ms)

        self._at(at_ms, arrive)
