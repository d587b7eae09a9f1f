"""Random requests of streams groups (KIP-1071): four members in three processes, with one topology of several kinds."""

from __future__ import annotations

import random
from typing import Any

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.differential import Broker, Made, Own, Step, Struct, Traffic, Var
from tests.oracle.raw_requests import until
from tests.oracle.traffic.classic_groups import own_groups

GROUP = Own("g")
# The internal topics exist: brokers create them at a time of their own, and groups wait for them.
TOPICS = {"ta": 3, "tb": 2, "tc": 3, "changelog": 3, "changelog-2": 3, "repartition": 3}
PROCESSES = {"a": "p1", "b": "p1", "c": "p2", "d": "p3"}
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
GONE = (error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH, error_codes.UNRELEASED_INSTANCE_ID)
KINDS = (
    ["join"] * 5
    + ["heartbeat"] * 10
    + ["acknowledge"] * 8
    + ["leave"] * 2
    + ["describe", "list", "commit", "wrong", "shutdown", "delete"]
)


def _topics(*names: str) -> list[Own]:
    return [Own(name) for name in names]


def _internal(name: str) -> Struct:
    return Struct("TopicInfo", {"name": Own(name), "partitions": 0, "replication_factor": 1})


def _together() -> list[Struct]:
    return [Struct("CopartitionGroup", {"source_topics": [0, 1]})]


TOPOLOGIES: tuple[list[dict[str, Any]], ...] = (
    [{"source_topics": _topics("ta")}, {"source_topics": _topics("tb")}],
    [
        {
            "source_topics": _topics("ta", "tc"),
            "copartition_groups": _together(),
            "state_changelog_topics": [_internal("changelog")],
        }
    ],
    [
        {"source_topics": _topics("ta"), "repartition_sink_topics": _topics("repartition")},
        {"repartition_source_topics": [_internal("repartition")], "state_changelog_topics": [_internal("changelog-2")]},
    ],
    [{"source_topics": _topics("ta", "tb"), "copartition_groups": _together()}],  # which do not fit
    [{"source_topics": _topics("missing")}],
)


