"""Random requests of classic groups: joins, syncs, heartbeats, leaves and commits, right and wrong, of up to five members."""

from __future__ import annotations

import random
from typing import Any

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.differential import Broker, Own, Step, Struct, Traffic, Var

GROUP = Own("g")
INSTANCES = (None, None, None, None, "i1", "i2")
KINDS = (
    ["join"] * 5
    + ["sync"] * 5
    + ["heartbeat"] * 2
    + ["leave", "commit", "offsets", "describe", "list", "delete", "offset_delete"]
)


class ClassicGroups(Traffic):
    """One group. `g` has the generation that a broker has told last; m1, m2 and so on are the member ids that it gave."""

    def prepare(self, broker: Broker) -> None:
        """A topic, and a coordinator."""
        broker.create_topic("t", 2)
        broker.find_coordinator()

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of a member that there is, mostly."""
        known = [Var(f"m{at + 1}", "") for at in range(leader.count("m"))]
        member = rng.choice(known) if known and rng.random() < 0.8 else rng.choice([*known, "", "bogus"])
        generation = -1 if rng.random() < 0.05 else Var("generation", 0, rng.choice([0] * 8 + [-1, 1]))
        who = {"group_id": GROUP, "generation_id": generation, "member_id": member}
        kind = rng.choice(KINDS)
        if kind == "leave" and leader.is_waiting(apis.SYNC_GROUP):
            return None  # the sync of a member that leaves is refused by kcli, and never answered by Kafka 4.3
        draw = getattr(self, f"_{kind}")
        step: Step = draw(rng, who, known)
        return step._replace(connection=f"c{rng.randrange(6)}")

    def _join(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        version = rng.choice([2, 3, 4, 5, 7, 9])
        protocols = rng.choice([["range", "rr"]] * 14 + [["range"], ["rr"], ["rr", "range"], ["sticky"], [], ["x"]])
        salt = rng.choice([b"a", b"a", b"a", b"b"])
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "session_timeout_ms": rng.choice([30_000] * 8 + [500, 4_000_000]),
            "rebalance_timeout_ms": 60_000,
            "member_id": "" if rng.random() < 0.35 else who["member_id"],
            "protocol_type": rng.choice(["consumer"] * 12 + ["other", ""]),
            "protocols": [Struct("JoinGroupRequestProtocol", {"name": name, "metadata": salt}) for name in protocols],
        }
        if version >= 5:
            fields["group_instance_id"] = rng.choice(INSTANCES)
        return Step(apis.JOIN_GROUP, version, fields, may_wait=True)

    def _sync(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        version = rng.choice([2, 3, 5])
        assigned = rng.sample(known, min(len(known), rng.randrange(3)))
        make = [Struct("SyncGroupRequestAssignment", {"member_id": one, "assignment": one.name.encode()}) for one in assigned]
        fields = {**who, "assignments": make}
        if version >= 3:
            fields["group_instance_id"] = rng.choice(INSTANCES)
        if version >= 5:
            fields["protocol_type"] = rng.choice([None] * 3 + ["consumer"] * 4 + ["zzz"])
            fields["protocol_name"] = rng.choice([None] * 4 + ["range"] * 4 + ["rr"])
        return Step(apis.SYNC_GROUP, version, fields, may_wait=True)

    def _heartbeat(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        return Step(apis.HEARTBEAT, 3, {**who, "group_instance_id": rng.choice(INSTANCES)})

    def _leave(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        ids = [
            {"member_id": rng.choice([*known, "", "bogus"]), "group_instance_id": rng.choice([None, None, "i1", "i2"])}
            for _ in range(rng.choice([1, 2]))
        ]
        return Step(apis.LEAVE_GROUP, 4, {"group_id": GROUP, "members": [Struct("MemberIdentity", one) for one in ids]})

    def _commit(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        part = {
            "partition_index": rng.choice([0, 1, 9]),
            "committed_offset": rng.choice([5, 7, -3]),
            "committed_metadata": rng.choice(["", "m", None, "x" * 5000]),
        }
        name = rng.choice([Own("t"), Own("t"), "nope"])
        parts = [Struct("OffsetCommitRequestPartition", part)]
        fields = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": who["generation_id"],
            "member_id": who["member_id"],
            "group_instance_id": rng.choice(INSTANCES),
            "topics": [Struct("OffsetCommitRequestTopic", {"name": name, "partitions": parts})],
        }
        return Step(apis.OFFSET_COMMIT, 8, fields)

    def _offsets(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        topic = Struct("OffsetFetchRequestTopics", {"name": Own("t"), "partition_indexes": [0, 1, 9]})
        group = Struct("OffsetFetchRequestGroup", {"group_id": GROUP, "topics": rng.choice([None, [topic]])})
        return Step(apis.OFFSET_FETCH, 8, {"groups": [group]})

    def _describe(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        return Step(apis.DESCRIBE_GROUPS, 5, {"groups": [GROUP]})

    def _list(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        states = rng.choice([[], ["Stable"], ["Empty", "Dead"], ["PreparingRebalance"], ["bogus"]])
        types = rng.choice([[], ["classic"], ["consumer"], ["zz"]])
        return Step(apis.LIST_GROUPS, 5, {"states_filter": states, "types_filter": types})

    def _delete(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        return Step(apis.DELETE_GROUPS, 2, {"groups_names": [GROUP]})

    def _offset_delete(self, rng: random.Random, who: dict[str, Any], known: list[Var]) -> Step:
        parts = [Struct("OffsetDeleteRequestPartition", {"partition_index": index}) for index in (0, 9)]
        topic = Struct("OffsetDeleteRequestTopic", {"name": Own("t"), "partitions": parts})
        return Step(apis.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": [topic]})

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn the member id and the generation of a join."""
        if step.key != apis.JOIN_GROUP:
            return
        if answer.member_id and answer.member_id not in (*broker.names, "bogus"):
            broker.learn(f"m{broker.count('m') + 1}", answer.member_id)
        if answer.error_code == 0:
            broker.values["generation"] = answer.generation_id

    def seen(self, step: Step, answer: Any) -> Any:
        """Of a list of groups, the own one."""
        return own_groups(step, answer)


def own_groups(step: Step, answer: Any) -> Any:
    """Of a list of groups, those of this round."""
    if step.key == apis.LIST_GROUPS and isinstance(answer, dict):
        return {**answer, "groups": [one for one in answer["groups"] if one["group_id"].startswith("~")]}
    return answer
