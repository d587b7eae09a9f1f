"""Protects elections: who leads after a change, what becomes of the ISR and of who is eligible."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.server.controller.partition_change_builder import Election, PartitionChangeBuilder
from kcli.state.metadata_values import PartitionRegistration

DIRECTORY = Uuid(b"\5" * 16)


def partition(**fields: Any) -> PartitionRegistration:
    replicas = fields.get("replicas", [1, 2, 3])
    defaults: dict[str, Any] = {
        "replicas": replicas,
        "isr": replicas,
        "removing_replicas": [],
        "adding_replicas": [],
        "leader": replicas[0],
        "leader_recovery_state": "RECOVERED",
        "leader_epoch": 5,
        "partition_epoch": 9,
        "directories": [DIRECTORY] * len(replicas),
        "eligible_leader_replicas": [],
        "last_known_elr": [],
    }
    return PartitionRegistration(**(defaults | fields))


def change(
    found: PartitionRegistration,
    alive: set[int],
    *,
    elr: bool = True,
    election: Election = Election.ONLINE,
    version: int = 30,
    min_isr: int = 2,
) -> PartitionChangeBuilder:
    return PartitionChangeBuilder(
        Uuid(b"\1" * 16),
        0,
        found,
        alive.__contains__,
        metadata_version=version,
        min_isr=min_isr,
        is_elr_enabled=elr,
        default_directory=lambda broker_id: Uuid(bytes([broker_id]) * 16),
        election=election,
    )


def changed(made: PartitionChangeBuilder) -> dict[str, Any]:
    """What the record changes; nothing for no record."""
    record = made.build()
    if record is None:
        return {}
    quiet = {"leader": -2, "leader_recovery_state": -1}
    names = [field.attribute for field in record.STRUCT.fields if field.attribute not in ("topic_id", "partition_id")]
    return {name: getattr(record, name) for name in names if getattr(record, name) != quiet.get(name)}


def test_nothing_changes_where_nothing_does() -> None:
    assert changed(change(partition(), {1, 2, 3})) == {}


@pytest.mark.parametrize(
    ("found", "target_isr", "alive", "elr", "expected"),
    [
        # The leader leaves: the first of the replicas that is in sync and may lead follows it.
        (partition(), [2, 3], {2, 3}, True, {"isr": [2, 3], "leader": 2}),
        (partition(), [2, 3], {3}, True, {"isr": [2, 3], "leader": 3}),
        # Below min.insync.replicas who leaves stays eligible.
        (partition(), [3], {3}, True, {"isr": [3], "leader": 3, "eligible_leader_replicas": [1, 2]}),
        (partition(), [3], {3}, False, {"isr": [3], "leader": 3}),
        # The last one goes: an empty ISR with eligible replicas, else it stays in the ISR without a leader.
        (
            partition(replicas=[1], isr=[1]),
            [],
            set(),
            True,
            {"isr": [], "leader": -1, "eligible_leader_replicas": [1], "last_known_elr": [1]},
        ),
        (partition(replicas=[1], isr=[1]), [], set(), False, {"leader": -1}),
        # An eligible one is back: it leads with its whole log.
        (
            partition(isr=[], leader=-1, eligible_leader_replicas=[2, 3], last_known_elr=[2]),
            [],
            {3},
            True,
            {"isr": [3], "leader": 3, "eligible_leader_replicas": [2], "last_known_elr": []},
        ),
        # Nobody is eligible: the last known leader alone, and it starts recovering.
        (
            partition(isr=[], leader=-1, last_known_elr=[2]),
            [],
            {1, 2},
            True,
            {"isr": [2], "leader": 2, "leader_recovery_state": 1, "last_known_elr": []},
        ),
        (partition(isr=[], leader=-1, last_known_elr=[2]), [], {1}, True, {}),
        # A full ISR needs nobody eligible.
        (
            partition(isr=[1], eligible_leader_replicas=[2]),
            [1, 2],
            {1, 2, 3},
            True,
            {"isr": [1, 2], "eligible_leader_replicas": []},
        ),
    ],
)  # fmt: skip
def test_elections(
    found: PartitionRegistration, target_isr: list[int], alive: set[int], elr: bool, expected: dict[str, Any]
) -> None:
    made = change(found, alive, elr=elr)
    made.target_isr = target_isr
    assert changed(made) == expected


def test_who_stopped_uncleanly_is_not_eligible() -> None:
    made = change(partition(replicas=[1, 2]), {2})
    made.target_isr, made.unclean_replicas = [2], [1]
    assert changed(made) == {"isr": [2], "leader": 2}


def test_preferred_and_unclean_elections() -> None:
    """The first replica is preferred where it may lead; an unclean election takes anybody who is there, if nobody else."""
    assert changed(change(partition(leader=2), {1, 2, 3}, election=Election.PREFERRED)) == {"leader": 1}
    assert changed(change(partition(leader=2), {2, 3}, election=Election.PREFERRED)) == {}
    assert changed(change(partition(isr=[1], leader=-1), {3}, elr=False, election=Election.UNCLEAN)) == {
        "isr": [3],
        "leader": 3,
        "leader_recovery_state": 1,
    }
    assert changed(change(partition(isr=[1], leader=-1), {3}, elr=False)) == {}


def test_a_reassignment_completes_when_all_that_stay_are_in_sync() -> None:
    """Adding and removing are set first; the last one in sync ends it, and those to be removed go with a new epoch."""
    made = change(partition(replicas=[1, 2], isr=[1, 2]), {1, 2, 3})
    made.target_replicas, made.target_removing, made.target_adding = [2, 3, 1], [1], [3]
    assert changed(made) == {
        "replicas": [2, 3, 1],
        "removing_replicas": [1],
        "adding_replicas": [3],
        "directories": [DIRECTORY, Uuid(b"\3" * 16), DIRECTORY],
    }
    moving = partition(replicas=[2, 3, 1], isr=[1, 2], leader=1, removing_replicas=[1], adding_replicas=[3])
    made = change(moving, {1, 2, 3})
    made.target_isr = [1, 2, 3]
    assert changed(made) == {
        "isr": [2, 3],
        "leader": 2,
        "replicas": [2, 3],
        "removing_replicas": [],
        "adding_replicas": [],
        "directories": [DIRECTORY] * 2,
    }


def test_fewer_replicas_wait_for_all_of_them() -> None:
    moving = partition(replicas=[2, 1], isr=[1], leader=1, removing_replicas=[1])
    made = change(moving, {1, 2})
    assert changed(made) == {}


def test_older_metadata_versions_bump_the_epoch_with_the_isr() -> None:
    """Before 3.6-IV0 a smaller ISR alone is a new leader epoch."""
    for version, expected in ((11, {"isr": [1, 2], "leader": 1}), (12, {"isr": [1, 2]})):
        made = change(partition(), {1, 2, 3}, elr=False, version=version)
        made.target_isr = [1, 2]
        assert changed(made) == expected


ALL = {1, 2, 3, 4}
OLD, NOBODY = {"elr": False, "version": 11}, set[int]()
PLAIN: dict[str, Any] = {"elr": False}
UNCLEAN = {"elr": False, "election": Election.UNCLEAN}
WIDE = {"min_isr": 3}
D = [DIRECTORY]


def own(broker_id: int) -> Uuid:
    return Uuid(bytes([broker_id]) * 16)


# Kafka's test, the partition, what it shall become, who may lead, how, and the record.
SITUATIONS: list[tuple[str, dict[str, Any], dict[str, Any], set[int], dict[str, Any], dict[str, Any]]] = [
    ("NoLeaderEpochBumpOnIsrExpansion", {"isr": [1]}, {"isr": [1, 2]}, ALL, OLD, {"isr": [1, 2]}),
    ("LeaderEpochBumpOnNewReplicaSetDisjoint", {}, {"replicas": [1, 2, 4]}, ALL, PLAIN,
     {"replicas": [1, 2, 4], "leader": 1, "directories": [*D, *D, own(4)]}),
    ("NoLeaderEpochBumpOnEmptyTargetIsr", {"replicas": [1]}, {"isr": []}, ALL, OLD, {"leader": -1}),
    ("IsrChangeDoesntBumpLeaderEpoch", {}, {"isr": [1, 2]}, ALL, PLAIN, {"isr": [1, 2]}),
    ("IsrChangeAndLeaderChange", {}, {"isr": [2, 3]}, ALL, PLAIN, {"isr": [2, 3], "leader": 2}),
    ("ReassignmentRearrangesReplicas", {}, {"replicas": [3, 2, 1]}, ALL, PLAIN, {"replicas": [3, 2, 1]}),
    ("RevertReassignment", {"replicas": [1, 2, 3, 4], "isr": [1, 2, 3], "adding_replicas": [4]},
     {"replicas": [1, 2, 3], "adding": []}, ALL, PLAIN,
     {"replicas": [1, 2, 3], "adding_replicas": [], "leader": 1, "directories": D * 3}),
    ("RemovingReplicaReassignment", {}, {"removing": [3]}, ALL, PLAIN,
     {"replicas": [1, 2], "isr": [1, 2], "leader": 1, "directories": D * 2}),
    ("AddingReplicaReassignment", {"replicas": [1, 2]}, {"replicas": [1, 2, 3], "adding": [3]}, ALL, PLAIN,
     {"replicas": [1, 2, 3], "adding_replicas": [3], "directories": [*D, *D, own(3)]}),
    ("UncleanLeaderElection", {"isr": [1]}, {"isr": []}, {2}, UNCLEAN, {"isr": [2], "leader": 2, "leader_recovery_state": 1}),
    ("ChangeInLeadershipDoesNotChangeRecoveryState", {"isr": [1], "leader_recovery_state": "RECOVERING"}, {"isr": []}, NOBODY,
     PLAIN, {"leader": -1}),
    ("ChangeInLeadershipDoesNotChangeRecoveryState", {"isr": [1], "leader": -1, "leader_recovery_state": "RECOVERING"}, {}, {1},
     PLAIN, {"leader": 1}),
    ("UncleanSetsLeaderRecoveringState", {"isr": [1], "leader": -1}, {}, {2}, UNCLEAN,
     {"isr": [2], "leader": 2, "leader_recovery_state": 1}),
    ("UncleanSetsLeaderRecoveringState", {"isr": [1], "leader": -1, "leader_recovery_state": "RECOVERING"}, {}, {2}, UNCLEAN,
     {"isr": [2], "leader": 2}),
    ("StoppedLeaderIsDemotedAfterReassignmentCompletesEvenIfNoNewEligibleLeaders",
     {"replicas": [3, 4, 1, 2], "isr": [1, 2], "leader": 1, "removing_replicas": [1, 2], "adding_replicas": [3, 4]},
     {"isr": [1, 2, 3, 4]}, NOBODY, PLAIN,
     {"replicas": [3, 4], "isr": [3, 4], "leader": -1, "removing_replicas": [], "adding_replicas": [], "directories": D * 2}),
    ("EligibleLeaderReplicas_IsrShrinkBelowMinISR", {}, {"isr": [1]}, ALL, {},
     {"isr": [1], "eligible_leader_replicas": [2, 3]}),
    ("EligibleLeaderReplicas_lastKnownElrShouldBePopulatedWhenNoLeader", {"isr": [1], "eligible_leader_replicas": [2]},
     {"isr": []}, NOBODY, {},
     {"isr": [], "leader": -1, "eligible_leader_replicas": [1, 2], "last_known_elr": [1]}),
    ("EligibleLeaderReplicas_IsrExpandAboveMinISR", {"isr": [1], "eligible_leader_replicas": [2, 3]}, {"isr": [1, 3]}, ALL, {},
     {"isr": [1, 3], "eligible_leader_replicas": []}),
    ("EligibleLeaderReplicas_IsrAddNewMemberNotInELR",
     {"replicas": [1, 2, 3, 4], "isr": [1], "eligible_leader_replicas": [2]}, {"isr": [1, 4]}, ALL, WIDE, {"isr": [1, 4]}),
    ("EligibleLeaderReplicas_RemoveUncleanShutdownReplicasFromElr", {"isr": [1], "eligible_leader_replicas": [2, 3]},
     {"unclean": [3]}, ALL, WIDE, {"eligible_leader_replicas": [2]}),
    ("KeepsDirectoriesAfterReassignment", {"directories": [own(7), own(8), own(9)]}, {"replicas": [3, 1, 4]}, ALL, PLAIN,
     {"replicas": [3, 1, 4], "leader": 1, "directories": [own(9), own(7), own(4)]}),
    ("UpdateDirectories", {}, {"directories": {2: own(8)}}, ALL, PLAIN, {"directories": [*D, own(8), *D]}),
    ("EligibleLeaderReplicas_ElrCanBeElected", {"isr": [], "leader": -1, "eligible_leader_replicas": [2, 3]}, {}, {2}, {},
     {"isr": [2], "leader": 2, "eligible_leader_replicas": [3]}),
    ("EligibleLeaderReplicas_IsrCanShrinkToZero", {"isr": [1, 2], "eligible_leader_replicas": [3]}, {"isr": []}, NOBODY, {},
     {"isr": [], "leader": -1, "eligible_leader_replicas": [1, 2, 3], "last_known_elr": [1]}),
    ("EligibleLeaderReplicas_ElectLastKnownLeader", {"isr": [], "leader": -1, "last_known_elr": [2]}, {}, {2}, {},
     {"isr": [2], "leader": 2, "leader_recovery_state": 1, "last_known_elr": []}),
    ("EligibleLeaderReplicas_ElectLastKnownLeaderShouldFail",
     {"isr": [], "leader": -1, "eligible_leader_replicas": [1], "last_known_elr": [2]}, {}, {2}, {}, {}),
    ("EligibleLeaderReplicas_NotEligibleLastKnownLeader", {"isr": [], "leader": -1, "last_known_elr": [2]}, {}, {1, 3}, {}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "found", "target", "alive", "how", "expected"), SITUATIONS)
def test_kafkas_situations(
    name: str, found: dict[str, Any], target: dict[str, Any], alive: set[int], how: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Those of PartitionChangeBuilderTest that are not above, with our own numbers."""
    made = change(partition(**found), alive, **how)
    for key, value in target.items():
        if key == "unclean":
            made.unclean_replicas = value
        elif key == "directories":
            made.target_directories |= value
        else:
            setattr(made, f"target_{key}", value)
    assert changed(made) == expected
