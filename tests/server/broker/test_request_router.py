"""Protects the way of a request in and of its answer out: what is no request ends its connection and nothing else."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    API_VERSIONS,
    BROKER_REGISTRATION,
    CREATE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_QUORUM,
    FETCH,
    METADATA,
    PRODUCE,
)
from kcli.protocol.framing import encode_request
from kcli.server.api_versions import highest_version
from kcli.server.apis.registry import SERVED
from kcli.server.events import CloseConnection, Connection, RequestReceived, SendResponse
from tests.server.whole_node import Closed, WholeNode, batch


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> WholeNode:
    made = WholeNode(tmp_path_factory.mktemp("node"))
    made.create_topic("t")
    return made


def head(key: int, version: int, client_id: bytes = b"c") -> bytes:
    return struct.pack(">hhih", key, version, 7, len(client_id)) + client_id


def closing(node: WholeNode, frame: bytes, key: int = METADATA) -> str:
    """The reason with which a frame ends its connection; the node goes on serving others."""
    with pytest.raises(Closed) as caught:
        node.send_frame(frame, key, 0).result()
    assert node.send(METADATA, 12, API_KEYS[METADATA].request.new(topics=[])).result().cluster_id
    return str(caught.value)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "RequestHeader"),
        (b"\0\3", "RequestHeader"),
        (head(METADATA, 12)[:-1], "client id"),
        (head(999, 0), "999"),
        (head(-1, 0), "-1"),
        (head(METADATA, 99) + b"\0", "has 0 to 13"),
        (head(METADATA, -1), "has 0 to 13"),
        (head(4, 0), "4"),
        (head(BROKER_REGISTRATION, 1) + b"\0", "not served"),
        (head(METADATA, 12) + b"\0", "Metadata"),
        (head(METADATA, 12) + b"\0\xff\xff\xff\xff\x0f", "Metadata"),
        (struct.pack(">hhih", METADATA, 1, 7, -5), "client id"),
    ],
)
def test_what_is_no_request_of_ours_ends_its_connection(node: WholeNode, frame: bytes, says: str) -> None:
    assert says in closing(node, frame)


def test_what_is_not_stable_is_not_served(node: WholeNode) -> None:
    unstable = [api for api in API_KEYS.values() if api.key in SERVED and api.is_latest_unstable]
    assert unstable
    for api in unstable:
        assert "not stable" in closing(node, head(api.key, api.highest_version) + b"\0")


@pytest.mark.parametrize("version", [6, 99, 32767, -1])
def test_api_versions_of_an_unknown_version_is_answered_in_version_0(node: WholeNode, version: int) -> None:
    answer = node.send_frame(head(API_VERSIONS, version) + b"\0\1\2\3", API_VERSIONS, 99).result()
    assert answer.error_code == error_codes.UNSUPPORTED_VERSION
    assert API_VERSIONS in {entry.api_key for entry in answer.api_keys}


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "code"),
    [
        (None, -1, error_codes.NONE),
        ("own", 1, error_codes.NONE),
        ("own", -1, error_codes.INVALID_REQUEST),
        ("own", 2, error_codes.REBOOTSTRAP_REQUIRED),
        ("another", 1, error_codes.REBOOTSTRAP_REQUIRED),
        (None, 1, error_codes.INVALID_REQUEST),
    ],
)
def test_connections_for_another_node_are_refused(node: WholeNode, cluster_id: str | None, node_id: int, code: int) -> None:
    """KIP-1242: the client states in version 5 which node of which cluster it means."""
    own = node.broker.cluster_id if cluster_id == "own" else cluster_id
    client = {"client_software_name": "test", "client_software_version": "1"}
    request = API_KEYS[API_VERSIONS].request.new(**client, cluster_id=own, node_id=node_id)
    answer = node.send(API_VERSIONS, 5, request).result()
    assert (answer.error_code, bool(answer.api_keys)) == (code, code == error_codes.NONE)


def test_correlation_ids_and_sizes_are_the_requests(node: WholeNode) -> None:
    pending = node.send(METADATA, 12, API_KEYS[METADATA].request.new(topics=[]))
    assert pending.frame is not None
    size, correlation_id = struct.unpack_from(">ii", pending.frame)
    assert (size, correlation_id) == (len(pending.frame) - 4, 77)


def break_handler(node: WholeNode, monkeypatch: pytest.MonkeyPatch, key: int) -> None:
    def broken(context: Any, request: Any) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setitem(node.broker.router._handlers, key, broken)


def test_a_fault_is_told_where_the_answer_can_say_so(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, version in ((FETCH, 12), (DESCRIBE_CLUSTER, 1), (METADATA, 13)):
        break_handler(node, monkeypatch, key)
        answer = node.send(key, version, API_KEYS[key].request.new()).result()
        assert answer.error_code == error_codes.UNKNOWN_SERVER_ERROR
        assert "a fault of kcli" in node.lines[-1] and "please report" in node.lines[-1]


def test_a_fault_ends_the_connection_where_it_cannot(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, version in ((METADATA, 12), (PRODUCE, 12)):
        break_handler(node, monkeypatch, key)
        with pytest.raises(Closed, match="caused a fault"):
            node.send(key, version, API_KEYS[key].request.new()).result()


def test_a_fault_behind_acks_0_ends_the_connection(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(type(node.broker.replica_manager), "partition", broken)
    with pytest.raises(Closed, match="caused a fault"):
        node.produce("t", 0, batch(b"a"), acks=0).result()


def test_an_answer_that_cannot_be_written_ends_the_connection(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    unwritable = API_KEYS[DESCRIBE_CLUSTER].response.new(cluster_id=None)
    monkeypatch.setitem(node.broker.router._handlers, DESCRIBE_CLUSTER, lambda context, request: unwritable)
    with pytest.raises(Closed, match="cannot be encoded"):
        node.send(DESCRIBE_CLUSTER, 1, API_KEYS[DESCRIBE_CLUSTER].request.new()).result()


def test_the_controller_gets_what_is_for_it_and_its_answer_comes_back(node: WholeNode) -> None:
    classes = API_KEYS[CREATE_TOPICS].request.classes
    for version in range(2, 8):
        topic = classes["CreatableTopic"](name=f"v{version}", num_partitions=1, replication_factor=1)
        pending = node.send(CREATE_TOPICS, version, API_KEYS[CREATE_TOPICS].request.new(topics=[topic], timeout_ms=1000))
        node.until(lambda pending=pending: pending.answer is not None)  # type: ignore[misc]
        assert [answer.error_code for answer in pending.result().topics] == [0]


@pytest.mark.parametrize("key", [CREATE_TOPICS, DESCRIBE_QUORUM])
def test_a_forwarded_request_that_does_not_decode_ends_its_connection(node: WholeNode, key: int) -> None:
    """The client must not wait for an answer that the controller could not form."""
    pending = node.send_frame(head(key, API_KEYS[key].lowest_version) + b"\xff", key, API_KEYS[key].lowest_version)
    node.until(lambda: pending.answer is not None)
    with pytest.raises(Closed):
        pending.result()
    assert not node.node.peers.outstanding


@given(st.binary(max_size=200))
def test_random_bytes_are_never_a_fault(node: WholeNode, frame: bytes) -> None:
    """Neither to the broker nor to the controller on its own listener."""
    said = len(node.lines)
    for listener in ("PLAINTEXT", "CONTROLLER"):
        node._next_id += 1
        connection = Connection(node._next_id, listener, "127.0.0.1")
        effects = node.node.handle(RequestReceived(connection, memoryview(bytearray(frame))), node.now_ms)
        kinds = {type(effect) for effect in effects}
        assert kinds <= {CloseConnection, SendResponse}
        assert all("fault" not in effect.reason for effect in effects if isinstance(effect, CloseConnection))
    assert len(node.lines) == said


@given(st.sampled_from(sorted(SERVED)), st.integers(0, 12), st.binary(max_size=100), st.randoms(use_true_random=False))
def test_requests_with_damage_are_never_a_fault(node: WholeNode, key: int, back: int, noise: bytes, dice: Any) -> None:
    """A real request of each API and version, with some bytes replaced: an answer or the end, never a fault of ours."""
    api = API_KEYS[key]
    version = max(api.lowest_version, highest_version(key, False) - back)
    frame = bytearray(encode_request(7, api, version, "test", api.request.new())[4:])
    for byte in noise:
        frame[dice.randrange(12, len(frame)) if len(frame) > 12 else 0] = byte
    said = len(node.lines)
    pending = node.send_frame(bytes(frame[:12] + frame[12:] + noise[:3]), key, version)
    node.advance(1)
    faults = [line for line in node.lines[said:] if "fault" in line]
    assert not faults
    if isinstance(pending.answer, Closed):
        assert "fault" not in str(pending.answer)
