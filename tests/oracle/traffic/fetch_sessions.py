"""Random fetches in incremental sessions (KIP-227), by names and by ids, while records and topics come and go."""

from __future__ import annotations

import random
from typing import Any

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.differential import Batch, Broker, Own, Rivals, Step, Struct, Traffic, Var, delete_records_step, produce_step

TOPICS = ("a", "b", "c")
KINDS = ["fetch"] * 14 + ["begin"] * 3 + ["produce"] * 5 + ["delete_records", "close", "delete_topic", "create_topic", "wrong"]


class FetchSessions(Traffic):
    """s1, s2 and so on are sessions; epoch:s1 is the next epoch of one, version:s1 the version that it was begun in."""

    NUMBERED = frozenset(("session_id",))

    def prepare(self, broker: Broker) -> None:
        """Three topics of two partitions."""
        for name in TOPICS:
            broker.create_topic(name, 2)

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A fetch, mostly."""
        kind = rng.choice(KINDS)
        if kind == "produce":
            return produce_step(rng.choice(TOPICS), rng.choice([0, 1]), Batch(rng.choice([1, 1, 2])))
        if kind == "delete_records":
            return delete_records_step(rng.choice(TOPICS), rng.choice([0, 1]), rng.choice([1, 2, -1]))
        if kind == "delete_topic":
            topic = Struct("DeleteTopicState", {"name": Own(rng.choice(TOPICS))})
            return None if rng.random() < 0.5 else Step(apis.DELETE_TOPICS, 6, {"topics": [topic], "timeout_ms": 5000})
        if kind == "create_topic":
            name = rng.choice(TOPICS)
            topic = Struct("CreatableTopic", {"name": Own(name), "num_partitions": -1, "assignments": _on_broker_1()})
            return Step(apis.CREATE_TOPICS, 7, {"topics": [topic], "timeout_ms": 5000}, name)
        known = [f"s{at + 1}" for at in range(leader.count("s")) if leader.values.get(f"epoch:s{at + 1}")]
        return self._fetch(rng, kind, rng.choice(known) if known and kind != "begin" else None, leader)

    def _fetch(self, rng: random.Random, kind: str, session: str | None, leader: Broker) -> Step:
        version = leader.values[f"version:{session}"] if session else rng.choice([11, 12, 13, 16, 17])
        if kind == "wrong" and session:
            version = rng.choice([version, 11, 13, 17])
        epoch: Any = 0 if rng.random() < 0.85 else -1
        if session is not None:
            epoch = -1 if kind == "close" else Var(f"epoch:{session}", 0, rng.choice([1, 5]) if kind == "wrong" else 0)
        likely = 0.6 if session is None else 0.15
        named = [(name, index) for name in TOPICS for index in (0, 1) if rng.random() < likely]
        named += [(name, 7) for name in TOPICS if rng.random() < 0.02]
        max_bytes = rng.choice([10**6, 10**6, 90, 1])
        forgotten = [(name, rng.choice([0, 1])) for name in TOPICS if session and rng.random() < 0.06]
        fields = {
            "max_wait_ms": rng.choice([0, 0, 0, 150]),
            "min_bytes": rng.choice([0, 1, 1, 5000]),
            "max_bytes": rng.choice([10**6, 10**6, 100, 1]),
            "session_id": Var(session) if session else 0,
            "session_epoch": epoch,
            "topics": [_topic(version, name, [_partition(rng, version, index, max_bytes)]) for name, index in named],
            "forgotten_topics_data": [
                Struct("ForgottenTopic", {**_named(version, name), "partitions": [index]}) for name, index in forgotten
            ],
        }
        return Step(apis.FETCH, version, fields, (session, version), "f")

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn sessions and their epochs, and the id of a topic that was made again."""
        if step.key == apis.CREATE_TOPICS and answer.topics[0].error_code == 0:
            broker.names[answer.topics[0].topic_id] = f"another {step.tag}"
            broker.values[f"id:{step.tag}"] = answer.topics[0].topic_id
        if step.key != apis.FETCH or answer.error_code:
            return
        session, version = step.tag
        epoch = broker.resolve(step.key, step.fields["session_epoch"])
        if session is None and answer.session_id:
            session = f"s{broker.count('s') + 1}"
            broker.learn(session, answer.session_id)
            broker.values[f"version:{session}"] = version
        if session is not None:
            broker.values[f"epoch:{session}"] = epoch + 1 if answer.session_id and epoch >= 0 else 0

    def seen(self, step: Step, answer: Any) -> Any:
        """Of a fetch, its partitions: how they are grouped by topic is free. An empty list of aborted transactions is none."""
        if step.key != apis.FETCH or not isinstance(answer, dict):
            return answer
        parts = [
            (topic["topic"], topic["topic_id"], {**part, "aborted_transactions": part["aborted_transactions"] or []})
            for topic in answer["responses"]
            for part in topic["partitions"]
        ]
        return {**answer, "responses": sorted(parts, key=repr)}

    def settle(self, rivals: Rivals) -> None:
        """Wait until the metadata of both brokers have the same topics of the round, and each partition its leader."""
        rivals.wait_for_topics([Own(name) for name in TOPICS])


def _on_broker_1() -> list[Struct]:
    return [Struct("CreatableReplicaAssignment", {"partition_index": index, "broker_ids": [1]}) for index in (0, 1)]


def _named(version: int, name: str) -> dict[str, Any]:
    return {"topic_id": Var(f"id:{name}")} if version >= 13 else {"topic": Own(name)}


def _topic(version: int, name: str, partitions: list[Struct]) -> Struct:
    return Struct("FetchTopic", {**_named(version, name), "partitions": partitions})


def _partition(rng: random.Random, version: int, index: int, max_bytes: int) -> Struct:
    fields = {
        "partition": index,
        "fetch_offset": rng.choice([0, 0, 1, 2, 3, 4, 99]),
        "partition_max_bytes": max_bytes,
        "current_leader_epoch": rng.choice([-1, -1, -1, 0, 3]),
    }
    if version >= 12:
        fields["last_fetched_epoch"] = rng.choice([-1] * 9 + [0, 5])
    return Struct("FetchPartition", fields)
