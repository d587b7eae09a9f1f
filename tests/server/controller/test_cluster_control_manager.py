"""Protects the life of a broker as the controller sees it: registered, unfenced, silent, leaving; and what becomes of its
partitions each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_PARTITION,
    API_KEYS,
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    CONTROLLER_REGISTRATION,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
    UPDATE_FEATURES,
)
from kcli.server.controller import quorum_controller
from kcli.state.image_records import broker_record
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    Endpoint,
    PartitionRegistration,
)
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted


def partition(node: ControllerNode, name: str = "orders", index: int = 0) -> PartitionRegistration:
    found = node.broker.image.topic(name)
    assert found is not None
    return found.partitions[index]


def test_a_broker_is_unfenced_when_it_has_seen_its_registration(tmp_path: Path) -> None:
    """Its epoch is the offset of its record; a heartbeat from below that offset leaves it fenced."""
    node = ControllerNode(formatted(tmp_path / "data")).start()
    offset = node.core.raft.next_offset
    assert node.register().broker_epoch == offset
    behind = node.beat(current_metadata_offset=offset - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    wanting = node.beat(want_fence=True)
    assert (wanting.is_caught_up, wanting.is_fenced) == (True, True)
    caught_up = node.beat()
    assert (caught_up.is_caught_up, caught_up.is_fenced, caught_up.should_shut_down) == (True, False, False)
    assert not node.broker.image.brokers[1].is_fenced


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another"}, error_codes.INCONSISTENT_CLUSTER_ID),
        ({"is_migrating_zk_broker": True}, error_codes.BROKER_ID_NOT_REGISTERED),
        ({"log_dirs": []}, error_codes.INVALID_REGISTRATION),
        ({"log_dirs": [Uuid(b"\0" * 15 + b"\5")]}, error_codes.INVALID_REGISTRATION),
        ({"log_dirs": [Uuid(b"\1" * 16)] * 2}, error_codes.INVALID_REGISTRATION),
        ({"features": []}, error_codes.INVALID_REGISTRATION),
    ],
)
def test_registrations_that_are_refused(node: ControllerNode, changes: dict[str, Any], code: int) -> None:
    """Another cluster, no or odd directories, features that the cluster has and the broker has not."""
    response = node.register(2, 2, **changes)
    assert (response.error_code, response.broker_epoch) == (code, -1)
    assert 2 not in node.core.state.image.brokers


def test_a_directory_and_an_id_have_one_broker(node: ControllerNode) -> None:
    """A directory of another broker, or an id whose broker is alive, is refused; one that has fallen silent is not."""
    assert node.register(2, 2, log_dirs=[node.meta.directory_id]).error_code == error_codes.INVALID_REGISTRATION
    assert node.register(1, 9).error_code == error_codes.DUPLICATE_BROKER_REGISTRATION
    epoch = node.broker.image.brokers[1].broker_epoch
    assert node.register(1, 1).broker_epoch == epoch, "the same incarnation keeps its epoch"
    node.run(10_000)
    assert node.register(1, 9).broker_epoch > epoch


def test_a_feature_that_the_broker_lacks(node: ControllerNode) -> None:
    """A finalized level above what the broker supports keeps it out."""
    response = node.register(2, 2, features=[feature for feature in own_features() if feature.name != "group.version"])
    assert response.error_code == error_codes.UNSUPPORTED_VERSION


def test_the_features_of_a_registration_are_checked_in_kafkas_order(node: ControllerNode) -> None:
    """Those that are listed; then metadata.version is missing; then others that are not listed, kraft.version among them."""
    listed = {feature.name: feature for feature in own_features()}

    def refusal(*without: str, **ranges: tuple[int, int]) -> int:
        features = [feature for name, feature in listed.items() if name not in without]
        made = API_KEYS[BROKER_REGISTRATION].request.classes["Feature"]
        for name, (lowest, highest) in ranges.items():
            of = name.replace("_", ".")
            features.append(made(name=of, min_supported_version=lowest, max_supported_version=highest))
        code: int = node.register(2, 2, features=features).error_code
        return code

    assert refusal("group.version", "metadata.version", group_version=(2, 3)) == error_codes.UNSUPPORTED_VERSION
    assert refusal("group.version", "metadata.version") == error_codes.INVALID_REGISTRATION
    assert refusal("kraft.version") == error_codes.UNSUPPORTED_VERSION, "its level is 1"
    assert refusal(unknown_version=(1, 2)) == error_codes.UNSUPPORTED_VERSION, "its level is 0"
    assert refusal(unknown_version=(0, 2)) == 0


def own_features() -> list[Any]:
    from kcli.server.features import supported_features

    made = API_KEYS[BROKER_REGISTRATION].request.classes["Feature"]
    return [
        made(name=name, min_supported_version=levels.lowest, max_supported_version=levels.highest)
        for name, levels in supported_features().items()
    ]


def test_a_silent_broker_is_fenced_and_its_partitions_wait_for_it(node: ControllerNode) -> None:
    """After a session without heartbeats nobody leads; the only replica is eligible still, and leads again when it is back."""
    node.create_topic("orders")
    node.run(8_000)
    node.beat()
    node.run(8_000)
    assert not node.broker.image.brokers[1].is_fenced
    node.run(4_000)
    assert node.broker.image.brokers[1].is_fenced
    assert "broker 1 sent no heartbeat for 9000 ms" in node.lines[-1]
    fenced = partition(node)
    assert (fenced.leader, fenced.isr, fenced.eligible_leader_replicas, fenced.leader_epoch) == (-1, [], [1], 1)
    assert not node.beat().is_fenced
    back = partition(node)
    assert (back.leader, back.isr, back.eligible_leader_replicas, back.leader_epoch) == (1, [1], [], 2)


def test_a_process_that_stood_still_does_not_hold_its_own_silence_against_a_broker(node: ControllerNode) -> None:
    """The heartbeats that wait to be read count before the session's end does; without them the next check fences."""
    node.run(1_000)
    node.now_ms += 11_000
    node.timer.advance(node.now_ms)
    node.run()
    assert not node.broker.image.brokers[1].is_fenced
    node.beat()
    node.run(8_000)
    assert not node.broker.image.brokers[1].is_fenced
    node.now_ms += 11_000
    node.timer.advance(node.now_ms)
    node.run(5_000)
    assert node.broker.image.brokers[1].is_fenced


