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
