"""Random fetches of two invented followers, 2 and 3, of partitions that the real broker leads: ISR, high watermarks, errors.

The followers have what they say; batches have one record, since no follower fetches from inside of a batch. After each step the
ISR and the high watermarks that the real broker describes are compared.
"""

from __future__ import annotations

import random
import time
from typing import Any

from kcli.protocol import apis
from kcli.protocol.message import Message
from tests.oracle.differential import Batch, Broker, Own, Rivals, Step, Struct, Var, delete_records_step, produce_step
from tests.oracle.raw_requests import until
from tests.oracle.traffic.controllers import INVENTED, SETTLE_SECONDS, Controllers, brokers, heartbeat

# Replicas by partition, and min.insync.replicas.
TOPICS = {"fa": ([[1, 2, 3], [1, 3, 2]], "1"), "fb": ([[1, 2], [1, 3]], "2")}
KINDS = ["follow"] * 12 + ["produce"] * 5 + ["read"] * 3 + ["list", "list", "delete", "fence", "unfence", "unfence"]
REPLICA_STATE_VERSION, TOPIC_IDS_VERSION = 15, 13


class Followers(Controllers):
    """end:fa-0 is the log end of fa-0."""

    # A leader of kcli answers a fetch with the high watermark after it, Kafka with the one before it.
    LEFT_OUT = frozenset(("high_watermark", "last_stable_offset"))

    def __init__(self) -> None:
        self.fetched: tuple[str, int, int, int] | None = None  # topic, partition, follower and offset of the last step

    def prepare(self, broker: Broker) -> None:
        """Register both followers, once, and make two topics that the real broker leads."""
        self.register_all(broker)
        for name, (assigned, min_isr) in TOPICS.items():
            placed = [
                Struct("CreatableReplicaAssignment", {"partition_index": index, "broker_ids": replicas})
                for index, replicas in enumerate(assigned)
            ]
            config = Struct("CreatableTopicConfig", {"name": "min.insync.replicas", "value": min_isr})
            fields = {
                "name": Own(name),
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": placed,
                "configs": [config],
            }
            answer = broker.ask(apis.CREATE_TOPICS, 7, topics=[Struct("CreatableTopic", fields)], timeout_ms=10_000).topics[0]
            assert answer.error_code == 0, answer.error_message
            broker.learn(f"id:{name}", answer.topic_id)
        until(lambda: set(state(broker)) == {"brokers", *(f"{name}-{index}" for name in TOPICS for index in (0, 1))})

    def seen(self, step: Step, answer: Any) -> Any:
        """An empty list of aborted transactions is none."""
        if step.key == apis.FETCH and isinstance(answer, dict):
            for topic in answer["responses"]:
                for part in topic["partitions"]:
                    part["aborted_transactions"] = part["aborted_transactions"] or []
        return answer

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A fetch of a follower, mostly."""
        self.fetched = None
        kind, broker_id = rng.choice(KINDS), rng.choice(INVENTED)
        name, index = rng.choice(list(TOPICS)), rng.choice([0, 1])
        end = leader.values.get(f"end:{name}-{index}", 0)
        if kind in ("fence", "unfence"):
            return Step(apis.BROKER_HEARTBEAT, 1, heartbeat(broker_id, want_fence=kind == "fence"), is_for_controller=True)
        if kind == "produce":
            step = produce_step(name, index, Batch(), tag=(name, index))
            return step._replace(fields={**step.fields, "acks": rng.choice([1, 1, -1]), "timeout_ms": 1})
        if kind == "delete":
            step = delete_records_step(name, index, -1)
            return step._replace(fields={**step.fields, "timeout_ms": 1})
        if kind == "list":
            part = Struct("ListOffsetsPartition", {"partition_index": index, "timestamp": rng.choice([-1, -2])})
            topic = Struct("ListOffsetsTopic", {"name": Own(name), "partitions": [part]})
            return Step(apis.LIST_OFFSETS, 7, {"replica_id": rng.choice([-1, broker_id]), "topics": [topic]})
        offset = rng.choice([end] * 6 + [end - 1, end + 1, rng.randint(0, end)])
        return self._fetch(rng, name, index, max(0, offset), broker_id if kind == "follow" else -1)

    @staticmethod
    def _fetch(rng: random.Random, name: str, index: int, offset: int, replica_id: int) -> Step:
        version = rng.choice([12, 15, 17, 17])
        part = {
            "partition": index,
            "fetch_offset": offset,
            "log_start_offset": rng.choice([-1, 0, 0, 1, offset]) if replica_id >= 0 else -1,
            "partition_max_bytes": 10**6,
            "current_leader_epoch": rng.choice([-1, -1, 0, 0, 0, 0, 1]),
            "last_fetched_epoch": rng.choice([-1, -1, 0, 0, 0, 5]),
        }
        named = {"topic_id": Var(f"id:{name}")} if version >= TOPIC_IDS_VERSION else {"topic": Own(name)}
        fields = {
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 10**6,
            "session_epoch": -1,
            "topics": [Struct("FetchTopic", {**named, "partitions": [Struct("FetchPartition", part)]})],
        }
        lag = 0
        if version < REPLICA_STATE_VERSION:
            fields["replica_id"] = replica_id
        elif replica_id >= 0:
            lag = rng.choice([0] * 6 + [-1])
            epoch = Var(f"epoch:{replica_id}", -1, lag)
            fields["replica_state"] = Struct("ReplicaState", {"replica_id": replica_id, "replica_epoch": epoch})
        may_join = replica_id >= 0 and not lag
        return Step(apis.FETCH, version, fields, (name, index, replica_id, offset) if may_join else None)

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn log ends, and which follower may now join an ISR."""
        if step.key == apis.PRODUCE:
            name, index = step.tag
            base_offset = answer.responses[0].partition_responses[0].base_offset
            if base_offset >= 0:
                broker.values[f"end:{name}-{index}"] = base_offset + 1
        if step.key == apis.FETCH and step.tag is not None:
            part = answer.responses[0].partitions[0]
            self.fetched = None if part.error_code or part.diverging_epoch.epoch >= 0 else step.tag

    def settle(self, rivals: Rivals) -> tuple[Any, Any] | None:
        """Compare what both real brokers describe, once they know the change; a follower that may join is in the ISR then."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            mine, theirs = map(state, rivals.both)
            if mine == theirs and self._has_joined(mine):
                return None
            if time.monotonic() > end:
                return mine, theirs

    def _has_joined(self, found: dict[str, Any]) -> bool:
        if self.fetched is None:
            return True
        name, index, broker_id, offset = self.fetched
        isr, high_watermark = found[f"{name}-{index}"]
        is_replica = broker_id in TOPICS[name][0][index]
        return broker_id in isr or not is_replica or offset < high_watermark or (broker_id, True) in found["brokers"]


def state(broker: Broker) -> dict[str, Any]:
    """The ISR and the high watermark of each partition of the round that is led, and which brokers are fenced."""
    answer = broker.ask(apis.METADATA, 9, topics=[Struct("MetadataRequestTopic", {"name": Own(name)}) for name in TOPICS])
    found: dict[str, Any] = {"brokers": brokers(broker)}
    by_name = {broker.own(name): name for name in TOPICS}
    for topic in answer.topics:
        for part in topic.partitions:
            name = by_name[topic.name]
            wanted = Struct("ListOffsetsPartition", {"partition_index": part.partition_index, "timestamp": -1})
            listed = broker.ask(
                apis.LIST_OFFSETS,
                7,
                replica_id=-1,
                topics=[Struct("ListOffsetsTopic", {"name": Own(name), "partitions": [wanted]})],
            )
            answered = listed.topics[0].partitions[0]
            if not answered.error_code:
                found[f"{name}-{part.partition_index}"] = sorted(part.isr_nodes), answered.offset
    return found
