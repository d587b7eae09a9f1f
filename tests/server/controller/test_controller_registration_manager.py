"""Protects the registration of a controller that does not lead."""

from __future__ import annotations

from types import SimpleNamespace

from kcli.format.kafka_uuid import Uuid
from kcli.network.events import NodeRole, PeerNode
from kcli.network.timing_wheel import Timer
from kcli.protocol.apis import CONTROLLER_REGISTRATION
from kcli.server.controller.controller_registration_manager import ControllerRegistrationManager
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, METADATA_VERSION
from kcli.state.metadata_values import ControllerRegistration


def test_a_second_process_with_this_node_id_is_logged() -> None:
    """Once, though the two register in turn; the registration of an earlier start is none."""
    own, other = (ControllerRegistration(1, Uuid(bytes([number] * 16)), False, {}, {}) for number in (1, 2))
    lines: list[str] = []
    raft = SimpleNamespace(is_leader=True)
    image = SimpleNamespace(features={}, controllers={})
    manager = ControllerRegistrationManager(raft, SimpleNamespace(image=image), None, Timer(0), lambda: own, lines.append)
    for registered, count in ((other, 0), (own, 0), (other, 1), (own, 1), (other, 1)):
        image.controllers[1] = registered
        manager.on_commit(None, 0)
        assert len(lines) == count
    assert lines[0].startswith("another controller has registered with node.id 1, which this one has")


def test_a_registration_does_not_stop_the_fetches_of_the_metadata_log() -> None:
    """It was sent on raft's connection, and its answer waited for the Fetch behind it: each start lost its first leader."""
    sent = []
    raft = SimpleNamespace(is_leader=False, leader_id=2, config=SimpleNamespace(core=SimpleNamespace(listener="CONTROLLER")))
    image = SimpleNamespace(features={METADATA_VERSION: CONTROLLER_REGISTRATION_SINCE}, controllers={})
    network = SimpleNamespace(send=lambda destination, listener, api_key, *rest: sent.append((destination, listener, api_key)))
    own = ControllerRegistration(1, Uuid(bytes(16)), False, {}, {})
    manager = ControllerRegistrationManager(raft, SimpleNamespace(image=image), network, Timer(0), lambda: own, print)
    manager.on_leader_change(2, 5, 0)
    assert sent == [(PeerNode(2, NodeRole.CONTROLLER), "CONTROLLER", CONTROLLER_REGISTRATION)], "raft sends to a PeerAddress"