def test_an_unclean_stop_makes_the_last_replica_recover(node: ControllerNode) -> None:
    """A broker that comes back without having stopped cleanly leads as RECOVERING, and says when it has recovered."""
    node.create_topic("orders")
    node.run(10_000)
    node.register(1, 2)
    assert not node.beat().is_fenced
    found = partition(node)
    assert (found.leader, found.leader_recovery_state) == (1, "RECOVERING")
    response = alter(node, found, [1], leader_recovery_state=0)
    assert (response.error_code, response.leader_recovery_state) == (0, 0)
    assert partition(node).leader_recovery_state == "RECOVERED"


def test_a_clean_stop_does_not(node: ControllerNode) -> None:
    """The epoch of its clean stop, told at its registration, is that it had: it is as good as before.

    It registers at once: its old session ended with the permission to stop.
    """
    node.create_topic("orders")
    epoch = node.core.state.image.brokers[1].broker_epoch
    stopping = node.beat(want_shut_down=True)
    assert (stopping.should_shut_down, partition(node).leader) == (False, -1)
    node.run()
    assert node.beat(want_shut_down=True).should_shut_down
    assert node.register(1, 2, previous_broker_epoch=epoch).error_code == 0
    assert not node.beat().is_fenced
    found = partition(node)
    assert (found.leader, found.isr, found.leader_recovery_state) == (1, [1], "RECOVERED")


def test_a_controlled_shutdown_moves_the_leaders(node: ControllerNode) -> None:
    """With a second broker in sync the first one's partitions go there, and it may stop when all know."""
    node.register(2, 2)
    node.beat(2)
    node.create_topic("orders", 4, 2)
    leaders = {partition(node, index=index).leader for index in range(4)}
    assert leaders == {1, 2}
    assert not node.beat(1, want_shut_down=True).should_shut_down
    assert {partition(node, index=index).leader for index in range(4)} == {2}
    assert node.broker.image.brokers[1].is_in_controlled_shutdown
    assert not node.beat(1, want_shut_down=True).should_shut_down, "broker 2 may not know of it yet"
    node.beat(2)
    last = node.beat(1, want_shut_down=True)
    assert (last.should_shut_down, last.is_fenced) == (True, True)
    assert all(partition(node, index=index).isr == [2] for index in range(4))


FENCED, UNFENCED, STOPPING = "fenced", "unfenced", "stopping"


