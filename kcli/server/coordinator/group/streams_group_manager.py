"""The operations of streams groups of one shard (KIP-1071; Kafka: the streams part of GroupMetadataManager).

    operation                decides
    -----------------------  -------------------------------------------------------------------------------------------
    heartbeat, epoch 0       a new member, or one that begins again; the first one brings the topology
    heartbeat, above 0       a new target if the group has changed, the member's next tasks
    heartbeat, -1            the member leaves
    heartbeat, -2            a static member leaves for a time, and keeps its tasks
    describe_topology        the description of the topology, for administrators
    session timeout          the member is removed
    rebalance timeout        a member that has not revoked tasks in time is removed
    initial rebalance delay  the first target of a group that was empty, so that its members join before it

Group epoch, target epoch and member epoch follow each other as in consumer groups. A group epoch begins when a member joins,
leaves or changes, when the hash of the topics changes, when the topology becomes ready or is no longer ready, and with another
streams.num.standby.replicas. All of that is in records. Only these are not, and a load begins them anew: the timers, what the
topology needs of its topics, the epoch of the endpoints, the offsets of tasks, and the request to shut the application down.

    refused                                                       error
    ------------------------------------------------------------  ------------------------------------------------------
    epoch above 0, group or member unknown                        GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID
    epoch of another time (the last one is accepted with the      FENCED_MEMBER_EPOCH
    tasks of the member: its answer may have been lost)
    another topology of the same epoch, or of a later one         INVALID_REQUEST
    tasks that the topology does not have                         INVALID_REQUEST
    a new member while the group is full                          GROUP_MAX_SIZE_REACHED
    instance id of a member that has not left, of another member  UNRELEASED_INSTANCE_ID, FENCED_INSTANCE_ID

A member with an older topology stays, with the status STALE_TOPOLOGY.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_rebalances import Records
from kcli.server.coordinator.group.consumer_group_change import changed_subscription
from kcli.server.coordinator.group.consumer_members import committing_member, find_member, static_member
from kcli.server.coordinator.group.current_tasks import UNREVOKED
from kcli.server.coordinator.group.group_manager import ModernGroupManager, ShardParts
from kcli.server.coordinator.group.group_records import streams_current_record, streams_group_tombstones
from kcli.server.coordinator.group.streams_endpoints import endpoint_partitions
from kcli.server.coordinator.group.streams_group_change import RACK_TAGS_CONFIG, STANDBY_CONFIG, StreamsGroupChange
from kcli.server.coordinator.group.streams_heartbeat import (
    LEAVE_FOR_A_TIME,
    StreamsHeartbeat,
    StreamsHeartbeatResult,
    TaskOffsets,
    check_tasks,
    kept_offsets,
    known_member,
    left_for_a_time,
    misses_tasks,
    sending_member,
)
from kcli.server.coordinator.group.streams_topology import (
    ASSIGNMENT_DELAYED,
    MISSING_CLIENT_TAGS,
    SHUTDOWN_APPLICATION,
    STALE_TOPOLOGY,
    ConfiguredTopology,
    Status,
    Topology,
    configure_topology,
)
from kcli.server.coordinator.group.topology_descriptions import TopologyDescriptions
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.features import is_4_4
from kcli.state.group_state import subtopologies
from kcli.state.groups import NO_EPOCH, StreamsGroup, StreamsGroupMember


class _Live:
    """What a coordinator knows of a group without a record; `checked` are topics_version and group epoch of the last hash."""

    __slots__ = ("checked", "configured", "endpoint_epoch", "offsets", "shutdown_member_id")

    def __init__(self) -> None:
        self.checked: tuple[int, int] | None = None
        self.configured: ConfiguredTopology | None = None
        self.endpoint_epoch = 0
        self.shutdown_member_id: str | None = None
        self.offsets: dict[str, TaskOffsets] = {}


class StreamsGroupManager(ModernGroupManager[StreamsGroup, StreamsHeartbeat, StreamsHeartbeatResult]):
    """The streams groups of one shard.

    `remove_classic` returns the records that remove an empty classic group, and raises CoordinatorError for any other;
    `end_classic` is called when the operation that has these records is decided.
    """

    def __init__(self, parts: ShardParts, remove_classic: Callable[[str], Records], end_classic: Callable[[str], None]) -> None:
        super().__init__(StreamsGroup, parts)
        self._remove_classic = remove_classic
        self._end_classic = end_classic
        self.descriptions = TopologyDescriptions(parts.config)
        self._live: dict[str, _Live] = {}
        self._delays: dict[str, TimerTask] = {}

    def loaded(self) -> None:
        """Begin the sessions of all members, and the rebalance timeouts of those that must revoke tasks."""
        for group in self._groups():
            for member_id in group.members:
                self._begin_timers(group, member_id)

    def unloaded(self) -> None:
        """Cancel all timers."""
        self.sessions.close()
        for task in self._delays.values():
            task.cancel()
        self._delays.clear()
        self._live.clear()
        self.descriptions.clear()

    def configured(self, group_id: str) -> ConfiguredTopology | None:
        """Return the topology of a group with its topics, None if it is not ready or not known since the load."""
        live = self._live.get(group_id)
        return live.configured if live is not None and live.configured is not None and live.configured.is_ready else None

    def offsets(self, group_id: str, member_id: str) -> TaskOffsets:
        """Return the offsets of tasks that a member has stated."""
        live = self._live.get(group_id)
        return TaskOffsets() if live is None else live.offsets.get(member_id, TaskOffsets())

    def describe_topology(self, request: Message) -> Decision[None]:
        """Keep the description of a topology that a member sends. Raises CoordinatorError."""
        group = self.find(request.group_id)
        find_member(group, request.member_id)
        if request.topology_epoch != group.topology_epoch:
            text = f"does not match the group's current topology epoch {group.topology_epoch}."
            raise CoordinatorError(error_codes.INVALID_REQUEST, f"Topology epoch {request.topology_epoch} {text}")
        self.descriptions.store(group.group_id, group.topology_epoch, request)
        return Decision(None)

    def _change(self, group: StreamsGroup) -> StreamsGroupChange:
        return StreamsGroupChange(group, self._wall_ms())

    # ------------------------------------------------------------------------------------------------------- heartbeat

    def _decide(self, request: StreamsHeartbeat) -> Decision[StreamsHeartbeatResult]:
        if request.member_epoch < 0:
            return self._leave(request)
        group, records = self._group_of(request)
        change = self._change(group)
        change.records += records
        member = sending_member(change, request)
        is_new = member.member_id not in change.members
        updated = self._updated_member(change, member, request)
        topology = self._topology(change, request)
        # A group without records is made anew when they are applied, and then knows nothing of this.
        live = self._live.setdefault(group.group_id, _Live()) if group.group_id in self._state.groups else _Live()
        configured = self._advance(change, live, topology, request, is_changed=is_new or updated is not member)
        statuses = [] if group.topology_epoch <= updated.topology_epoch else [_stale(group, updated)]
        delay = self._update_target(change, live, configured)
        statuses += [] if delay is None else [delay]
        moved = change.reconcile(updated, request.owned, has_target=group.group_id not in self._delays)
        if records:
            self._end_classic(group.group_id)
        if moved.member_id not in group.members:
            self.report_joined(group, moved)
        self._extend_session(group.group_id, moved.member_id)
        if moved is not updated:
            self._watch_revocation(group.group_id, moved)
        if request.shuts_down and live.shutdown_member_id is None:
            live.shutdown_member_id = request.member_id
        result = self._result(group, live, configured, (member, moved), statuses, request)
        is_stale = group.topology_epoch > updated.topology_epoch
        if request.of_kafka_4_4 and not is_stale:
            asks = self.descriptions.ask(group.group_id, topology.epoch, self._timer.clock_ms)
            result = result._replace(requires_description=asks)
        return Decision(result, change.records)

    def _group_of(self, request: StreamsHeartbeat) -> tuple[StreamsGroup, Records]:
        """Return the group, and the records that remove an empty classic one. Raises CoordinatorError."""
        group_id = request.group_id
        if request.member_epoch:
            return self.find(group_id, "Streams group {} not found."), ()
        records: Records = ()
        self._check_new(group_id)
        group = self._state.groups.get(group_id)
        if not isinstance(group, StreamsGroup):
            records = () if group is None else self._remove_classic(group_id)
            group = StreamsGroup(group_id)
        max_size = self._config.get_int("group.streams.max.size")
        is_known = request.member_id in group.members
        if request.instance_id is not None and not is_known:
            is_known = static_member(group, request.instance_id, request.member_id) is not None
        if len(group.members) >= max_size and not is_known:
            text = f"The streams group has reached its maximum capacity of {max_size} members."
            raise CoordinatorError(error_codes.GROUP_MAX_SIZE_REACHED, text)
        return group, records

    def _updated_member(
        self, change: StreamsGroupChange, member: StreamsGroupMember, request: StreamsHeartbeat
    ) -> StreamsGroupMember:
        """Take over what the member states."""
        updated = changed_subscription(
            member,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topology_epoch=None if request.topology is None else request.topology.epoch,
            client_id=request.client_id,
            client_host=request.client_host,
            process_id=request.process_id,
            client_tags=request.client_tags,
            user_endpoint=request.user_endpoint,
        )
        if updated is not member or member.member_id not in change.members:
            change.put_member(updated)
        return updated

    def _topology(self, change: StreamsGroupChange, request: StreamsHeartbeat) -> Topology:
        """Return the topology of the group, that of the member if the group has none. Raises CoordinatorError."""
        group = change.group
        known = None if group.topology_epoch == NO_EPOCH else Topology(group.topology_epoch, group.subtopologies)
        if request.topology is None:
            if known is None:
                text = "The topology is null and the group topology is also null."
                raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, text)
            return known
        given = Topology(request.topology.epoch, subtopologies(request.topology))
        if len(given.subtopologies) < len(request.topology.subtopologies):
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, "Duplicate key of a subtopology")
        if given.epoch < 0:
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, "Topology epoch must be non-negative.")
        if known is None:
            change.put_topology(request.topology)
            return given
        if known.epoch <= given.epoch and known != given:
            raise CoordinatorError(error_codes.INVALID_REQUEST, "Topology updates are not supported yet.")
        return known

    def _advance(
        self, change: StreamsGroupChange, live: _Live, topology: Topology, request: StreamsHeartbeat, *, is_changed: bool
    ) -> ConfiguredTopology:
        """Compare the topology with its topics, and begin a group epoch if anything has changed. Raises CoordinatorError."""
        group = change.group
        configured, found, version = live.configured, group.metadata_hash, self._metadata.topics_version
        is_new = group.topology_epoch == NO_EPOCH
        is_old = live.checked is None or live.checked[0] != version or live.checked[1] > change.epoch
        if is_new or configured is None or is_old:
            found = self._hashes.group_hash(topology.required_topics)
            is_changed = is_changed or found != group.metadata_hash
            if is_new or configured is None or found != configured.metadata_hash:
                configured = live.configured = configure_topology(topology, found, self._partition_count)
        validated = NO_EPOCH
        if configured.is_ready:
            validated = topology.epoch
            check_tasks(configured, request.owned)
        if request.task_offsets is not None or request.task_end_offsets is not None:
            live.offsets = kept_offsets(live.offsets, change.members, request)
        configs = self._assignor_configs(group.group_id)
        if is_changed or validated != group.validated_topology_epoch or configs != group.assignment_configs:
            change.begin_epoch(found, validated, configs)
            self._metrics.streams_rebalances += 1
        live.checked = (version, change.epoch)
        return configured

    def _partition_count(self, name: str) -> int | None:
        topic = self._metadata.image.topic(name)
        return None if topic is None else len(topic.partitions)

    def _result(
        self,
        group: StreamsGroup,
        live: _Live,
        configured: ConfiguredTopology,
        members: tuple[StreamsGroupMember, StreamsGroupMember],
        statuses: list[Status],
        request: StreamsHeartbeat,
    ) -> StreamsHeartbeatResult:
        """Return the answer; `members` are the member before and after the heartbeat."""
        before, member = members
        has_tasks = request.member_epoch == 0 or before.assigned_tasks != member.assigned_tasks
        has_tasks = has_tasks or misses_tasks(member, request.owned)
        has_other_endpoint = has_tasks and member.user_endpoint is not None
        if self._is_4_4:
            is_moved = before.assigned_tasks != member.assigned_tasks and member.user_endpoint is not None
            has_other_endpoint = is_moved or before.user_endpoint != member.user_endpoint
        live.endpoint_epoch += has_other_endpoint
        endpoints = None
        if live.endpoint_epoch != request.endpoint_epoch:
            others = [other for other in group.members.values() if other.member_id != member.member_id]
            endpoints = endpoint_partitions([*others, member], configured, self._partition_count)
        statuses += [] if configured.problem is None else [configured.problem]
        if live.shutdown_member_id is not None:
            text = "encountered a fatal error and requested a shutdown for the entire application."
            statuses.append(Status(SHUTDOWN_APPLICATION, f"Streams group member {live.shutdown_member_id} {text}"))
        missing_tags = [tag for tag in self._rack_tags(group.group_id) if tag not in member.client_tags]
        if missing_tags and request.of_kafka_4_4:
            text = f"Missing required client tags for rack-aware standby assignment: [{', '.join(missing_tags)}]."
            text += " Configure them via 'client.tag.<tagKey>' in your Streams config."
            statuses.append(Status(MISSING_CLIENT_TAGS, text))
        return StreamsHeartbeatResult(
            member.member_id,
            member.member_epoch,
            self._group_int(group.group_id, "group.streams.heartbeat.interval.ms"),
            self._group_int(group.group_id, "group.streams.task.offset.interval.ms"),
            self._group_int(group.group_id, "group.streams.acceptable.recovery.lag"),
            tuple(statuses),
            member.assigned_tasks if has_tasks else None,
            live.endpoint_epoch if group.group_id in self._state.groups else 0,
            endpoints,
            () if configured.problem is None else tuple(configured.missing),
        )

    # ---------------------------------------------------------------------------------------------------------- target

    def _update_target(self, change: StreamsGroupChange, live: _Live, configured: ConfiguredTopology) -> Status | None:
        """Assign the tasks if the group is in a later epoch; return the status if that has to wait."""
        group_id = change.group.group_id
        delay_ms = self._group_int(group_id, "group.streams.initial.rebalance.delay.ms")
        if not change.group.members and delay_ms > 0 and group_id not in self._delays:
            at_ms = self._timer.clock_ms + delay_ms
            self._delays[group_id] = self._timer.schedule(at_ms, partial(self._end_delay, group_id))
        if group_id in self._delays:
            return Status(ASSIGNMENT_DELAYED, "Assignment delayed due to the configured initial rebalance delay.")
        if change.target_epoch >= change.epoch:
            return None
        if change.is_assignment_early(self._group_int(group_id, "group.streams.assignment.interval.ms")):
            return Status(ASSIGNMENT_DELAYED, "Assignment delayed due to the configured assignment interval.")
        self._assign(change, live, configured, self._assignor_configs(group_id))
        return None

    def _assign(
        self, change: StreamsGroupChange, live: _Live, configured: ConfiguredTopology, configs: Mapping[str, str]
    ) -> None:
        """Make the targets, in a cluster with the features of 4.4 as Kafka 4.4 does."""
        reached = {member_id: found.reached for member_id, found in live.offsets.items()}
        change.assign(configured, configs, reached if self._is_4_4 else None)

    def _assignor_configs(self, group_id: str) -> dict[str, str]:
        configs = {STANDBY_CONFIG: str(self._group_int(group_id, "group.streams.num.standby.replicas"))}
        tags = self._rack_tags(group_id)
        return configs | {RACK_TAGS_CONFIG: ",".join(tags)} if tags else configs

    def _rack_tags(self, group_id: str) -> list[str]:
        return self._group_configs.get_list(group_id, "group.streams.rack.aware.assignment.tags")

    @property
    def _is_4_4(self) -> bool:
        return is_4_4(self._metadata.image.features)

    def _end_delay(self, group_id: str, now_ms: int) -> None:
        del self._delays[group_id]
        self.sessions.execute(partial(self._assign_after_delay, group_id), "the first assignment of a group")

    def _assign_after_delay(self, group_id: str) -> Decision[None]:
        group, live = self._state.groups.get(group_id), self._live.get(group_id)
        if not isinstance(group, StreamsGroup) or not group.members or live is None or live.configured is None:
            return Decision(None)
        change = self._change(group)
        interval_ms = self._group_int(group_id, "group.streams.assignment.interval.ms")
        if change.target_epoch < change.epoch and not change.is_assignment_early(interval_ms):
            self._assign(change, live, live.configured, group.assignment_configs)
        return Decision(None, change.records)

    # ----------------------------------------------------------------------------------------------------- leave, fence

    def _leave(self, request: StreamsHeartbeat) -> Decision[StreamsHeartbeatResult]:
        group = self.find(request.group_id)
        if request.shuts_down:
            live = self._live.setdefault(request.group_id, _Live())
            live.shutdown_member_id = live.shutdown_member_id or request.member_id
        member = known_member(group, request)
        result = StreamsHeartbeatResult(request.member_id, request.member_epoch)
        if request.member_epoch == LEAVE_FOR_A_TIME:
            return Decision(result, (streams_current_record(group.group_id, left_for_a_time(member)),))
        removed = self._remove(group, member.member_id, "it has left")
        return Decision(result, removed.records, removed.settled)

    def _remove(self, group: StreamsGroup, member_id: str, reason: str) -> Decision[None]:
        self._report_removed(group.group_id, member_id, reason)
        change = self._change(group)
        change.remove_member(member_id)
        live = self._live.get(group.group_id)
        if live is not None:
            live.offsets.pop(member_id, None)
            if not change.members:
                live.shutdown_member_id = None
        return Decision(None, change.records, self._removed(group.group_id, (member_id,)))

    def _begin_timers(self, group: StreamsGroup, member_id: str) -> None:
        self._extend_session(group.group_id, member_id)
        self._watch_revocation(group.group_id, group.members[member_id])

    def _extend_session(self, group_id: str, member_id: str) -> None:
        self.sessions.extend(group_id, member_id, self._group_int(group_id, "group.streams.session.timeout.ms"))

    def _watch_revocation(self, group_id: str, member: StreamsGroupMember) -> None:
        """Begin the rebalance timeout of a member that must revoke tasks, end that of any other."""
        if member.state == UNREVOKED:
            timeout_ms = member.rebalance_timeout_ms
            self.sessions.begin_rebalance(group_id, member.member_id, member.member_epoch, timeout_ms, "tasks")
        else:
            self.sessions.end_rebalance(group_id, member.member_id)

    # -------------------------------------------------------------------------------------------------- offsets, admin

    def validate_offset_commit(
        self,
        group: StreamsGroup,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int | None,
        partitions: Iterable[tuple[str, int]],
    ) -> None:
        """Check that a member may commit offsets of partitions; `version` is that of OffsetCommit, None in a transaction.

        An epoch before the present one is accepted for inputs of active tasks that the member has had since then. Raises
        CoordinatorError.
        """
        member = committing_member(group, member_id, instance_id, epoch, version)
        if member is None:
            return
        readers = Topology(group.topology_epoch, group.subtopologies).subtopology_of
        for topic, index in partitions:
            since, key = None, readers.get(topic)
            if key is not None:
                kept = member.assigned_tasks.active.get(key, {})
                since = kept.get(index, member.tasks_pending_revocation.active.get(key, {}).get(index))
            if since is None or epoch < since:
                text = f"The task of {topic}-{index} was not assigned to the member in epoch {epoch}."
                raise CoordinatorError(error_codes.STALE_MEMBER_EPOCH, text)

    def subscribed_topics(self, group: StreamsGroup) -> frozenset[str]:
        """Return the names of the topics that a group with members reads: their offsets are kept."""
        return frozenset(Topology(group.topology_epoch, group.subtopologies).subtopology_of if group.members else ())

    def delete(self, group: StreamsGroup) -> Iterator[CoordinatorRecord]:
        """Return the records that delete a group. Raises CoordinatorError: NON_EMPTY_GROUP."""
        if group.members:
            raise CoordinatorError(error_codes.NON_EMPTY_GROUP, f"group {group.group_id} is not empty")
        self._live.pop(group.group_id, None)
        self.descriptions.remove(group.group_id)
        delay = self._delays.pop(group.group_id, None)
        if delay is not None:
            delay.cancel()
        return streams_group_tombstones(group)


def _stale(group: StreamsGroup, member: StreamsGroupMember) -> Status:
    epochs = f"epoch {member.topology_epoch} is behind the group's topology epoch {group.topology_epoch}"
    return Status(STALE_TOPOLOGY, f"The member's topology {epochs}.")