class StreamsGroups(Traffic):
    """epoch:a is the epoch of member a, tasks:a the tasks that it was assigned, by role."""

    LEFT_OUT = frozenset(
        (
            "status_detail",
            "acceptable_recovery_lag",
            "task_offset_interval_ms",
            "topology_description",
            "topology_description_status",
            "topology_description_required",
            "assignor_name",
        )
    )

    def __init__(self) -> None:
        self._topology = 0

    def prepare(self, broker: Broker) -> None:
        """Topics, and a coordinator."""
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions)
        broker.find_coordinator()
        config = {"name": "streams.num.standby.replicas", "config_operation": 0, "value": "1"}
        resource = {"resource_type": 32, "resource_name": GROUP, "configs": [Struct("AlterableConfig", config)]}
        broker.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[Struct("AlterConfigsResource", resource)])
        named = Struct("DescribeConfigsResource", {"resource_type": 32, "resource_name": GROUP})

        def is_configured() -> bool:
            configs = broker.ask(apis.DESCRIBE_CONFIGS, 4, resources=[named]).results[0].configs
            return ("streams.num.standby.replicas", "1") in [(one.name, one.value) for one in configs]

        until(is_configured)

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of a member; the first one chooses the topology of the round."""
        if not leader.values.get("is drawn"):
            leader.values["is drawn"] = True
            self._topology = rng.choice([0, 0, 1, 2, 3])
        name, kind = rng.choice(list(PROCESSES)), rng.choice(KINDS)
        if kind in ("heartbeat", "acknowledge", "shutdown") and leader.values.get(f"epoch:{name}", 0) <= 0:
            kind = "join"
        step: Step | None = getattr(self, f"_{kind}")(rng, name)
        return step

    def _heartbeat_step(self, name: str, **fields: Any) -> Step:
        given = {"group_id": GROUP, "member_id": Own(f"member-{name}"), "rebalance_timeout_ms": -1, **fields}
        return Step(apis.STREAMS_GROUP_HEARTBEAT, 0, given, name)

    def _join(self, rng: random.Random, name: str) -> Step:
        kind = self._topology if rng.random() < 0.9 else rng.choice([0, 1, 4])
        endpoint = rng.choice([None] * 3 + [Struct("Endpoint", {"host": "h", "port": 1})])
        return self._heartbeat_step(
            name,
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            topology=topology(kind, rng.choice([0] * 9 + [1])),
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            process_id=PROCESSES[name],
            user_endpoint=endpoint,
            client_tags=rng.choice([[]] * 3 + [[Struct("KeyValue", {"key": "zone", "value": "a"})]]),
        )

    def _heartbeat(self, rng: random.Random, name: str) -> Step:
        return self._heartbeat_step(name, member_epoch=Var(f"epoch:{name}", 0, rng.choice([0] * 16 + [-1, 1])))

    def _acknowledge(self, rng: random.Random, name: str) -> Step:
        # All of them: to a member that misses some, kcli returns its tasks again, and Kafka 4.3 does not.
        def tasks(role: str) -> Made:
            def make(broker: Broker) -> list[Any]:
                found = broker.values.get(f"tasks:{name}", {}).get(role, {})
                structs = [Struct("TaskIds", {"subtopology_id": key, "partitions": value}) for key, value in found.items()]
                made: list[Any] = broker.resolve(apis.STREAMS_GROUP_HEARTBEAT, structs)
                return made

            return Made(f"{role} of {name}", make)

        return self._heartbeat_step(name, member_epoch=Var(f"epoch:{name}", 0), **{role: tasks(role) for role in ROLES})

    def _shutdown(self, rng: random.Random, name: str) -> Step | None:
        if rng.random() < 0.6:
            return None
        return self._heartbeat_step(name, member_epoch=Var(f"epoch:{name}", 0), shutdown_application=True)

    def _leave(self, rng: random.Random, name: str) -> Step:
        return self._heartbeat_step(name, member_epoch=rng.choice([-1, -1, -2]))

    def _wrong(self, rng: random.Random, name: str) -> Step:
        right: dict[str, Any] = {"member_epoch": 0, "rebalance_timeout_ms": 100, "topology": topology(0, 0), "process_id": "p1"}
        right |= {role: [] for role in ROLES}
        owned = [Struct("TaskIds", {"subtopology_id": "0", "partitions": [0]})]
        wrong: list[dict[str, Any]] = [
            {"group_id": ""},
            {"member_id": ""},
            {"member_epoch": -3},
            {"rebalance_timeout_ms": -1},
            {"topology": None},
            {"active_tasks": None},
            {"member_epoch": -2},
            {"active_tasks": owned},
        ]
        return self._heartbeat_step(name, **{**right, **rng.choice(wrong)})._replace(tag=None)

    def _describe(self, rng: random.Random, name: str) -> Step:
        return Step(apis.STREAMS_GROUP_DESCRIBE, 0, {"group_ids": [GROUP]})

    def _list(self, rng: random.Random, name: str) -> Step:
        return Step(apis.LIST_GROUPS, 5, {"types_filter": ["streams"]})

    def _delete(self, rng: random.Random, name: str) -> Step:
        return Step(apis.DELETE_GROUPS, 2, {"groups_names": [GROUP]})

    def _commit(self, rng: random.Random, name: str) -> Step:
        epoch = Var(f"epoch:{name}", 0, rng.choice([0, 0, -1, 1]))
        who, epoch_of = rng.choice([(Own(f"member-{name}"), epoch)] * 6 + [("", -1), ("bogus", 1)])
        part = Struct("OffsetCommitRequestPartition", {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""})
        topics = [Struct("OffsetCommitRequestTopic", {"name": Own("ta"), "partitions": [part]})]
        fields = {"group_id": GROUP, "generation_id_or_member_epoch": epoch_of, "member_id": who, "topics": topics}
        return Step(apis.OFFSET_COMMIT, 9, fields)

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn the epoch and the tasks of a member."""
        if step.key != apis.STREAMS_GROUP_HEARTBEAT or step.tag is None:
            return
        if answer.error_code == 0:
            broker.values[f"epoch:{step.tag}"] = max(answer.member_epoch, 0)
            if answer.active_tasks is not None:
                broker.values[f"tasks:{step.tag}"] = {
                    role: {one.subtopology_id: sorted(one.partitions) for one in getattr(answer, role) or []} for role in ROLES
                }
        elif answer.error_code in GONE:
            broker.values[f"epoch:{step.tag}"] = 0
            broker.values[f"tasks:{step.tag}"] = {}

    def seen(self, step: Step, answer: Any) -> Any:
        """Of a list of groups, the own one."""
        return own_groups(step, answer)


def topology(kind: int, epoch: int) -> Struct:
    """A topology; its subtopologies are numbered."""
    parts = [Struct("Subtopology", {"subtopology_id": str(at), **fields}) for at, fields in enumerate(TOPOLOGIES[kind])]
    return Struct("Topology", {"epoch": epoch, "subtopologies": parts})
