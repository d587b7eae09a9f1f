"""Protects how a broker keeps its place in the cluster, and how it leaves: patiently, without a storm, and not in silence."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    CREATE_TOPICS,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from kcli.protocol.message import Message
from kcli.server.broker.broker import Broker
from kcli.server.broker.broker_lifecycle import BrokerState, RegistrationError
from kcli.server.controller.controller_result import ApiError
from kcli.server.controller.controller_server import ControllerServer
from kcli.server.controller.controller_state import ControllerState
from kcli.server.node import Node
from kcli.simulator.cluster import ClusterSimulation, Layout
from tests.server.raft.nodes import formatted
from tests.server.whole_node import WholeNode, batch


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data")


def ignore(monkeypatch: pytest.MonkeyPatch, api_key: int) -> Callable[[], int]:
    """Have the controller take requests of one API and never answer -> how many came."""
    receive, ignored = ControllerServer.receive, []

    def without(core: ControllerServer, connection: object, frame: memoryview, *rest: object) -> None:
        if int.from_bytes(frame[:2], "big") == api_key:
            ignored.append(api_key)
        else:
            receive(core, connection, frame, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ControllerServer, "receive", without)
    return lambda: len(ignored)


def test_a_controlled_shutdown_waits_five_minutes_for_the_controller(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka: a slow controller must be able to move thousands of leaderships; in the end a line says that it did not."""
    ignore(monkeypatch, BROKER_HEARTBEAT)
    node._do(node.node.stop(node.now_ms))
    node.advance(299_000)
    assert not node.node.is_stopped
    node.advance(2_000)
    assert node.node.is_stopped
    assert [line for line in node.lines if "has not approved the controlled shutdown for 300 s" in line]


def test_a_broker_is_not_fenced_while_another_request_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller answers one connection in order: the heartbeats waited behind the request for longer than the session."""
    ignored = ignore(monkeypatch, CREATE_TOPICS)
    clusters = (ClusterSimulation(seed) for seed in range(100))
    cluster = next(one for one in clusters if one.layout == Layout((1,), (2, 3)))
    for machine in cluster.machines.values():
        machine.start()

    def run(is_over: Callable[[], bool]) -> None:
        while not is_over():
            assert cluster.virtual_time.run_next()

    run(lambda: all(machine.is_ready for machine in cluster.machines.values()))
    controller, broker = (cluster.machines[node_id].node for node_id in (1, 2))
    assert isinstance(controller, Node) and isinstance(broker, Node)
    assert controller.controller is not None and broker.broker is not None
    channel, request = broker.broker.controller, API_KEYS[CREATE_TOPICS].request.new()
    broker.timer.schedule(
        broker.timer.clock_ms, lambda now_ms: channel.send(CREATE_TOPICS, request, lambda answer, now_ms: None)
    )
    run(lambda: ignored() == 1)
    end_ms = cluster.virtual_time.now_ms + 20_000
    run(lambda: cluster.virtual_time.now_ms >= end_ms)
    image = controller.controller.committed_image()
    assert [one.is_fenced for one in image.brokers.values()] == [False, False]


@pytest.mark.parametrize("is_registered_late", [False, True], ids=["it is gone", "a late copy of its request registers it"])
def test_a_broker_that_is_unregistered_while_it_runs_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_registered_late: bool
) -> None:
    """It went on with 50 heartbeats a second for ever, in silence, and no client was served until a restart."""
    requests: list[Message] = []
    describe = Broker.describe_registration

    def described(self: Broker, request: Message) -> None:
        describe(self, request)
        requests.append(request)

    monkeypatch.setattr(Broker, "describe_registration", described)
    node = WholeNode(tmp_path / "data")
    node.create_topic("t")
    counted = count_heartbeats(node)
    first_epoch = node.broker.lifecycle.broker_epoch
    pending = node.send(UNREGISTER_BROKER, 0, API_KEYS[UNREGISTER_BROKER].request.new(broker_id=1))
    if is_registered_late:
        node.broker.lifecycle.channel.send(BROKER_REGISTRATION, requests[0], lambda answer, now_ms: None)
        brokers = node.broker.image.brokers
        node.until(lambda: pending.answer is not None and 1 in brokers and brokers[1].broker_epoch > first_epoch)
    else:
        node.until(lambda: pending.answer is not None and 1 not in node.broker.image.brokers)
    assert pending.result().error_code == 0
    lifecycle = node.broker.lifecycle
    node.until(lambda: lifecycle.broker_epoch > first_epoch and lifecycle.state is BrokerState.RUNNING, 30_000)
    assert 1 in node.broker.image.brokers
    assert [line for line in node.lines if "broker 1 was unregistered while it runs; registering again" in line]
    assert [line for line in node.lines if line.startswith("registered again, with broker epoch ")]
    node.until(lambda: node.broker.replica_manager.partitions["t", 0].is_leader)
    answer = node.produce("t", 0, batch(b"x"))
    assert answer.result().responses[0].partition_responses[0].error_code == 0
    assert counted() < 100
    node.stop()


def test_refused_heartbeats_back_off_and_are_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as long each time, up to the interval of heartbeats; another error is another line, and all is well afterwards."""
    node = WholeNode(tmp_path / "data")
    counted = count_heartbeats(node)
    check_epoch, codes = ControllerState.check_epoch, [error_codes.STALE_BROKER_EPOCH]

    def refuse(state: ControllerState, broker_id: int, broker_epoch: int) -> object:
        raise ApiError(codes[-1], "no")

    monkeypatch.setattr(ControllerState, "check_epoch", refuse)
    node.advance(60_000)
    assert counted() < 45
    codes.append(error_codes.CLUSTER_AUTHORIZATION_FAILED)
    node.advance(10_000)
    refusals = [line for line in node.lines if "the controller refuses the heartbeats" in line]
    assert [line.split(": ")[1] for line in refusals] == [
        "STALE_BROKER_EPOCH; asking again",
        "CLUSTER_AUTHORIZATION_FAILED; asking again",
    ]
    monkeypatch.setattr(ControllerState, "check_epoch", check_epoch)
    node.advance(10_000)
    node.create_topic("t")
    node.stop()


