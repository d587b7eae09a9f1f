"""What an administrator does with share groups: sets their configs, and reads their lags."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.apis import DESCRIBE_SHARE_GROUP_OFFSETS, INCREMENTAL_ALTER_CONFIGS
from kcli.simulator.administrator import SET_OPERATION
from kcli.simulator.client import Task
from kcli.simulator.coordination.history import TopicPartition, topic_name
from kcli.simulator.coordination.stage import RETRIABLE, Caller, Stage, StageTopic
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