@pytest.mark.parametrize(
    ("state", "wants", "is_behind", "leads", "answer"),
    [
        # answer: is fenced, may shut down
        (FENCED, {"want_shut_down": True}, False, False, (True, True)),
        (FENCED, {"want_shut_down": True, "want_fence": True}, False, False, (True, True)),
        (FENCED, {"want_fence": True}, False, False, (True, False)),
        (FENCED, {}, True, False, (True, False)),
        (FENCED, {}, False, False, (False, False)),
        (UNFENCED, {}, False, True, (False, False)),
        (UNFENCED, {"want_fence": True}, False, True, (True, False)),
        (UNFENCED, {"want_fence": True, "want_shut_down": True}, False, True, (True, True)),
        (UNFENCED, {"want_shut_down": True}, False, True, (False, False)),
        (UNFENCED, {"want_shut_down": True}, False, False, (True, True)),
        (STOPPING, {"want_shut_down": True}, False, True, (False, False)),
        (STOPPING, {}, False, True, (False, False)),
    ],
)
def test_the_next_state(
    node: ControllerNode, state: str, wants: dict[str, Any], is_behind: bool, leads: bool, answer: tuple[bool, bool]
) -> None:
    """Of each state, by what the heartbeat wants (Kafka: BrokerHeartbeatManager.calculateNextBrokerState)."""
    node.register(2, 2)
    if state != FENCED:
        node.beat(2)
        if leads:
            for name in ("a", "b", "c", "d"):
                node.create_topic(name, 2, 1)
            node.create_topic("orders", 2, 2)
    if state == STOPPING:
        assert not node.beat(2, want_shut_down=True).should_shut_down
    offset = {"current_metadata_offset": 0} if is_behind else {}
    response = node.beat(2, **wants, **offset)
    assert (response.is_fenced, response.should_shut_down) == answer


def test_the_end_of_a_controlled_shutdown_does_not_move(node: ControllerNode) -> None:
    """Other brokers must know the changes that it made, not those of later, which come without end."""
    node.register(2, 2)
    node.beat(2)
    node.create_topic("orders", 4, 2)
    assert not node.beat(1, want_shut_down=True).should_shut_down
    known = node.broker.metadata_offset
    for name in ("a", "b"):
        node.create_topic(name)
        assert not node.beat(1, want_shut_down=True).should_shut_down
    assert node.broker.metadata_offset > known
    node.beat(2, current_metadata_offset=known - 1)
    assert not node.beat(1, want_shut_down=True).should_shut_down
    node.beat(2, current_metadata_offset=known)
    assert node.beat(1, want_shut_down=True).should_shut_down


@pytest.mark.parametrize(("metadata_version", "version"), [(7, 1), (8, 2), (17, 3), (29, 3), (30, 4)])
def test_the_version_of_a_registration(metadata_version: int, version: int) -> None:
    """By metadata.version, which brokers of the cluster may be too old for (Kafka: testRegisterBrokerRecordVersion)."""
    endpoints = {"PLAINTEXT": Endpoint("127.0.0.1", 9092, "PLAINTEXT")}
    none: list[Uuid] = []
    broker = BrokerRegistration(1, 1, Uuid(b"\1" * 16), endpoints, {}, None, True, False, False, none, None)
    assert broker_record(broker, metadata_version).schema_version == version


def test_the_directory_of_a_new_replica(node: ControllerNode) -> None:
    """The broker's only one; with several, or before it is registered, it chooses; and which ones are online."""
    first, second, other = (Uuid(bytes([number]) * 16) for number in (5, 6, 7))
    node.register(2, 2, log_dirs=[first])
    node.register(3, 3, log_dirs=[second, other])
    state = node.core.state
    assert [state.default_directory(broker_id) for broker_id in (2, 3, 4)] == [
        first,
        DIRECTORY_UNASSIGNED,
        DIRECTORY_UNASSIGNED,
    ]
    for directory, is_online in (
        (second, True),
        (first, False),
        (DIRECTORY_UNASSIGNED, True),
        (DIRECTORY_MIGRATING, True),
        (DIRECTORY_LOST, False),
    ):
        found = PartitionRegistration([3], [3], [], [], 3, "RECOVERED", 0, 0, [directory], [], [])
        assert state.has_online_directory(found, 3) is is_online