def test_a_broker_that_is_not_registered_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka's, after initial.broker.registration.timeout.ms; once it is registered, that time is over."""
    limit = "initial.broker.registration.timeout.ms=5000"
    WholeNode(tmp_path / "data", limit).advance(20_000)
    ignore(monkeypatch, BROKER_REGISTRATION)
    node = WholeNode(tmp_path / "other", limit, is_awaited=False)
    node.advance(4_000)
    sentence = r"^broker 1 is not registered 5000 ms after its start \(initial.*\): the controller has not answered"
    with pytest.raises(RegistrationError, match=sentence):
        node.advance(2_000)


def count_heartbeats(node: WholeNode) -> Callable[[], int]:
    """Count the heartbeats that a broker sends from now on."""
    send, sent = node.broker.lifecycle.channel.send, []

    def counting(api_key: int, *rest: object) -> None:
        if api_key == BROKER_HEARTBEAT:
            sent.append(node.now_ms)
        send(api_key, *rest)  # type: ignore[arg-type]

    node.broker.lifecycle.channel.send = counting  # type: ignore[method-assign, assignment]
    return lambda: len(sent)


def test_a_new_leader_is_asked_at_once(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier one may be paused or cut off: a broker that waited for its answer would be fenced."""
    ignored = ignore(monkeypatch, BROKER_HEARTBEAT)
    node.until(lambda: ignored() == 1, 10_000)
    node.advance(5_000)
    assert ignored() == 1
    monkeypatch.undo()
    counted = count_heartbeats(node)
    for _ in range(2):  # the second time no answer is outstanding
        node.node.timer.schedule(node.now_ms, node.broker.lifecycle.leader_changed)
        node.advance(1)
        assert counted() == 1
    node.advance(4_500)
    assert counted() == 3
    node.stop()


def test_a_broker_registers_with_its_directories_and_runs_when_it_is_unfenced(tmp_path: Path) -> None:
    """Its epoch and its directories are those of the registration in the metadata; the states come in their order."""
    names = [str(tmp_path / name) for name in "ab"]
    node = WholeNode(tmp_path / "a", f"log.dirs={','.join(names)}", is_awaited=False)
    states = [node.broker.lifecycle.state]

    def is_running() -> bool:
        states.append(node.broker.lifecycle.state)
        return states[-1] is BrokerState.RUNNING

    node.until(is_running)
    assert states == sorted(states)
    registration = node.broker.image.brokers[1]
    assert registration.broker_epoch == node.broker.lifecycle.broker_epoch
    assert [one.directory_id for one in node.broker.log_manager.dirs.values()] == registration.log_dirs
    assert len(registration.log_dirs) == 2
    node.stop()
    assert node.broker.lifecycle.state is BrokerState.SHUTTING_DOWN


def test_each_heartbeat_has_all_directories_that_are_offline(tmp_path: Path) -> None:
    """Also those of earlier failures, and until the broker ends: an answer may have been lost."""
    names = [str(tmp_path / name) for name in "abc"]
    node = WholeNode(tmp_path / "a", f"log.dirs={','.join(names)}")
    send, offline = node.broker.lifecycle.channel.send, []

    def noting(api_key: int, message: Message, *rest: object) -> None:
        if api_key == BROKER_HEARTBEAT:
            offline.append(list(message.offline_log_dirs))
        send(api_key, message, *rest)  # type: ignore[arg-type]

    node.broker.lifecycle.channel.send = noting  # type: ignore[method-assign, assignment]
    ids = [node.broker.log_manager.dirs[name].directory_id for name in names[1:]]
    for count, name in enumerate(names[1:], 1):
        node.broker.log_manager.take_offline(name, OSError(errno.EIO, "Input/output error"))
        offline.clear()
        node.advance(10_000)
        assert len(offline) >= 2
        assert all(sorted(found) == sorted(ids[:count]) for found in offline)
    node.stop()


def test_directories_are_registered_when_an_upgrade_has_them(tmp_path: Path) -> None:
    """Once, with the same epoch, and while the broker serves: it was registered without them until its next start."""
    node = WholeNode(formatted(tmp_path / "data", release="3.6"))
    node.create_topic("t")
    assert node.broker.image.brokers[1].log_dirs == []
    epoch = node.broker.lifecycle.broker_epoch
    request = API_KEYS[UPDATE_FEATURES].request
    raised = request.classes["FeatureUpdateKey"](feature="metadata.version", max_version_level=30, upgrade_type=1)
    pending = node.send(UPDATE_FEATURES, 1, request.new(feature_updates=[raised]))
    node.until(lambda: pending.answer is not None and bool(node.broker.image.brokers[1].log_dirs))
    assert pending.result().error_code == 0
    node.until(lambda: node.broker.lifecycle.state is BrokerState.RUNNING)
    node.advance(10_000)
    registration = node.broker.image.brokers[1]
    assert registration.log_dirs == [one.directory_id for one in node.broker.log_manager.dirs.values()]
    assert (registration.broker_epoch, registration.is_fenced) == (epoch, False)
    assert len([line for line in node.lines if "registering again with them" in line]) == 1
    answer = node.produce("t", 0, batch(b"x"))
    assert answer.result().responses[0].partition_responses[0].error_code == 0
    node.stop()
