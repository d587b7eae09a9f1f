"""Builds the record of one partition's change: from the new replicas and ISR, it elects the leader (KIP-966, KIP-455).

    election    the leader is
    ----------  -------------------------------------------------------------------------------------------------------
    ONLINE      the present one, if it is still valid; else the first replica in sync that may lead; with an empty ISR the
                first of the eligible leader replicas (ELR); else the last known leader, if it is the only one
    PREFERRED   the first replica, if it is in sync and may lead; else as ONLINE, including the last known leader, as in
                Kafka (PartitionChangeBuilder.electPreferredLeader of 4.3)
    UNCLEAN     as ONLINE; else any replica that may lead: its log may lack records, and it starts as RECOVERING

With eligible leader replicas, a broker that leaves an ISR below min.insync.replicas stays eligible, unless it stopped
uncleanly; the ISR may become empty. Without them, the last member stays in the ISR and the partition has no leader (-1).
A reassignment is complete when all remaining replicas are in sync: then those to be removed are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.server.raft.metadata_batches import new_record
from kcli.state.image_records import DIRECTORIES_SINCE, number_of, partition_version
from kcli.state.metadata_values import (
    DIRECTORY_UNASSIGNED,
    LEADER_RECOVERY_STATES,
    NO_LEADER,
    NO_LEADER_CHANGE,
    PartitionRegistration,
)

RECOVERING = 1
# The metadata.version from which a smaller ISR alone gives no new leader epoch.
_NO_EPOCH_ON_SHRINK_SINCE = 12


class Election(StrEnum):
    """The kind of an election."""

    ONLINE = "online"
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


class PartitionChangeBuilder:
    """A partition, with the `target_...` attributes as its new state; `build` returns the record that makes the change.

    `may_lead(broker_id)` returns whether a broker may lead, `default_directory(broker_id)` the directory of a new replica.
    """

    def __init__(
        self,
        topic_id: Uuid,
        index: int,
        partition: PartitionRegistration,
        may_lead: Callable[[int], bool],
        *,
        metadata_version: int,
        min_isr: int,
        is_elr_enabled: bool,
        default_directory: Callable[[int], Uuid] = lambda broker_id: DIRECTORY_UNASSIGNED,
        election: Election = Election.ONLINE,
    ) -> None:
        self._topic_id = topic_id
        self._index = index
        self._partition = partition
        self._may_lead = may_lead
        self._metadata_version = metadata_version
        self._min_isr = min_isr
        self._is_elr_enabled = is_elr_enabled
        self._default_directory = default_directory
        self._election = election
        self.target_isr = list(partition.isr)
        self.target_replicas = list(partition.replicas)
        self.target_removing = list(partition.removing_replicas)
        self.target_adding = list(partition.adding_replicas)
        self.target_recovery_state = number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state)
        self.target_directories = dict(zip(partition.replicas, partition.directories))
        self.unclean_replicas: Iterable[int] = ()
        self._target_elr = list(partition.eligible_leader_replicas)

    def build(self) -> Message | None:
        """Return the PartitionChangeRecord, or None if nothing changes."""
        partition = self._partition
        record = new_record(
            "PartitionChangeRecord",
            schema_version=partition_version(self._metadata_version),
            topic_id=self._topic_id,
            partition_id=self._index,
        )
        self._complete_reassignment()
        self._populate_elr()
        self._elect(record)
        # A broker that is no longer a replica must see a new leader epoch.
        if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(self.target_replicas):
            record.leader = partition.leader
        self._set_elr(record)
        has_isr = bool(self.target_isr) or self._is_elr_enabled
        if record.isr is None and has_isr and self.target_isr != partition.isr:
            record.isr = self.target_isr
        is_shrink = record.isr is not None and not set(partition.isr) <= set(record.isr)
        if is_shrink and record.leader == NO_LEADER_CHANGE and self._metadata_version < _NO_EPOCH_ON_SHRINK_SINCE:
            record.leader = partition.leader
        self._set_last_known_leader(record)
        self._set_assignment(record)
        if self.target_recovery_state != number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state):
            record.leader_recovery_state = self.target_recovery_state
        return record if _has_change(record) else None

    def _complete_reassignment(self) -> None:
        if not self.target_removing and not self.target_adding:
            return
        replicas = [replica for replica in self.target_replicas if replica not in self.target_removing]
        isr = [replica for replica in self.target_isr if replica not in self.target_removing]
        added_in_sync = all(replica in isr for replica in self.target_adding)
        if len(self.target_adding) < len(self.target_removing):
            # There will be fewer replicas: all of them must be in sync, or the completion would shrink the ISR.
            added_in_sync = added_in_sync and all(replica in isr for replica in replicas)
        if replicas and isr and added_in_sync:
            self.target_replicas, self.target_isr = replicas, isr
            self.target_removing, self.target_adding = [], []

    def _populate_elr(self) -> None:
        if not self._is_elr_enabled:
            return
        if len(self.target_isr) >= self._min_isr:
            self._target_elr = []
            return
        candidates = sorted({*self._target_elr, *self._partition.isr})
        unclean = set(self.unclean_replicas)
        self._target_elr = [replica for replica in candidates if replica not in self.target_isr and replica not in unclean]

    def _is_valid_leader(self, replica: int) -> bool:
        is_in_sync = replica in self.target_isr or (not self.target_isr and replica in self._target_elr)
        return is_in_sync and self._may_lead(replica)

    def _candidates(self) -> list[int]:
        """Return the brokers that may lead without a loss of records, in the order of preference."""
        order = [self._partition.leader, *self.target_replicas]
        if self._election is Election.PREFERRED:
            order.insert(0, self.target_replicas[0])
        return [replica for replica in order if self._is_valid_leader(replica)]

    def _elect(self, record: Message) -> None:
        partition = self._partition
        candidates = self._candidates()
        leader, is_unclean = NO_LEADER, False
        if candidates:
            leader = candidates[0]
        elif self._may_elect_last_known():
            leader, is_unclean = partition.last_known_elr[0], True
        elif self._election is Election.UNCLEAN:
            leader = next(filter(self._may_lead, self.target_replicas), NO_LEADER)
            is_unclean = leader != NO_LEADER
        if leader == partition.leader:
            return
        if leader in self._target_elr:
            self.target_isr = [leader]
            self._target_elr = [replica for replica in self._target_elr if replica != leader]
        record.leader = leader
        if is_unclean:
            record.isr = [leader]
            if number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state) != RECOVERING:
                record.leader_recovery_state = RECOVERING

    def _may_elect_last_known(self) -> bool:
        known = self._partition.last_known_elr
        is_empty = not self._target_elr and not self.target_isr
        return self._is_elr_enabled and is_empty and len(known) == 1 and self._may_lead(known[0])

    def _set_elr(self, record: Message) -> None:
        if record.isr is not None or not self._is_elr_enabled:
            self._target_elr = []
        if self._target_elr != self._partition.eligible_leader_replicas:
            record.eligible_leader_replicas = self._target_elr

    def _set_last_known_leader(self, record: Message) -> None:
        if not self._is_elr_enabled:
            return
        if record.leader == NO_LEADER and not self._partition.last_known_elr:
            record.last_known_elr = [self._partition.leader]
        elif record.leader >= 0 and self._partition.last_known_elr:
            record.last_known_elr = []

    def _set_assignment(self, record: Message) -> None:
        partition = self._partition
        if self._metadata_version >= DIRECTORIES_SINCE:
            directories = [
                self.target_directories[replica] if replica in self.target_directories else self._default_directory(replica)
                for replica in self.target_replicas
            ]
            if directories != partition.directories:
                record.directories = directories
        if self.target_replicas != partition.replicas:
            record.replicas = self.target_replicas
        if self.target_removing != partition.removing_replicas:
            record.removing_replicas = self.target_removing
        if self.target_adding != partition.adding_replicas:
            record.adding_replicas = self.target_adding


def _has_change(record: Message) -> bool:
    """Return whether a PartitionChangeRecord changes anything."""
    lists = (record.isr, record.replicas, record.removing_replicas, record.adding_replicas, record.directories)
    return (
        record.leader != NO_LEADER_CHANGE
        or record.leader_recovery_state >= 0
        or any(changed is not None for changed in lists)
        or record.eligible_leader_replicas is not None
        or record.last_known_elr is not None
    )
