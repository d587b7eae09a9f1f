"""A node of kcli in virtual time that answers one request of its clients with an error code that a test names.

A test runs its application again and again. The first, second, third ... request of an API that can be answered so meets the
code, until a run has fewer of them:

    for run in node.refusals(Refusal(PRODUCE, "PartitionProduceResponse", NOT_ENOUGH_REPLICAS)):
        app = App(node, f"topic-{run}")
        ...

`is_executed` says that the node executes the request and reports the error nevertheless, as a broker does that waited for its
replicas in vain; without it the request does not reach the node. Answers to Fetch, ShareFetch and Metadata are those of the
node with the code in them: these requests change nothing, except that ShareFetch acquires records until their lock expires.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_PARTITIONS_TO_TXN,
    API_KEYS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    TXN_OFFSET_COMMIT,
    WRITE_TXN_MARKERS,
)
from kcli.protocol.framing import encode_response, read_request_header, read_response_header
from kcli.protocol.message import Message
from kcli.server.events import Connection
from tests.client.clients_of_node import SIZE_BYTES, Client, _Link
from tests.client.faulty_node import FaultyNode

MOST_POSITIONS = 12  # requests of one API that meet a code, each in a run of its own
_CODE_FIELDS = ("error_code", "partition_error_code")
# What a partition with an error does not have.
_NOTHING = {"records": b"", "acquired_records": [], "base_offset": -1, "committed_offset": -1, "node_id": -1, "port": -1}


class Refusal(NamedTuple):
    """An error code, and the structure of the answer that has it; without one it is the answer itself."""

    api_key: int
    struct: str
    code: int
    is_executed: bool = False

    @property
    def name(self) -> str:
        """The name of the refusal as the id of a test."""
        how = " executed" if self.is_executed else ""
        return f"{API_KEYS[self.api_key].name} {error_codes.NAMES[self.code]}{how} {self.struct}".strip()


def refusals_of(api_key: int, struct: str, *codes: int, is_executed: bool = False) -> list[Refusal]:
    """Return a refusal for each code."""
    return [Refusal(api_key, struct, code, is_executed) for code in codes]


# Of topics and partitions whose leader is not known for a time, and of all metadata.
OF_LEADER_LOOKUP = [
    *refusals_of(METADATA, "MetadataResponseTopic", error_codes.LEADER_NOT_AVAILABLE, error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    *refusals_of(METADATA, "MetadataResponsePartition", error_codes.LEADER_NOT_AVAILABLE, error_codes.REPLICA_NOT_AVAILABLE),
]
OF_METADATA = [*OF_LEADER_LOOKUP, Refusal(METADATA, "", error_codes.REBOOTSTRAP_REQUIRED)]


def each_of(refusals: list[Refusal]) -> pytest.MarkDecorator:
    """Return the mark of a test with a case, `refusal`, for each of them."""
    return pytest.mark.parametrize("refusal", [pytest.param(one, id=one.name) for one in refusals])


class RefusingNode(FaultyNode):
    """A node; `met` says how many requests of this run could be refused."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.met = 0
        self._refusal: Refusal | None = None
        self._at = 0
        self._at_random: tuple[dict[int, list[Refusal]], float, random.Random] | None = None
        # The answers that the node gives and that get a code, by their client and request.
        self._rewritten: dict[tuple[Client, int], Refusal] = {}
        super().__init__(directory, *overrides)

    def refusals(self, refusal: Refusal) -> Iterator[int]:
        """Yield 1, 2, 3 ...; the n-th request of run n that can be refused is refused. The last run may have no refusal."""
        for run in range(1, MOST_POSITIONS + 1):
            self.requests, self._at, self._refusal, self.met = [], run, refusal, 0
            yield run
            if self.met < run:
                break
        self._refusal = None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Refuse nothing."""
        before = self._refusal, self._at_random
        self._refusal = self._at_random = None
        yield
        self._refusal, self._at_random = before

    @contextmanager
    def refusing_at_random(self, refusals: Iterable[Refusal], share: float, seed: int) -> Iterator[None]:
        """Refuse a share of the requests, each with one of the refusals; `met` counts them."""
        by_api: dict[int, list[Refusal]] = {}
        for one in refusals:
            by_api.setdefault(one.api_key, []).append(one)
        self.met, self._at_random = 0, (by_api, share, random.Random(seed))
        yield
        self._at_random = None

    def _refusal_of(self, api_key: int) -> Refusal | None:
        """Return what a request may be refused with."""
        if self._at_random is None:
            return self._refusal if self._refusal is not None and self._refusal.api_key == api_key else None
        by_api, share, rng = self._at_random
        return rng.choice(by_api[api_key]) if api_key in by_api and rng.random() < share else None

    @property
    def is_refused(self) -> bool:
        """Whether this run has had its refusal."""
        return self.met >= self._at

    def _send_next(self, link: _Link) -> None:
        if link.waiting and link.under_way is None:
            effect = link.waiting[0]
            frame = bytes(effect.frame[SIZE_BYTES:])
            api_key, version, correlation_id, _, position = read_request_header(frame)
            refusal = self._refusal_of(api_key)
            if refusal is not None:
                if refusal.is_executed or (api_key in (FETCH, SHARE_FETCH) and refusal.struct) or api_key == METADATA:
                    self._rewritten[link.client, effect.request_id] = refusal
                else:
                    request, _ = API_KEYS[api_key].request.decode(frame, version, position)
                    answer = _untouched(api_key, request, version)
                    if self._put_code(answer, refusal):
                        link.under_way = link.waiting.popleft()
                        self._answered(
                            link.connection, bytes(encode_response(correlation_id, API_KEYS[api_key], version, answer))
                        )
                        return
        super()._send_next(link)

    def _answered(self, connection: Connection, frame: bytes) -> None:
        link = self._links.get(connection.connection_id)
        sent = None if link is None else link.under_way
        refusal = None if link is None or sent is None else self._rewritten.pop((link.client, sent.request_id), None)
        if sent is not None and refusal is not None:
            api_key, version, correlation_id, _, _ = read_request_header(bytes(sent.frame[SIZE_BYTES:]))
            api = API_KEYS[api_key]
            _, position = read_response_header(frame[SIZE_BYTES:], api, version)
            answer, _ = api.response.decode(frame[SIZE_BYTES:], version, position)
            if self._put_code(answer, refusal):
                frame = bytes(encode_response(correlation_id, api, version, answer))
        super()._answered(connection, frame)

    def _put_code(self, answer: Message, refusal: Refusal) -> bool:
        """Put the code into the answer if it is the turn of this one and it has the structure."""
        wanted = refusal.struct or type(answer).__name__
        found = [one for one in _structs(answer) if type(one).__name__ == wanted]
        if not found:
            return False
        self.met += 1
        if self._at_random is None and self.met != self._at:
            return False
        for one in found:
            for field in type(one).__slots__:
                if field in _CODE_FIELDS:
                    setattr(one, field, refusal.code)
                elif field in _NOTHING and refusal.struct != "MetadataResponsePartition":
                    setattr(one, field, _NOTHING[field])
        return True


def _structs(message: Message) -> Iterator[Message]:
    yield message
    for field in type(message).__slots__:
        value = getattr(message, field)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Message):
                yield from _structs(one)


# -------------------------------------------------------------------------------------------------- answers without a node


class _Items(NamedTuple):
    """A list in an answer with an item for each one of a list in the request.

    `copied` has the fields of an item by those of the request's item, "" for the item itself; `inner` is a list in each item.
    """

    field: str
    struct: str
    asked: str
    copied: Mapping[str, str]
    inner: _Items | None = None
    fixed: Mapping[str, int] = {}

    def made_for(self, request: Message, classes: dict[str, type[Message]]) -> dict[str, list[Message]]:
        """Return the list, as the argument of what has it."""
        items = []
        for one in getattr(request, self.asked) or []:
            copied = {name: getattr(one, source) if source else one for name, source in self.copied.items()}
            inner = {} if self.inner is None else self.inner.made_for(one, classes)
            items.append(classes[self.struct](**copied, **self.fixed, **inner))
        return {self.field: items}


def _untouched(api_key: int, request: Message, version: int) -> Message:
    """Return an answer to a request with all its partitions, keys or groups."""
    kind = API_KEYS[api_key].response
    items = _ANSWERS.get(api_key)
    return kind.new() if items is None else kind.new(**items.made_for(request, kind.classes))


_NAME, _NAME_AND_ID = {"name": "name"}, {"name": "name", "topic_id": "topic_id"}
_INDEX, _INDEX_ITSELF = {"partition_index": "partition_index"}, {"partition_index": ""}


def _commits(prefix: str) -> _Items:
    inner = _Items("partitions", f"{prefix}ResponsePartition", "partitions", _INDEX)
    return _Items("topics", f"{prefix}ResponseTopic", "topics", _NAME_AND_ID, inner)


_ANSWERS: dict[int, _Items] = {
    PRODUCE: _Items(
        *("responses", "TopicProduceResponse", "topic_data", _NAME_AND_ID),
        _Items("partition_responses", "PartitionProduceResponse", "partition_data", {"index": "index"}),
    ),
    LIST_OFFSETS: _Items(
        *("topics", "ListOffsetsTopicResponse", "topics", _NAME),
        _Items("partitions", "ListOffsetsPartitionResponse", "partitions", _INDEX),
    ),
    OFFSET_FOR_LEADER_EPOCH: _Items(
        *("topics", "OffsetForLeaderTopicResult", "topics", {"topic": "topic"}),
        _Items("partitions", "EpochEndOffset", "partitions", {"partition": "partition"}),
    ),
    OFFSET_COMMIT: _commits("OffsetCommit"),
    TXN_OFFSET_COMMIT: _commits("TxnOffsetCommit"),
    OFFSET_FETCH: _Items(
        *("groups", "OffsetFetchResponseGroup", "groups", {"group_id": "group_id"}),
        _Items(
            *("topics", "OffsetFetchResponseTopics", "topics", _NAME_AND_ID),
            _Items(
                *("partitions", "OffsetFetchResponsePartitions", "partition_indexes", _INDEX_ITSELF),
                fixed={"committed_offset": -1},
            ),
        ),
    ),
    ADD_PARTITIONS_TO_TXN: _Items(
        *("results_by_topic_v3_and_below", "AddPartitionsToTxnTopicResult", "v3_and_below_topics", _NAME),
        _Items("results_by_partition", "AddPartitionsToTxnPartitionResult", "partitions", _INDEX_ITSELF),
    ),
    FIND_COORDINATOR: _Items("coordinators", "Coordinator", "coordinator_keys", {"key": ""}),
    SHARE_ACKNOWLEDGE: _Items(
        *("responses", "ShareAcknowledgeTopicResponse", "topics", {"topic_id": "topic_id"}),
        _Items("partitions", "PartitionData", "partitions", _INDEX),
    ),
    CREATE_TOPICS: _Items("topics", "CreatableTopicResult", "topics", _NAME),
    DELETE_TOPICS: _Items("responses", "DeletableTopicResult", "topics", _NAME_AND_ID),
    CREATE_PARTITIONS: _Items("results", "CreatePartitionsTopicResult", "topics", _NAME),
    DELETE_RECORDS: _Items(
        *("topics", "DeleteRecordsTopicResult", "topics", _NAME),
        _Items("partitions", "DeleteRecordsPartitionResult", "partitions", _INDEX),
    ),
    INCREMENTAL_ALTER_CONFIGS: _Items(
        *("responses", "AlterConfigsResourceResponse", "resources"),
        {"resource_type": "resource_type", "resource_name": "resource_name"},
    ),
    DELETE_GROUPS: _Items("results", "DeletableGroupResult", "groups_names", {"group_id": ""}),
    WRITE_TXN_MARKERS: _Items(
        *("markers", "WritableTxnMarkerResult", "markers", {"producer_id": "producer_id"}),
        _Items(
            *("topics", "WritableTxnMarkerTopicResult", "topics", _NAME),
            _Items("partitions", "WritableTxnMarkerPartitionResult", "partition_indexes", _INDEX_ITSELF),
        ),
    ),
}
