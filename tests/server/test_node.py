"""Protects what a shell relies on in a node: which listeners may open when, and how it stops."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.log.disk.os_disk import OsDisk
from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer
from kcli.protocol.apis import API_KEYS, API_VERSIONS, METADATA
from kcli.protocol.framing import encode_request, read_response_header
from kcli.server.config.loading import load_config
from kcli.server.events import CloseConnection, Connection, RequestReceived, SendResponse
from kcli.server.log_lines import Loggers
from kcli.server.node_builder import build_node
from tests.server.whole_node import START_MS, WholeNode


def test_the_controllers_listeners_open_before_the_brokers(tmp_path: Path) -> None:
    """Voters must reach each other before there is a leader, and no broker is unfenced before that."""
    node = WholeNode(tmp_path / "data", is_awaited=False)
    assert node.node.is_open("CONTROLLER") and not node.node.is_open("PLAINTEXT") and not node.node.is_ready
    node.until(lambda: node.node.is_ready)
    assert node.node.is_open("CONTROLLER") and node.node.is_open("PLAINTEXT")
    node.stop()


def test_listeners_close_after_what_they_serve(tmp_path: Path) -> None:
    """The broker's when its shutdown is approved, the controller's not before the node has left the quorum."""
    node = WholeNode(tmp_path / "data")
    stopped: list[int] = []
    held = node.node.stop(node.now_ms, stopped.append)
    assert node.node.is_open("CONTROLLER") and node.node.is_open("PLAINTEXT")
    node._do(held)
    node.until(lambda: bool(stopped))
    assert node.node.is_open("CONTROLLER") and not node.node.is_open("PLAINTEXT")
    node._do(node.node.leave_quorum(node.now_ms))
    assert node.node.is_stopped


def test_a_node_that_is_only_a_controller_is_ready_with_its_log(tmp_path: Path) -> None:
    """`kcli serve` refuses one as yet; the node itself starts, serves its listener and stops."""
    settings = (
        f"log.dirs={tmp_path / 'data'}",
        "process.roles=controller",
        "listeners=CONTROLLER://127.0.0.1:19093",
        "controller.listener.names=CONTROLLER",
        "node.id=1",
        "controller.quorum.voters=1@127.0.0.1:19093",
    )
    node = build_node(
        load_config(None, settings, serving=False), OsDisk(), random.Random(1), START_MS, Loggers(lambda line: None)
    )
    assert not node.is_open("CONTROLLER")
    node.start(START_MS)
    assert node.broker is None and node.is_ready and node.is_open("CONTROLLER")
    api = API_KEYS[API_VERSIONS]
    request = api.request.new(client_software_name="test", client_software_version="1")
    frame = memoryview(encode_request(5, api, 4, "test", request))[4:]
    (effect,) = node.handle(RequestReceived(Connection(1, "CONTROLLER", "127.0.0.1"), frame), START_MS)
    assert isinstance(effect, SendResponse)
    assert read_response_header(bytes(effect.frame)[4:], api, 4)[0] == 5
    node.stop(START_MS)
    assert node.is_stopped


@pytest.mark.parametrize("role", list(NodeRole))
def test_a_node_asks_itself_in_each_of_its_roles(tmp_path: Path, role: NodeRole) -> None:
    """The broker serves Metadata and the controller does not, on a connection that is marked as the node's own."""
    node = WholeNode(tmp_path / "data")
    answers: list[Answer] = []
    listener = "PLAINTEXT" if role is NodeRole.BROKER else "CONTROLLER"
    request = API_KEYS[METADATA].request.new(topics=[])

    def send(now_ms: int) -> None:
        destination = PeerNode(1, role)
        node.node.peers.send(destination, listener, METADATA, request, lambda answer, now_ms: answers.append(answer), now_ms)

    node.node.timer.schedule(node.now_ms, send)
    node.advance(1)
    (answer,) = answers
    assert (role is NodeRole.BROKER) == hasattr(answer, "cluster_id")
    node.stop()


def test_a_broker_asks_itself_no_more_when_it_has_stopped(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data")
    node.stop()
    frame = memoryview(encode_request(5, API_KEYS[METADATA], 12, "test", API_KEYS[METADATA].request.new()))[4:]
    effects = node.node.handle(RequestReceived(Connection(1, "PLAINTEXT", "127.0.0.1", is_internal=True), frame), node.now_ms)
    assert [type(effect) for effect in effects] == [CloseConnection]