def test_controllers_register_from_3_7_on(tmp_path: Path) -> None:
    """Below 3.7-IV0 a ControllerRegistration is refused."""
    from tests.server.controller.test_administration import static_controller

    node = static_controller(tmp_path / "data", 14)
    request = API_KEYS[CONTROLLER_REGISTRATION].request.new(controller_id=3, incarnation_id=Uuid(b"\3" * 16))
    assert node.ask(CONTROLLER_REGISTRATION, request).error_code == error_codes.UNSUPPORTED_VERSION
    assert node.broker.image.controllers == {}


def test_brokers_that_leave_at_once_do_not_wait_for_each_other(node: ControllerNode) -> None:
    """The lowest active offset counts no broker that is leaving (Kafka: BrokerHeartbeatManager.lowestActiveOffset)."""
    for broker_id in (2, 3):
        node.register(broker_id, broker_id)
        node.beat(broker_id)
    node.create_topic("orders", 6, 3)
    assert not node.beat(1, want_shut_down=True).should_shut_down
    assert not node.beat(2, want_shut_down=True).should_shut_down
    assert {partition(node, index=index).leader for index in range(6)} == {3}
    node.beat(3)
    assert node.beat(2, want_shut_down=True).should_shut_down, "broker 1, which was heard of before, does not count"
    assert node.beat(1, want_shut_down=True).should_shut_down


def test_requests_of_the_past_are_refused(node: ControllerNode) -> None:
    """A heartbeat with another epoch, or of a broker that is not registered: STALE_BROKER_EPOCH."""
    request = API_KEYS[BROKER_HEARTBEAT].request
    for broker_id, epoch in ((1, 1), (5, 1)):
        response = node.ask(BROKER_HEARTBEAT, request.new(broker_id=broker_id, broker_epoch=epoch))
        assert response.error_code == error_codes.STALE_BROKER_EPOCH


def test_directories_that_fail_or_are_cordoned(node: ControllerNode) -> None:
    """An offline directory takes its replicas out of the ISR; a cordoned one takes no new replicas."""
    node.create_topic("orders")
    node.beat(cordoned_log_dirs=[node.meta.directory_id])
    assert node.broker.image.brokers[1].cordoned_log_dirs == [node.meta.directory_id]
    assert node.create_topic("more").error_code == error_codes.INVALID_REPLICATION_FACTOR
    node.beat(cordoned_log_dirs=[], offline_log_dirs=[node.meta.directory_id])
    assert partition(node).leader == -1


def test_a_broker_is_unregistered(node: ControllerNode) -> None:
    """It is gone; one that is not there is told."""
    node.register(2, 2)
    request = API_KEYS[UNREGISTER_BROKER].request.new(broker_id=2)
    assert node.ask(UNREGISTER_BROKER, request).error_code == 0
    assert list(node.broker.image.brokers) == [1]
    assert node.ask(UNREGISTER_BROKER, request).error_code == error_codes.BROKER_ID_NOT_REGISTERED


def test_controllers_register(node: ControllerNode) -> None:
    """This one has by itself; another may."""
    assert list(node.broker.image.controllers) == [1]
    assert node.broker.image.controllers[1].endpoints["CONTROLLER"].port == 19093
    request = API_KEYS[CONTROLLER_REGISTRATION].request.new(controller_id=3, incarnation_id=Uuid(b"\3" * 16))
    assert node.ask(CONTROLLER_REGISTRATION, request).error_code == 0
    assert list(node.broker.image.controllers) == [1, 3]


def test_controllers_are_unregistered(node: ControllerNode) -> None:
    """From 4.4-IV2 on (KIP-1312); never the active one, whose id is checked before the metadata.version."""

    def unregister(controller_id: int) -> int:
        request = API_KEYS[UNREGISTER_CONTROLLER].request.new(controller_id=controller_id)
        return int(node.ask(UNREGISTER_CONTROLLER, request).error_code)

    assert (unregister(1), unregister(3)) == (error_codes.INVALID_REQUEST, error_codes.UNSUPPORTED_VERSION)
    update = API_KEYS[UPDATE_FEATURES].request
    raised = update.classes["FeatureUpdateKey"](feature="metadata.version", max_version_level=33, upgrade_type=1)
    assert node.ask(UPDATE_FEATURES, update.new(feature_updates=[raised])).error_code == 0
    assert unregister(3) == error_codes.CONTROLLER_ID_NOT_REGISTERED
    request = API_KEYS[CONTROLLER_REGISTRATION].request.new(controller_id=3, incarnation_id=Uuid(b"\3" * 16))
    assert node.ask(CONTROLLER_REGISTRATION, request).error_code == 0
    assert (unregister(1), unregister(3)) == (error_codes.INVALID_REQUEST, 0)
    assert list(node.broker.image.controllers) == [1]


