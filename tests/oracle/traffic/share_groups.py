"""Random requests of share groups (KIP-932): fetches, acknowledgements, members that come and go, offsets and deletions.

Which of two partitions a fetch with few records is served from is free. So a round either fetches from one partition, with
limits, or from two without. Which member gets which partition follows from the hashes of the topic's ids, which differ: the
numbers of partitions are compared.

A share partition that has to be read again (after its offsets were altered, or when a group was empty) is not there at once in
Kafka, so the first fetch of a session waits for it, for at most FIRST_WAIT_MS. And the answer to a request that ends a session
does not wait for the release of the records that the member has: KafkaApis logs the end of releaseSession and does nothing else
with it. The next fetch may come before it, so a member ends its session when it has none, and releases them before.
"""

from __future__ import annotations

import random
from typing import Any

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.differential import Batch, Broker, Own, Step, Struct, Traffic, Var, delete_records_step, produce_step
from tests.oracle.raw_requests import until
from tests.oracle.traffic.classic_groups import own_groups

GROUP, TOPIC = Own("g"), Own("t")
MEMBERS = ("a", "b")
FIRST_WAIT_MS = 500
GONE = (error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH)
SESSION_GONE = (error_codes.SHARE_SESSION_NOT_FOUND, error_codes.INVALID_SHARE_SESSION_EPOCH)
ACCEPT, RELEASE, REJECT, GAP, RENEW = 1, 2, 3, 0, 4
KINDS = ["fetch"] * 10 + ["acknowledge"] * 8 + ["produce"] * 5 + ["heartbeat"] * 3
KINDS += ["join", "leave", "describe", "offsets", "list", "alter", "delete", "delete_records"]
Acknowledged = list[tuple[int, int, list[int]]]


def member_id(name: str) -> Own:
    """The id of a member."""
    return Own(f"member-{name}")


