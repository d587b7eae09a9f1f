"""Random requests of consumer groups (KIP-848), with members of the classic protocol, commits and deletions among them."""

from __future__ import annotations

import random
import struct
from typing import Any

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.differential import Broker, Made, Own, Step, Struct, Traffic, Var
from tests.oracle.traffic.classic_groups import own_groups

GROUP = Own("g")
TOPICS = {"ta": 3, "tb": 2, "tc": 1}
MEMBERS = ("a", "b", "c", "d")
INSTANCES = {"c": "i1", "d": "i2"}
GONE = (error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH, error_codes.UNRELEASED_INSTANCE_ID)
KINDS = (
    ["join"] * 4
    + ["heartbeat"] * 10
    + ["acknowledge"] * 6
    + ["leave"] * 2
    + ["commit"] * 2
    + ["fetch", "describe", "list", "wrong", "delete"]
    + ["classic_join"] * 2
    + ["classic_sync"] * 3
    + ["classic_heartbeat"] * 2
)


def member_id(name: str) -> Own:
    """The id of a member: a name of the round, as long as that of a client."""
    return Own(f"member-{name}")


class ConsumerGroups(Traffic):
    """One group of four members with ids of their own, and of two classic ones; epoch:a is the epoch of member a.

    The uniform assignor is left out: whom it gives the odd partition depends on the order of a hash map of member ids.
    """

    LEFT_OUT = frozenset(("leader",))

    def prepare(self, broker: Broker) -> None:
        """Topics, and a coordinator."""
        for name, partitions in TOPICS.items():
            broker.create_topic(name, partitions)
        broker.find_coordinator()

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of a member; one that is not in the group joins."""
        name, kind = rng.choice(MEMBERS), rng.choice(KINDS)
        if kind in ("heartbeat", "acknowledge") and leader.values.get(f"epoch:{name}", 0) <= 0:
            kind = "join"
        if kind.startswith("classic"):
            return self._classic(rng, kind, leader)
        step: Step = getattr(self, f"_{kind}")(rng, name, leader)
        return step

    def _heartbeat_step(self, name: str, **fields: Any) -> Step:
        given = {"group_id": GROUP, "member_id": member_id(name), "rebalance_timeout_ms": -1, **fields}
        return Step(apis.CONSUMER_GROUP_HEARTBEAT, 1, given, name)

    def _join(self, rng: random.Random, name: str, leader: Broker) -> Step:
        usual = [["ta"], ["ta", "tb"], ["ta", "tb", "tc"]]
        topics = rng.choice(usual * 4 + [["tc", "nope"], [], ["tb"]])
        return self._heartbeat_step(
            name,
            member_epoch=0,
            instance_id=INSTANCES.get(name),
            rack_id=rng.choice([None, None, "r1"]),
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[Own(topic) for topic in topics],
            server_assignor=rng.choice([None, None, None, "range", "range", "bogus"]),
            topic_partitions=[] if rng.random() < 0.9 else [_partitions("ta", [0])],
        )

    def _heartbeat(self, rng: random.Random, name: str, leader: Broker) -> Step:
        owned = rng.choice([None, None, None, Var(f"owned:{name}", []), [_partitions("ta", [0, 1])], []])
        topics = rng.choice([None] * 6 + [["ta"], ["ta", "tb", "tc"]])
        return self._heartbeat_step(
            name,
            member_epoch=Var(f"epoch:{name}", 0, rng.choice([0] * 15 + [-1, 1])),
            instance_id=INSTANCES.get(name) if rng.random() < 0.3 else None,
            subscribed_topic_names=None if topics is None else [Own(topic) for topic in topics],
            server_assignor=rng.choice([None] * 8 + ["range", "bogus"]),
            topic_partitions=owned,
            rebalance_timeout_ms=rng.choice([-1] * 5 + [60_000]),
        )

    def _acknowledge(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return self._heartbeat_step(name, member_epoch=Var(f"epoch:{name}", 0), topic_partitions=Var(f"owned:{name}", []))

    def _leave(self, rng: random.Random, name: str, leader: Broker) -> Step:
        instance_id = INSTANCES.get(name) if rng.random() < 0.8 else None
        return self._heartbeat_step(name, member_epoch=rng.choice([-1, -1, -2]), instance_id=instance_id)

    def _wrong(self, rng: random.Random, name: str, leader: Broker) -> Step:
        wrong: dict[str, Any] = rng.choice(
            [
                {"group_id": "", "member_epoch": 0},
                {"member_id": "", "member_epoch": 1},
                {"member_epoch": -3},
                {"member_epoch": 0},
                {"member_epoch": 0, "rebalance_timeout_ms": 5000, "topic_partitions": []},
                {"member_epoch": -2},
                {"member_epoch": 0, "rebalance_timeout_ms": 5, "subscribed_topic_names": [Own("ta")]},
            ]
        )
        return self._heartbeat_step(name, **wrong)._replace(tag=None)

    def _commit(self, rng: random.Random, name: str, leader: Broker) -> Step:
        version = rng.choice([8, 9, 10])
        who, epoch = rng.choice(
            [(member_id(name), Var(f"epoch:{name}", 0, rng.choice([0, 0, -1, 1])))] * 6 + [("", -1), ("bogus", 1)]
        )
        part = Struct("OffsetCommitRequestPartition", {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""})
        topic = {"topic_id": Var("id:ta")} if version >= 10 else {"name": Own("ta")}
        topics = [Struct("OffsetCommitRequestTopic", {**topic, "partitions": [part]})]
        fields = {"group_id": GROUP, "generation_id_or_member_epoch": epoch, "member_id": who, "topics": topics}
        return Step(apis.OFFSET_COMMIT, version, fields)

    def _fetch(self, rng: random.Random, name: str, leader: Broker) -> Step:
        version = rng.choice([9, 10])
        who, epoch = rng.choice([(None, -1), (member_id(name), Var(f"epoch:{name}", 0, rng.choice([0, -1]))), ("bogus", 1)])
        topic = {"topic_id": Var("id:ta")} if version >= 10 else {"name": Own("ta")}
        topics = rng.choice([None, [Struct("OffsetFetchRequestTopics", {**topic, "partition_indexes": [0, 1]})]])
        group = {"group_id": GROUP, "member_id": who, "member_epoch": epoch, "topics": topics}
        return Step(apis.OFFSET_FETCH, version, {"groups": [Struct("OffsetFetchRequestGroup", group)]})

    def _describe(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return Step(apis.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [GROUP]})

    def _list(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return Step(apis.LIST_GROUPS, 5, {})

    def _delete(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return Step(apis.DELETE_GROUPS, 2, {"groups_names": [GROUP]})

    def _classic(self, rng: random.Random, kind: str, leader: Broker) -> Step | None:
        """A request of a classic member; each has a connection and an instance id of its own."""
        connection = rng.choice(["x", "y"])
        who = Var(f"classic:{connection}", "")
        if kind != "classic_join" and not leader.values.get(who.name):
            return None
        if kind == "classic_join":
            topics = rng.choice([["ta"], ["ta", "tb"], ["ta", "tb"]])
            protocols = rng.choice([["range"]] * 8 + [["range", "x"], ["x"]])
            fields = {
                "group_id": GROUP,
                "session_timeout_ms": 40_000,
                "rebalance_timeout_ms": 60_000,
                "member_id": rng.choice([who, ""]),
                "protocol_type": "consumer",
                "group_instance_id": f"s-{connection}",
                "protocols": [_protocol(name, topics) for name in protocols],
            }
            return Step(apis.JOIN_GROUP, 5, fields, connection, connection, may_wait=True)
        generation = Var(f"generation:{connection}", 0, rng.choice([0, 0, 0, 0, -1, 1]))
        fields = {"group_id": GROUP, "generation_id": generation, "member_id": who}
        if kind == "classic_heartbeat":
            instance_id = rng.choice([None, f"s-{connection}", f"s-{connection}", "i1"])
            return Step(apis.HEARTBEAT, 3, {**fields, "group_instance_id": instance_id})
        fields |= {"protocol_type": "consumer", "protocol_name": "range"}
        return Step(apis.SYNC_GROUP, 5, fields, connection, connection, may_wait=True)

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn the epoch and the partitions of a member, and the id and the generation of a classic one."""
        if step.key == apis.JOIN_GROUP:
            if answer.member_id:
                if answer.member_id not in broker.names:
                    broker.learn(f"classic member {broker.count('classic member ') + 1}", answer.member_id)
                broker.values[f"classic:{step.tag}"] = answer.member_id
            if answer.error_code == 0:
                broker.values[f"generation:{step.tag}"] = answer.generation_id
        elif step.key == apis.CONSUMER_GROUP_HEARTBEAT and step.tag is not None:
            if answer.error_code == 0:
                broker.values[f"epoch:{step.tag}"] = max(answer.member_epoch, 0)
                if answer.assignment is not None:
                    owned = [
                        Struct("TopicPartitions", {"topic_id": one.topic_id, "partitions": list(one.partitions)})
                        for one in answer.assignment.topic_partitions
                    ]
                    broker.values[f"owned:{step.tag}"] = broker.resolve(step.key, owned)
            elif answer.error_code in GONE:
                broker.values[f"epoch:{step.tag}"] = 0
                broker.values[f"owned:{step.tag}"] = []

    def seen(self, step: Step, answer: Any) -> Any:
        """Of a join, only how many members its leader sees: their metadata name topics of the round."""
        if step.key == apis.JOIN_GROUP and isinstance(answer, dict):
            return {**answer, "members": len(answer["members"])}
        if step.key == apis.SYNC_GROUP and isinstance(answer, dict):
            return {**answer, "assignment": len(answer["assignment"])}
        return own_groups(step, answer)


def _partitions(topic: str, indexes: list[int]) -> Struct:
    return Struct("TopicPartitions", {"topic_id": Var(f"id:{topic}"), "partitions": indexes})


def _protocol(name: str, topics: list[str]) -> Struct:
    """A protocol of a classic member with its subscription in version 1."""

    def subscription(broker: Broker) -> bytes:
        names = [broker.own(topic).encode() for topic in topics]
        found = b"".join(struct.pack(">h", len(one)) + one for one in names)
        return struct.pack(">hi", 1, len(names)) + found + struct.pack(">ii", -1, 0)

    return Struct("JoinGroupRequestProtocol", {"name": name, "metadata": Made(f"subscription to {topics}", subscription)})