def test_producer_ids_are_given_once(node: ControllerNode) -> None:
    """Blocks of a thousand, one behind the other, also after a restart."""
    epoch = node.core.state.image.brokers[1].broker_epoch
    request = API_KEYS[ALLOCATE_PRODUCER_IDS].request.new(broker_id=1, broker_epoch=epoch)
    starts = [node.ask(ALLOCATE_PRODUCER_IDS, request).producer_id_start for _ in range(2)]
    assert starts == [0, 1000]
    assert node.broker.image.next_producer_id == 2000
    request.broker_epoch = 1
    assert node.ask(ALLOCATE_PRODUCER_IDS, request).error_code == error_codes.STALE_BROKER_EPOCH


def alter(node: ControllerNode, found: PartitionRegistration, isr: list[int], broker_id: int = 1, **changes: Any) -> Any:
    """AlterPartition of orders-0 with the epochs that it has -> the partition's result."""
    request = API_KEYS[ALTER_PARTITION].request
    brokers = node.core.state.image.brokers
    members = [
        request.classes["BrokerState"](broker_id=member, broker_epoch=brokers[member].broker_epoch if member in brokers else -1)
        for member in isr
    ]
    fields = {
        "partition_index": 0,
        "leader_epoch": found.leader_epoch,
        "partition_epoch": found.partition_epoch,
        "new_isr_with_epochs": members,
    }
    asked = request.classes["PartitionData"](**(fields | changes))
    topic = request.classes["TopicData"](topic_id=node.core.state.image.topic_ids["orders"], partitions=[asked])
    message = request.new(broker_id=broker_id, broker_epoch=brokers[broker_id].broker_epoch, topics=[topic])
    return node.ask(ALTER_PARTITION, message).topics[0].partitions[0]


def test_the_isr_follows_its_leader(node: ControllerNode) -> None:
    """The leader shrinks and grows it; others, older epochs, brokers that are not fit are refused."""
    node.register(2, 2)
    node.beat(2)
    node.create_topic("orders", 1, 2)
    leader = partition(node).leader
    other = 3 - leader
    assert alter(node, partition(node), [leader], leader).isr == [leader]
    assert partition(node).isr == [leader]
    for changes, code in (
        ({"leader_epoch": 7}, error_codes.NOT_CONTROLLER),
        ({"partition_epoch": 7}, error_codes.NOT_CONTROLLER),
        ({"leader_epoch": -1}, error_codes.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0}, error_codes.INVALID_UPDATE_VERSION),
        ({"partition_index": 9}, error_codes.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        assert alter(node, partition(node), [1, 2], leader, **changes).error_code == code
    assert alter(node, partition(node), [1, 2], other).error_code == error_codes.INVALID_REQUEST
    assert alter(node, partition(node), [other], leader).error_code == error_codes.INVALID_REQUEST
    assert alter(node, partition(node), [leader, 8], leader).error_code == error_codes.INVALID_REQUEST
    assert alter(node, partition(node), [leader], leader, leader_recovery_state=1).error_code == error_codes.INVALID_REQUEST
    grown = alter(node, partition(node), [1, 2], leader)
    assert (grown.error_code, sorted(grown.isr), grown.partition_epoch) == (0, [1, 2], partition(node).partition_epoch)
    alter(node, partition(node), [leader], leader)
    node.run(4_000)
    node.beat(leader)
    node.run(6_000)
    node.beat(leader)
    assert node.broker.image.brokers[other].is_fenced
    assert alter(node, partition(node), [1, 2], leader).error_code == error_codes.INELIGIBLE_REPLICA


def test_a_fence_of_many_partitions_is_written_in_parts(node: ControllerNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes than a batch holds: each batch is as right as all, the fencing comes last."""
    monkeypatch.setattr(quorum_controller, "MAX_RECORDS_PER_APPEND", 100)
    node.create_topic("orders", 90)
    node.create_topic("more", 90)
    node.run(12_000)
    assert node.broker.image.brokers[1].is_fenced
    for name in ("orders", "more"):
        assert all(partition(node, name, index).leader == -1 for index in range(90))
    assert node.broker.seen[-1].STRUCT.name in ("BrokerRegistrationChangeRecord", "NoOpRecord")