class ShareGroups(Traffic):
    """epoch:a and session:a are the next epochs of member a and of its session, acquired:a:0 what it has of partition 0."""

    LEFT_OUT = frozenset(("acknowledge_error_message",))

    def __init__(self) -> None:
        self._is_narrow: bool | None = None

    def prepare(self, broker: Broker) -> None:
        """A topic with a record in each partition, which member a has fetched and released: the states are loaded."""
        broker.create_topic("t", 2)
        broker.find_coordinator()
        configs = [
            Struct("AlterableConfig", {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}),
        ]
        resource = Struct("AlterConfigsResource", {"resource_type": 32, "resource_name": GROUP, "configs": configs})
        broker.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
        for index in (0, 1):
            step = produce_step("t", index, Batch(2))
            broker.ask(step.key, step.version, **step.fields)
        until(lambda: self._is_assigned(broker))
        self._fetch_all(broker)

    def _is_assigned(self, broker: Broker) -> bool:
        fields = {"group_id": GROUP, "member_id": member_id("a"), "member_epoch": Var("epoch:a", 0), "rack_id": None}
        answer = broker.ask(apis.SHARE_GROUP_HEARTBEAT, 1, **fields, subscribed_topic_names=[TOPIC])
        if answer.error_code:
            return False
        broker.values["epoch:a"] = answer.member_epoch
        group = broker.ask(apis.SHARE_GROUP_DESCRIBE, 1, group_ids=[GROUP], include_authorized_operations=False).groups[0]
        assigned = [part for one in group.members for topic in one.assignment.topic_partitions for part in topic.partitions]
        return sorted(assigned) == [0, 1]

    def _fetch_all(self, broker: Broker) -> None:
        """Fetch until both partitions have given their records, and close the session."""
        session_epoch = 0
        acquired: dict[int, Acknowledged] = {}

        def fetch(parts: dict[int, Acknowledged]) -> None:
            nonlocal session_epoch
            step = self._fetch_step("a", 1, session_epoch, parts, 500, 500)
            answer = broker.ask(step.key, step.version, **step.fields)
            assert not answer.error_code, answer
            for part in (part for topic in answer.responses for part in topic.partitions):
                for one in part.acquired_records:
                    acquired.setdefault(part.partition_index, []).append((one.first_offset, one.last_offset, [RELEASE]))
            session_epoch += 1

        def is_fetched() -> bool:
            fetch({0: [], 1: []} if session_epoch == 0 else {})
            return set(acquired) == {0, 1}

        until(is_fetched)
        step = self._acknowledge_step("a", 1, session_epoch, acquired)
        answer = broker.ask(step.key, step.version, **step.fields)
        assert not answer.error_code, answer
        session_epoch = -1
        fetch({})

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of a member, or of an administrator."""
        if self._is_narrow is None:
            self._is_narrow = rng.random() < 0.5
        name, kind = rng.choice(MEMBERS), rng.choice(KINDS)
        if kind == "produce":
            return produce_step("t", 0 if self._is_narrow else rng.choice([0, 1]), Batch(rng.choice([1, 2, 3, 5])))
        if kind == "delete_records":
            return delete_records_step("t", 0, rng.choice([1, 2, 3, -1])) if rng.random() < 0.3 else None
        step: Step | None = getattr(self, f"_{kind}")(rng, name, leader)
        return step

    # ------------------------------------------------------------------------------------------------------------- records

    def _acknowledged(self, rng: random.Random, name: str, leader: Broker, likely: float) -> dict[int, Acknowledged]:
        """Acknowledgements of what a member has, for each partition."""
        found: dict[int, Acknowledged] = {}
        for index in (0, 1):
            for first, last in sorted(leader.values.get(f"acquired:{name}:{index}", ())):
                way = rng.random()
                if way > likely:
                    continue
                if way < likely * 0.55:
                    one = (first, last, [rng.choice([ACCEPT, RELEASE, REJECT, ACCEPT, GAP])])
                elif way < likely * 0.8:
                    one = (first, last, [rng.choice([GAP, ACCEPT, RELEASE, REJECT]) for _ in range(last - first + 1)])
                elif way < likely * 0.95:
                    one = (first, (first + last) // 2, [rng.choice([ACCEPT, RELEASE])])
                else:
                    one = (first, last + rng.choice([0, 1]), [RENEW])
                found.setdefault(index, []).append(one)
        return found

    def _session_epoch(self, rng: random.Random, name: str, leader: Broker) -> int:
        epoch: int = leader.values.get(f"session:{name}", 0)
        has_records = any(leader.values.get(f"acquired:{name}:{index}") for index in (0, 1))
        is_last = rng.random() < 0.05 and not has_records
        return -1 if is_last else max(epoch + rng.choice([0] * 14 + [1, -1]), 0)

    def _fetch(self, rng: random.Random, name: str, leader: Broker) -> Step:
        epoch = self._session_epoch(rng, name, leader)
        parts: dict[int, Acknowledged] = {
            index: [] for index in rng.choice([[0], [0], []] if self._is_narrow else [[0, 1], [1], []])
        }
        if epoch or rng.random() < 0.2:
            parts |= self._acknowledged(rng, name, leader, 0.6)
        records, batch = (rng.choice([500, 500, 2, 3]), rng.choice([500, 1, 2])) if self._is_narrow else (500, 500)
        version, forgotten = rng.choice([1, 2, 2]), rng.choice([[]] * 12 + [[0]])
        return self._fetch_step(name, version, epoch, parts, records, batch, forgotten, rng.choice([0, 0, 0, 1]))

    @staticmethod
    def _fetch_step(
        name: str,
        version: int,
        epoch: int,
        parts: dict[int, Acknowledged],
        max_records: int,
        batch_size: int,
        forgotten: list[int] | None = None,
        mode: int = 0,
    ) -> Step:
        topics = [Struct("FetchTopic", {"topic_id": Var("id:t"), "partitions": _partitions("FetchPartition", parts)})]
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id(name),
            "share_session_epoch": epoch,
            "max_wait_ms": 0 if epoch else FIRST_WAIT_MS,
            "min_bytes": 0,
            "max_bytes": 10**7,
            "max_records": max_records,
            "batch_size": batch_size,
            "topics": topics if parts else [],
            "forgotten_topics_data": [Struct("ForgottenTopic", {"topic_id": Var("id:t"), "partitions": forgotten})]
            if forgotten
            else [],
        }
        if version >= 2:
            fields |= {"share_acquire_mode": mode, "is_renew_ack": False}
        return Step(apis.SHARE_FETCH, version, fields, (name, parts), f"member {name}")

    def _acknowledge(self, rng: random.Random, name: str, leader: Broker) -> Step | None:
        parts = self._acknowledged(rng, name, leader, 0.95)
        if not parts and rng.random() < 0.7:
            return None
        parts = parts or {0: [(rng.randrange(5), rng.randrange(5, 8), [rng.choice([ACCEPT, RELEASE, REJECT])])]}
        return self._acknowledge_step(name, rng.choice([1, 2]), self._session_epoch(rng, name, leader), parts)

    @staticmethod
    def _acknowledge_step(name: str, version: int, epoch: int, parts: dict[int, Acknowledged]) -> Step:
        topics = [
            Struct("AcknowledgeTopic", {"topic_id": Var("id:t"), "partitions": _partitions("AcknowledgePartition", parts)})
        ]
        fields = {"group_id": GROUP, "member_id": member_id(name), "share_session_epoch": epoch, "topics": topics}
        if version >= 2:
            fields["is_renew_ack"] = False
        return Step(apis.SHARE_ACKNOWLEDGE, version, fields, (name, parts), f"member {name}")

    # ------------------------------------------------------------------------------------------------- members and offsets

    def _heartbeat(self, rng: random.Random, name: str, leader: Broker) -> Step:
        is_member = leader.values.get(f"epoch:{name}", 0) > 0
        epoch = Var(f"epoch:{name}", 0, rng.choice([0] * 9 + [1, -1]) if is_member else 0)
        topics = rng.choice([None] * 9 + [[TOPIC], [Own("nope")]]) if is_member else [TOPIC]
        return self._heartbeat_step(name, epoch, topics)

    def _join(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return self._heartbeat_step(name, 0, [TOPIC])

    def _leave(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return self._heartbeat_step(name, -1, None)

    @staticmethod
    def _heartbeat_step(name: str, epoch: Any, topics: list[Own] | None) -> Step:
        fields = {"group_id": GROUP, "member_id": member_id(name), "member_epoch": epoch, "subscribed_topic_names": topics}
        return Step(apis.SHARE_GROUP_HEARTBEAT, 1, {**fields, "rack_id": None}, name, f"member {name}")

    def _describe(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return Step(apis.SHARE_GROUP_DESCRIBE, 1, {"group_ids": [GROUP], "include_authorized_operations": False})

    def _offsets(self, rng: random.Random, name: str, leader: Broker) -> Step:
        named = [Struct("DescribeShareGroupOffsetsRequestTopic", {"topic_name": TOPIC, "partitions": [0, 1]})]
        group = {"group_id": GROUP, "topics": rng.choice([None, named])}
        return Step(apis.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": [Struct("DescribeShareGroupOffsetsRequestGroup", group)]})

    def _list(self, rng: random.Random, name: str, leader: Broker) -> Step:
        return Step(apis.LIST_GROUPS, 5, {"types_filter": ["share"]})

    def _alter(self, rng: random.Random, name: str, leader: Broker) -> Step:
        part = Struct("AlterShareGroupOffsetsRequestPartition", {"partition_index": 0, "start_offset": rng.choice([0, 1, 2])})
        topic = Struct("AlterShareGroupOffsetsRequestTopic", {"topic_name": TOPIC, "partitions": [part]})
        return Step(apis.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": GROUP, "topics": [topic]})

    def _delete(self, rng: random.Random, name: str, leader: Broker) -> Step:
        topic = Struct("DeleteShareGroupOffsetsRequestTopic", {"topic_name": TOPIC})
        return Step(apis.DELETE_SHARE_GROUP_OFFSETS, 0, {"group_id": GROUP, "topics": [topic]})

    # ------------------------------------------------------------------------------------------------------------- answers

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn the epochs of a member and its session, and what it has acquired."""
        if step.key == apis.SHARE_GROUP_HEARTBEAT:
            if answer.error_code == 0:
                broker.values[f"epoch:{step.tag}"] = max(answer.member_epoch, 0)
            elif answer.error_code in GONE:
                broker.values[f"epoch:{step.tag}"] = 0
        elif step.key in (apis.SHARE_FETCH, apis.SHARE_ACKNOWLEDGE):
            name, parts = step.tag
            epoch = step.fields["share_session_epoch"]
            if answer.error_code in SESSION_GONE or (answer.error_code == 0 and epoch == -1):
                broker.values[f"session:{name}"] = 0
            if answer.error_code == 0 and epoch >= 0:
                broker.values[f"session:{name}"] = epoch + 1
                self._learn_acquired(broker, name, parts, answer)

    @staticmethod
    def _learn_acquired(broker: Broker, name: str, parts: dict[int, Acknowledged], answer: Message) -> None:
        for index, batches in parts.items():
            held = broker.values.setdefault(f"acquired:{name}:{index}", [])
            held[:] = [one for one in held if not any(first <= one[0] and one[1] <= last for first, last, _ in batches)]
        for topic in answer.responses:
            for part in topic.partitions:
                acquired = [(one.first_offset, one.last_offset) for one in getattr(part, "acquired_records", ())]
                broker.values.setdefault(f"acquired:{name}:{part.partition_index}", []).extend(acquired)

    def seen(self, step: Step, answer: Any) -> Any:
        """Of fetches and acknowledgements the set of partitions, however they are grouped; of assignments their sizes."""
        if step.key in (apis.SHARE_FETCH, apis.SHARE_ACKNOWLEDGE) and isinstance(answer, dict):
            parts = [(topic["topic_id"], part) for topic in answer["responses"] for part in topic["partitions"]]
            return {**answer, "responses": sorted(parts, key=repr)}
        if step.key in (apis.SHARE_GROUP_HEARTBEAT, apis.SHARE_GROUP_DESCRIBE):
            answer = _with_counts(answer)
        return own_groups(step, answer)


def _with_counts(answer: Any) -> Any:
    """Replace the partitions of each topic in an assignment by their number."""
    if isinstance(answer, list):
        return [_with_counts(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    counted = {name: _with_counts(value) for name, value in answer.items()}
    if "partitions" in counted and isinstance(counted["partitions"], list):
        counted["partitions"] = len(counted["partitions"])
    return counted


def _partitions(struct: str, parts: dict[int, Acknowledged]) -> list[Struct]:
    def batches(acknowledged: Acknowledged) -> list[Struct]:
        names = ("first_offset", "last_offset", "acknowledge_types")
        return [Struct("AcknowledgementBatch", dict(zip(names, one, strict=True))) for one in acknowledged]

    return [
        Struct(struct, {"partition_index": index, "acknowledgement_batches": batches(one)})
        for index, one in sorted(parts.items())
    ]
