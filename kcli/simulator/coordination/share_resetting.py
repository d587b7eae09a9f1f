"""An administrator that sets or deletes the start offsets of a share group: AlterShareGroupOffsets, DeleteShareGroupOffsets.

Both need an empty group. So the members leave while the administrator works (`is_open` is False), and come back later. A member
that pauses then is removed from the group, but keeps its share session; the connection of a member that has died or hangs may
be open; and the broker may not have noticed that a connection is gone. Then the leader keeps the share partition: the era is
not strict (see ShareEra).

    step      requests
    --------  ----------------------------------------------------------------------------------------------------------
    close     the members leave; ShareGroupHeartbeat in the name of those that do not
    set       AlterShareGroupOffsets of some partitions, or DeleteShareGroupOffsets of the topic, until it is done
    describe  DescribeShareGroupOffsets must return the offsets that were set, and -1 after a deletion
    open      the members join again

When the workload drains, the members leave once more, and all dead connections end, so that each share partition is read
again.

`configure_share_group` sets the configs of a share group, `share_starts` reads its start offsets and lags.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    INCREMENTAL_ALTER_CONFIGS,
    SHARE_GROUP_HEARTBEAT,
)
from kcli.protocol.message import Message
from kcli.simulator.administrator import SET_OPERATION
from kcli.simulator.client import SimulatedClient, Task
from kcli.simulator.coordination.history import topic_name
from kcli.simulator.coordination.share_history import ShareEra
from kcli.simulator.coordination.stage import ECHO_SUFFIX, RETRIABLE, Caller, Stage, StageTopic
from kcli.simulator.world import PAUSE_MS

GROUP_RESOURCE = 32
_LAG_VERSION = 1
# A leader that cannot be asked for the end of a partition.
_DESCRIBE_RETRIABLE = RETRIABLE | {error_codes.NETWORK_EXCEPTION, error_codes.OFFSET_NOT_AVAILABLE}


def configure_share_group(stage: Stage, caller: Caller, group: str, *, is_committed_only: bool) -> Task[None]:
    """Let a group begin at the start of its partitions, with an isolation level. Raises SimulationFailure."""
    world = stage.world
    values = {
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed" if is_committed_only else "read_uncommitted",
    }
    entries = [
        world.struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=name, config_operation=SET_OPERATION, value=value)
        for name, value in values.items()
    ]
    resource = world.struct(
        INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", resource_type=GROUP_RESOURCE, resource_name=group, configs=entries
    )
    request = world.request(INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=False)
    version = world.versions[INCREMENTAL_ALTER_CONFIGS][1]
    while True:
        response = yield from caller.call(INCREMENTAL_ALTER_CONFIGS, version, request, may_repeat=False)
        if response is not None:
            code = response.responses[0].error_code
            caller.check(code, "IncrementalAlterConfigs of a group")
            if not code:
                return
        yield PAUSE_MS


def share_starts(stage: Stage, caller: Caller, group: str, topic: StageTopic) -> Task[dict[TopicPartition, tuple[int, int]]]:
    """Return the start offsets and lags of a group in a topic, -1 if there is none. Raises SimulationFailure."""
    world = stage.world
    asked = world.struct(
        DESCRIBE_SHARE_GROUP_OFFSETS,
        "DescribeShareGroupOffsetsRequestTopic",
        topic_name=topic_name(topic.name),
        partitions=list(range(topic.partition_count)),
    )
    of_group = world.struct(
        DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=[asked]
    )
    request = world.request(DESCRIBE_SHARE_GROUP_OFFSETS, groups=[of_group])
    while True:
        version = caller.version(DESCRIBE_SHARE_GROUP_OFFSETS, _LAG_VERSION)
        response = yield from caller.call(DESCRIBE_SHARE_GROUP_OFFSETS, version, request, may_repeat=False)
        answer = None if response is None else response.groups[0]
        caller.check(0 if answer is None else answer.error_code, "DescribeShareGroupOffsets")
        if answer is not None and not answer.error_code:
            parts = [part for described in answer.topics for part in described.partitions]
            for part in parts:
                caller.check(part.error_code, "DescribeShareGroupOffsets of a partition", _DESCRIBE_RETRIABLE)
            if not any(part.error_code for part in parts):
                return {(topic.name, part.partition_index): (part.start_offset, part.lag) for part in parts}
        yield PAUSE_MS


MAX_ERA_MS = 2000
MAX_CLOSING_MS = 1500
WAIT_MS = 3000  # for the answer, in addition to a random time
LATE_MS = 1500  # a request without an answer is executed by then
DELETED_SHARE = 0.3
LEAVE_EPOCH = -1
_NO_START = -1
_GONE = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.GROUP_ID_NOT_FOUND))
_BUSY = frozenset((error_codes.NON_EMPTY_GROUP,))


class ShareGroupGate:
    """Lets the members of a share group in, or makes them leave; `inside` are the names of those that have not left.

    `joined` are the ids of members that may be in the group. `abandoned` have the connections of members that have died or
    hang, which may be open.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.is_idle = False  # it is not closed any more
        self.inside: set[str] = set()
        self.joined: set[str] = set()
        self.abandoned: list[Caller] = []


