"""Random requests to a controller with two invented brokers, 2 and 3, next to the real one: registrations, fencing, cordoned
directories, ISR, ELR, elections, reassignments. This judges the half of the controller that a cluster needs, without a cluster.

After each step the partitions, reassignments and brokers that the real broker describes are compared, too.
"""

from __future__ import annotations

import random
import time
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import apis, error_codes
from tests.oracle.differential import Broker, Made, Own, Rivals, Step, Struct, Traffic, Var
from tests.oracle.raw_requests import until

INVENTED = (2, 3)
TOPICS = {"ta": [[1, 2, 3], [2, 3, 1]], "tb": [[2, 3], [3, 1]]}
SETTLE_SECONDS = 10
FEATURES = {
    "metadata.version": (7, 30),
    "transaction.version": (0, 2),
    "group.version": (0, 1),
    "eligible.leader.replicas.version": (0, 1),
    "share.version": (0, 1),
    "streams.version": (0, 1),
    "kraft.version": (0, 1),
}
KINDS = (
    ["fence"] * 4
    + ["unfence"] * 5
    + ["isr"] * 5
    + ["elect"] * 3
    + ["reassign"] * 3
    + ["cancel", "configure", "configure", "stale"]
    + ["cordon", "uncordon", "place", "place"]
)
_DESCRIBED = (
    "error_code",
    "leader_id",
    "leader_epoch",
    "replica_nodes",
    "isr_nodes",
    "eligible_leader_replicas",
    "last_known_elr",
)


class Controllers(Traffic):
    """epoch:2 is the broker epoch of broker 2, version:ta-0 the partition epoch of ta-0."""

    LEFT_OUT = frozenset(("broker_epoch", "partition_epoch"))

    def prepare(self, broker: Broker) -> None:
        """Register both brokers, once, and make two topics of two partitions with three replicas and with two."""
        self.register_all(broker)
        broker.values["epoch:1"] = -1
        for name, replicas in TOPICS.items():
            assigned = [
                Struct("CreatableReplicaAssignment", {"partition_index": index, "broker_ids": one})
                for index, one in enumerate(replicas)
            ]
            fields = {"name": Own(name), "num_partitions": -1, "replication_factor": -1, "assignments": assigned}
            answer = broker.ask(apis.CREATE_TOPICS, 7, topics=[Struct("CreatableTopic", fields)], timeout_ms=10_000).topics[0]
            assert answer.error_code == 0, answer.error_message
            broker.learn(f"id:{name}", answer.topic_id)

    def register_all(self, broker: Broker) -> None:
        """Register both brokers, once, and unfence them."""
        for broker_id in INVENTED:
            if f"epoch:{broker_id}" not in broker.lasting:
                self._register(broker, broker_id)
            broker.values[f"epoch:{broker_id}"] = broker.lasting[f"epoch:{broker_id}"]
            until(lambda broker_id=broker_id: self._is_unfenced(broker, broker_id))

    @staticmethod
    def _is_unfenced(broker: Broker, broker_id: int) -> bool:
        fields = heartbeat(broker_id) | {"cordoned_log_dirs": []}
        return not broker.ask_controller(apis.BROKER_HEARTBEAT, 2, **fields).is_fenced

    def _register(self, broker: Broker, broker_id: int) -> None:
        features = [
            Struct("Feature", {"name": name, "min_supported_version": lowest, "max_supported_version": highest})
            for name, (lowest, highest) in FEATURES.items()
        ]
        listener = {"name": "PLAINTEXT", "host": "127.0.0.1", "port": 1000 + broker_id, "security_protocol": 0}
        answer = broker.ask_controller(
            apis.BROKER_REGISTRATION,
            4,
            broker_id=broker_id,
            cluster_id=broker.ask(apis.DESCRIBE_CLUSTER, 1, endpoint_type=1).cluster_id,
            incarnation_id=Uuid(broker_id.to_bytes(16, "big")),
            listeners=[Struct("Listener", listener)],
            features=features,
            log_dirs=[directory_of(broker_id)],
            previous_broker_epoch=-1,
        )
        assert answer.error_code == 0, error_codes.NAMES[answer.error_code]
        broker.lasting[f"epoch:{broker_id}"] = answer.broker_epoch

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of an invented broker, or of an administrator."""
        kind, broker_id = rng.choice(KINDS), rng.choice(INVENTED)
        name, index = rng.choice(list(TOPICS)), rng.choice([0, 1])
        if kind in ("cordon", "uncordon"):
            cordoned = [directory_of(broker_id)] if kind == "cordon" else []
            fields = heartbeat(broker_id) | {"cordoned_log_dirs": cordoned}
            return Step(apis.BROKER_HEARTBEAT, 2, fields, is_for_controller=True)
        if kind in ("fence", "unfence", "stale"):
            fields = heartbeat(broker_id, want_fence=kind == "fence")
            if kind == "stale":
                fields["broker_epoch"] = 77
            return Step(apis.BROKER_HEARTBEAT, 1, fields, is_for_controller=True)
        step: Step = getattr(self, f"_{kind}")(rng, name, index, leader)
        return step

    def _isr(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step:
        """A leader's change of the ISR, mostly; its epochs are those that it knows."""
        found = dict(partitions(leader)[f"{name}-{index}"])
        broker_id = found["leader_id"] if found["leader_id"] in INVENTED and rng.random() < 0.85 else rng.choice(INVENTED)
        replicas = found["replica_nodes"]
        members = rng.sample(replicas, rng.randint(1, len(replicas)))
        isr = [Struct("BrokerState", {"broker_id": one, "broker_epoch": Var(f"epoch:{one}", -1)}) for one in members]

        def partition_epoch(broker: Broker) -> int:
            return find_partition_epoch(broker, broker_id, name, index)

        part = {
            "partition_index": index,
            "leader_epoch": found["leader_epoch"] + rng.choice([0] * 10 + [1, -1]),
            "new_isr_with_epochs": isr,
            "partition_epoch": Made("<partition epoch>", partition_epoch),
        }
        topic = Struct("TopicData", {"topic_id": Var(f"id:{name}"), "partitions": [Struct("PartitionData", part)]})
        fields = {"broker_id": broker_id, "broker_epoch": Var(f"epoch:{broker_id}"), "topics": [topic]}
        return Step(apis.ALTER_PARTITION, 3, fields, is_for_controller=True)

    def _place(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step:
        """A topic that is only validated: are there brokers for its replicas?"""
        topic = {"name": Own("tc"), "num_partitions": 1, "replication_factor": rng.choice([1, 2, 3])}
        fields = {"topics": [Struct("CreatableTopic", topic)], "timeout_ms": 5000, "validate_only": True}
        return Step(apis.CREATE_TOPICS, 4, fields)

    def _elect(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step:
        topic = Struct("TopicPartitions", {"topic": Own(name), "partitions": [0, 1]})
        return Step(
            apis.ELECT_LEADERS, 2, {"election_type": rng.choice([0, 0, 1]), "topic_partitions": [topic], "timeout_ms": 1500}
        )

    def _reassign(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step | None:
        if any(one[0] == f"{name}-{index}" for one in reassignments(leader)):
            return None  # one that goes back to the original replicas never ends in Kafka; it does in kcli
        return self._move(name, index, rng.sample([1, 2, 3], rng.choice([1, 2, 3])), may_change_factor=rng.random() < 0.8)

    def _cancel(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step:
        return self._move(name, index, None, may_change_factor=True)

    @staticmethod
    def _move(name: str, index: int, replicas: list[int] | None, *, may_change_factor: bool) -> Step:
        part = Struct("ReassignablePartition", {"partition_index": index, "replicas": replicas})
        topic = Struct("ReassignableTopic", {"name": Own(name), "partitions": [part]})
        fields = {"timeout_ms": 5000, "allow_replication_factor_change": may_change_factor, "topics": [topic]}
        return Step(apis.ALTER_PARTITION_REASSIGNMENTS, 1, fields)

    def _configure(self, rng: random.Random, name: str, index: int, leader: Broker) -> Step:
        key, value = rng.choice(
            [
                ("min.insync.replicas", "1"),
                ("min.insync.replicas", "2"),
                ("unclean.leader.election.enable", "true"),
                ("unclean.leader.election.enable", "false"),
            ]
        )
        config = Struct("AlterableConfig", {"name": key, "config_operation": 0, "value": value})
        resource = Struct("AlterConfigsResource", {"resource_type": 2, "resource_name": Own(name), "configs": [config]})
        return Step(apis.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource]})

    def settle(self, rivals: Rivals) -> tuple[Any, Any] | None:
        """Compare what both real brokers describe, once they know the change."""

        def state(broker: Broker) -> Any:
            return partitions(broker), reassignments(broker), brokers(broker)

        end = time.monotonic() + SETTLE_SECONDS
        while True:
            mine, theirs = map(state, rivals.both)
            if mine == theirs:
                return None
            if time.monotonic() > end:
                return mine, theirs


def directory_of(broker_id: int) -> Uuid:
    """The only log directory of an invented broker."""
    return Uuid((10**6 + broker_id).to_bytes(16, "big"))


def heartbeat(broker_id: int, *, want_fence: bool = False) -> dict[str, Any]:
    """The fields of a heartbeat."""
    fields = {"broker_id": broker_id, "broker_epoch": Var(f"epoch:{broker_id}"), "current_metadata_offset": 10**9}
    return {**fields, "want_fence": want_fence}


def find_partition_epoch(broker: Broker, broker_id: int, name: str, index: int) -> int:
    """The epoch of a partition, which no answer has: it is the last one that is not refused as unknown to the controller."""
    epoch: int = broker.values.get(f"version:{name}-{index}", 0)
    while True:
        part = {"partition_index": index, "leader_epoch": -1, "partition_epoch": epoch + 1}
        topic = Struct("TopicData", {"topic_id": Var(f"id:{name}"), "partitions": [Struct("PartitionData", part)]})
        fields = {"broker_id": broker_id, "broker_epoch": Var(f"epoch:{broker_id}"), "topics": [topic]}
        answer = broker.ask_controller(apis.ALTER_PARTITION, 3, **fields)
        code = answer.error_code or answer.topics[0].partitions[0].error_code
        if code != error_codes.FENCED_LEADER_EPOCH:
            broker.values[f"version:{name}-{index}"] = epoch
            return epoch
        epoch += 1


def partitions(broker: Broker) -> dict[str, list[tuple[str, Any]]]:
    """The partitions of the round as the real broker describes them."""
    topics = [Struct("TopicRequest", {"name": Own(name)}) for name in TOPICS]
    answer = broker.ask(apis.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=100)
    return {
        f"{name}-{part.partition_index}": [(field, getattr(part, field)) for field in _DESCRIBED]
        for name in TOPICS
        for topic in answer.topics
        if topic.name == broker.own(name)
        for part in topic.partitions
    }


def reassignments(broker: Broker) -> list[tuple[str, list[int], list[int], list[int]]]:
    """The reassignments of the round that are under way."""
    answer = broker.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, timeout_ms=5000, topics=None)
    return sorted(
        (f"{name}-{part.partition_index}", part.replicas, part.adding_replicas, part.removing_replicas)
        for name in TOPICS
        for topic in answer.topics
        if topic.name == broker.own(name)
        for part in topic.partitions
    )


def brokers(broker: Broker) -> list[tuple[int, bool]]:
    """The brokers, and which of them are fenced."""
    answer = broker.ask(apis.DESCRIBE_CLUSTER, 2, endpoint_type=1, include_fenced_brokers=True)
    return sorted((one.broker_id, one.is_fenced) for one in answer.brokers)