class ShareResetter:
    """See the head of this module."""

    def __init__(self, stage: Stage, name: str, rng: Random, group: str, topic: str, gate: ShareGroupGate) -> None:
        self.is_idle = False
        self._stage = stage
        self._name = name
        self._rng = rng
        self._group = group
        self._topic = topic
        self._gate = gate
        self._caller = Caller(stage, name, rng)

    def run(self) -> Task[None]:
        """Set offsets until the workload drains. Raises SimulationFailure."""
        stage, rng, gate = self._stage, self._rng, self._gate
        while True:
            wake_ms = stage.now_ms + rng.randrange(MAX_ERA_MS)
            while stage.now_ms < wake_ms and not stage.is_draining:
                yield PAUSE_MS
            if stage.is_draining:
                break
            yield from self._close(rng.randrange(MAX_CLOSING_MS))
            yield from self._remove_members()
            yield from self._reset()
            gate.is_open = True
        yield from self._close(None)
        for caller in gate.abandoned:
            caller.disconnect()
        stage.world.network.end_dead_links()
        while self._has_connections():
            yield PAUSE_MS
        gate.is_open = gate.is_idle = True
        self.is_idle = True

    def _close(self, most_ms: int | None) -> Task[None]:
        """Let the members leave, and wait for them for some time."""
        stage, gate = self._stage, self._gate
        stage.world.trace.add(self._name, "closes")
        begin_ms, gate.is_open = stage.now_ms, False
        while gate.inside and (most_ms is None or stage.now_ms < begin_ms + most_ms):
            yield PAUSE_MS

    def _remove_members(self) -> Task[None]:
        """Remove the members that have not left: some pause, and of others the group does not know yet that they have died."""
        world, caller = self._stage.world, self._caller
        for member_id in sorted(self._gate.joined):
            request = world.request(SHARE_GROUP_HEARTBEAT, group_id=self._group, member_id=member_id, member_epoch=LEAVE_EPOCH)
            while not self._stage.is_over:
                version = caller.version(SHARE_GROUP_HEARTBEAT)
                response = yield from caller.call(SHARE_GROUP_HEARTBEAT, version, request, may_repeat=False)
                if response is not None and (not response.error_code or response.error_code in _GONE):
                    break
                caller.check(0 if response is None else response.error_code, "ShareGroupHeartbeat")
                yield PAUSE_MS
            self._gate.joined.discard(member_id)

    def _has_connections(self) -> bool:
        """Return whether the broker knows a connection of a member."""
        names = [
            link.ends[0].name
            for link in self._stage.world.network.links
            if link.is_open[1] and isinstance(link.ends[0], SimulatedClient)
        ]
        # A repeated request comes on a connection of its own; no share session begins there.
        return any(name.startswith(f"{self._group}.") and not name.endswith(ECHO_SUFFIX) for name in names)

    def _reset(self) -> Task[None]:
        """Set or delete the offsets, and check what the broker has then."""
        stage, rng = self._stage, self._rng
        topic = stage.topics[self._topic]
        if rng.random() < DELETED_SHARE:
            wanted = dict.fromkeys(topic.partitions, _NO_START)
            is_done = yield from self._delete()
        else:
            chosen = rng.sample(topic.partitions, rng.randint(1, topic.partition_count))
            wanted = {partition: self._new_start(partition) for partition in sorted(chosen)}
            is_done = yield from self._alter(wanted)
        if not is_done:
            return
        shown = ", ".join(f"{name}-{index}: {start}" for (name, index), start in wanted.items())
        stage.world.trace.add(self._name, f"has set {shown}")
        is_strict = not self._gate.inside and not self._has_connections()
        starts = {partition: max(0, start) for partition, start in wanted.items()}
        stage.history.shares.begin_era(self._group, ShareEra(starts, stage.now_ms, is_strict))
        yield from self._check(topic, wanted)

    def _new_start(self, partition: TopicPartition) -> int:
        """Return an offset up to the known end of a partition."""
        writes = self._stage.history.writes.values()
        last = max((one.offset for one in writes if one.partition == partition and one.offset is not None), default=-1)
        return 0 if self._rng.random() < 0.3 else self._rng.randint(0, last + 1)

    def _call(self, key: int, request: Message) -> Task[tuple[Message | None, bool]]:
        """Send a request; return the response, and whether it was sent. After a lost response, wait until it is executed."""
        stage, caller, sent_ms = self._stage, self._caller, self._stage.now_ms
        response = yield from caller.call(key, caller.version(key), request, wait_ms=WAIT_MS, may_repeat=False)
        is_sent = response is not None or stage.now_ms > sent_ms
        if response is None:
            yield LATE_MS if is_sent else PAUSE_MS
        return response, is_sent

    def _alter(self, wanted: Mapping[TopicPartition, int]) -> Task[bool]:
        world, caller = self._stage.world, self._caller
        parts = [
            world.struct(
                ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsetsRequestPartition", partition_index=index, start_offset=start
            )
            for (_, index), start in wanted.items()
        ]
        named = world.struct(
            ALTER_SHARE_GROUP_OFFSETS, "AlterShareGroupOffsetsRequestTopic", topic_name=self._topic, partitions=parts
        )
        request = world.request(ALTER_SHARE_GROUP_OFFSETS, group_id=self._group, topics=[named])
        while not self._stage.is_over:
            response, _ = yield from self._call(ALTER_SHARE_GROUP_OFFSETS, request)
            if response is None:
                continue
            codes = [part.error_code for topic in response.responses for part in topic.partitions]
            code = response.error_code or max(codes)
            if not code:
                return True
            caller.check(code, "AlterShareGroupOffsets", RETRIABLE | _BUSY)
            yield PAUSE_MS
        return False

    def _delete(self) -> Task[bool]:
        """Delete the offsets of the topic; return False if the group has never read it."""
        world, caller, was_sent = self._stage.world, self._caller, False
        named = world.struct(DELETE_SHARE_GROUP_OFFSETS, "DeleteShareGroupOffsetsRequestTopic", topic_name=self._topic)
        request = world.request(DELETE_SHARE_GROUP_OFFSETS, group_id=self._group, topics=[named])
        while not self._stage.is_over:
            response, is_sent = yield from self._call(DELETE_SHARE_GROUP_OFFSETS, request)
            was_sent = was_sent or (is_sent and response is None)
            if response is None:
                continue
            if response.error_code == error_codes.GROUP_ID_NOT_FOUND:
                return False
            code = response.error_code or response.responses[0].error_code
            # There is nothing to delete: an earlier request may have done it.
            if not code or (code == error_codes.UNKNOWN_TOPIC_OR_PARTITION and not response.error_code):
                return not code or was_sent
            caller.check(code, "DeleteShareGroupOffsets", RETRIABLE | _BUSY)
            was_sent = was_sent or code not in _BUSY
            yield PAUSE_MS
        return False

    def _check(self, topic: StageTopic, wanted: Mapping[TopicPartition, int]) -> Task[None]:
        """Compare the start offsets of the broker with those that were set."""
        starts = yield from share_starts(self._stage, self._caller, self._group, topic)
        for partition, start in wanted.items():
            found = starts[partition][0]
            if found != start:
                self._stage.history.shares.wrong_starts.append(
                    f"{self._group} has start offset {found} in {partition[0]}-{partition[1]}, but {start} was set"
                )
