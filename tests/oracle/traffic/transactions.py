"""Random requests of transactional and idempotent producers, of transaction.version 2 and older, and those between brokers."""

from __future__ import annotations

import random
from typing import Any

from kcli.format.record_batch import TRANSACTIONAL_FLAG
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from tests.oracle.differential import Batch, Broker, Own, Rivals, Step, Struct, Traffic, Var, produce_step
from tests.oracle.raw_requests import until

GROUP = Own("g")
IDS = ("x", "y")
UNKNOWN_ID = 987_654
TIMES = ("transaction_start_time_ms", "last_timestamp", "log_append_time_ms", "timestamp")
KINDS = (
    ["init"] * 3
    + ["add"] * 3
    + ["add_offsets"] * 2
    + ["commit_offsets"] * 3
    + ["end"] * 4
    + ["produce"] * 8
    + ["idempotent"] * 2
    + ["describe", "list", "producers", "fetch", "offsets", "verify", "marker"]
)


class Transactions(Traffic):
    """p1, p2 and so on are producer ids; id:x and epoch:x are those of transactional id x, next:... the next sequences."""

    LEFT_OUT = frozenset(("current_leader", "record_errors"))
    NUMBERED = frozenset(("producer_id", "ongoing_txn_producer_id"))

    def prepare(self, broker: Broker) -> None:
        """A topic, and the coordinators."""
        broker.create_topic("t", 2)
        broker.find_coordinator()
        for name in IDS:
            warm = {"transactional_id": Own(f"{name}-warm"), "transaction_timeout_ms": 60_000}
            until(lambda warm=warm: broker.ask(apis.INIT_PRODUCER_ID, 4, **warm).error_code == 0)
            until(lambda name=name: self._described(broker, name) == error_codes.TRANSACTIONAL_ID_NOT_FOUND)

    @staticmethod
    def _described(broker: Broker, name: str) -> int:
        states = broker.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[Own(name)]).transaction_states
        return int(states[0].error_code)

    def draw(self, rng: random.Random, leader: Broker) -> Step | None:
        """A request of a producer; its id and its epoch are wrong at times."""
        name, kind = rng.choice(IDS), rng.choice(KINDS)
        producer_id: Var | int = Var(f"id:{name}", UNKNOWN_ID)
        if rng.random() < 0.12 and leader.count("p"):
            producer_id = Var(f"p{rng.randrange(leader.count('p')) + 1}")
        epoch = Var(f"epoch:{name}", -1, rng.choice([0] * 9 + [rng.choice([-1, 1, 2])]))
        step: Step | None = getattr(self, f"_{kind}")(rng, name, {"producer_id": producer_id, "producer_epoch": epoch}, leader)
        return step

    def _init(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        version = rng.choice([1, 3, 4, 5])
        timeout_ms = rng.choice([60_000] * 10 + [0, 1_000_000])
        drawn = rng.choice([Own(name)] * 9 + [None, ""])
        fields = {"transactional_id": drawn, "transaction_timeout_ms": timeout_ms}
        if version >= 3 and rng.random() < 0.45:
            fields |= who
        return Step(apis.INIT_PRODUCER_ID, version, fields, name if isinstance(drawn, Own) else None)

    def _add(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        parts = rng.choice([[0], [1], [0, 1], [7]])
        topics = [Struct("AddPartitionsToTxnTopic", {"name": rng.choice([Own("t")] * 6 + ["nope"]), "partitions": parts})]
        fields = {
            "v3_and_below_transactional_id": Own(name),
            "v3_and_below_producer_id": who["producer_id"],
            "v3_and_below_producer_epoch": who["producer_epoch"],
            "v3_and_below_topics": topics,
        }
        return Step(apis.ADD_PARTITIONS_TO_TXN, rng.choice([1, 3]), fields)

    def _verify(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        topics = [Struct("AddPartitionsToTxnTopic", {"name": Own("t"), "partitions": rng.choice([[0], [0, 1]])})]
        fields = {**who, "transactional_id": Own(name), "verify_only": rng.random() < 0.7, "topics": topics}
        return Step(
            apis.ADD_PARTITIONS_TO_TXN, rng.choice([4, 5]), {"transactions": [Struct("AddPartitionsToTxnTransaction", fields)]}
        )

    def _add_offsets(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        fields = {**who, "transactional_id": Own(name), "group_id": rng.choice([GROUP, GROUP, ""])}
        return Step(apis.ADD_OFFSETS_TO_TXN, rng.choice([3, 4]), fields)

    def _commit_offsets(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        version = rng.choice([2, 3, 4, 5])
        part = {"partition_index": rng.choice([0, 1, 9]), "committed_offset": 5, "committed_metadata": ""}
        parts = [Struct("TxnOffsetCommitRequestPartition", part)]
        topics = [Struct("TxnOffsetCommitRequestTopic", {"name": Own("t"), "partitions": parts})]
        fields = {**who, "transactional_id": Own(name), "group_id": GROUP, "topics": topics}
        if version >= 3:
            generation, member_id = rng.choice([(-1, "")] * 5 + [(3, "bogus"), (-1, "bogus"), (0, "")])
            fields |= {"generation_id_or_member_epoch": generation, "member_id": member_id}
        return Step(apis.TXN_OFFSET_COMMIT, version, fields)

    def _end(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        fields = {**who, "transactional_id": Own(name), "committed": rng.random() < 0.6}
        version = rng.choice([3, 4, 5, 5])
        return Step(apis.END_TXN, version, fields, name if version >= 5 else None)

    def _produce(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        index, count = rng.choice([0, 0, 1]), rng.choice([1, 1, 2])
        key = f"next:{who['producer_id']}:{who['producer_epoch'].name}:{leader.values.get(who['producer_epoch'].name)}:{index}"
        sequence = leader.values.get(key, 0) + rng.choice([0] * 12 + [1, -1, 5])
        batch = Batch(count, who["producer_id"], who["producer_epoch"], sequence, TRANSACTIONAL_FLAG)
        transactional_id = rng.choice([Own(name)] * 12 + [None])
        return produce_step("t", index, batch, rng.choice([9, 11, 12, 12]), transactional_id, (key, sequence + count))

    def _idempotent(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        free = [f"p{at + 1}" for at in range(leader.count("p")) if f"p{at + 1}" not in leader.values.get("owned", ())]
        producer_id, epoch = (Var(rng.choice(free)), rng.choice([0] * 4 + [1])) if free else (-1, -1)
        index, count = rng.choice([0, 1]), rng.choice([1, 2])
        key = f"next:{producer_id}:{epoch}:{index}"
        sequence = leader.values.get(key, 0) + rng.choice([0] * 6 + [1, -1, 5])
        return produce_step("t", index, Batch(count, producer_id, epoch, sequence), 9, None, (key, sequence + count))

    def _describe(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        return Step(apis.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [*map(Own, IDS), "none"]})

    def _list(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        version = rng.choice([0, 1, 2])
        states = rng.choice([[], ["Ongoing"], ["bogus", "Empty"], ["CompleteCommit", "CompleteAbort"]])
        fields: dict[str, Any] = {"state_filters": states}
        fields["producer_id_filters"] = [who["producer_id"]] if rng.random() < 0.3 else []
        if version >= 1:
            fields["duration_filter"] = rng.choice([-1, 0, 100_000])
        return Step(apis.LIST_TRANSACTIONS, version, fields)

    def _producers(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        return Step(
            apis.DESCRIBE_PRODUCERS, 0, {"topics": [Struct("TopicRequest", {"name": Own("t"), "partition_indexes": [0, 1]})]}
        )

    def _fetch(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        offset = rng.choice([0, 0, 2])
        parts = [
            Struct("FetchPartition", {"partition": index, "fetch_offset": offset, "partition_max_bytes": 10**6})
            for index in (0, 1)
        ]
        topics = [Struct("FetchTopic", {"topic": Own("t"), "partitions": parts})]
        fields = {"max_bytes": 10**7, "isolation_level": rng.choice([0, 1, 1]), "session_epoch": -1, "topics": topics}
        return Step(apis.FETCH, 12, fields)

    def _offsets(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step:
        timestamp = rng.choice([-1, -2, -3, 5, -4, -5, -6, -9])
        parts = [Struct("ListOffsetsPartition", {"partition_index": index, "timestamp": timestamp}) for index in (0, 1)]
        topics = [Struct("ListOffsetsTopic", {"name": Own("t"), "partitions": parts})]
        fields = {"replica_id": -1, "isolation_level": rng.choice([0, 1]), "topics": topics}
        return Step(apis.LIST_OFFSETS, rng.choice([7, 10, 11]), fields)

    def _marker(self, rng: random.Random, name: str, who: dict[str, Any], leader: Broker) -> Step | None:
        if rng.random() < 0.6:
            return None
        version = rng.choice([1, 2])
        epoch = who["producer_epoch"]
        topic = Struct("WritableTxnMarkerTopic", {"name": Own("t"), "partition_indexes": [rng.choice([0, 1, 8])]})
        fields = {
            "producer_id": who["producer_id"],
            "producer_epoch": epoch._replace(plus=epoch.plus + rng.choice([0, 0, 1, -1])),
            "transaction_result": rng.random() < 0.5,
            "coordinator_epoch": rng.choice([0, 0, 0, 5, -1]),
            "topics": [topic],
        }
        if version >= 2:
            fields["transaction_version"] = rng.choice([0, 1, 2])
        return Step(apis.WRITE_TXN_MARKERS, version, {"markers": [Struct("WritableTxnMarker", fields)]})

    def learn(self, broker: Broker, step: Step, answer: Message) -> None:
        """Learn producer ids and epochs, and which sequence is next."""
        if step.key in (apis.INIT_PRODUCER_ID, apis.END_TXN):
            producer_id = getattr(answer, "producer_id", -1)
            if answer.error_code or producer_id < 0 or (step.key == apis.END_TXN and step.tag is None):
                return
            if producer_id not in broker.names:
                broker.learn(f"p{broker.count('p') + 1}", producer_id)
            if step.tag is not None:
                broker.values[f"id:{step.tag}"] = producer_id
                broker.values[f"epoch:{step.tag}"] = answer.producer_epoch
                broker.values.setdefault("owned", set()).add(broker.names[producer_id])
        elif step.key == apis.PRODUCE and not answer.responses[0].partition_responses[0].error_code:
            key, sequence = step.tag
            broker.values[key] = sequence

    def seen(self, step: Step, answer: Any) -> Any:
        """Times are left out, and transactions of other rounds."""
        found = _without_times(answer)
        if step.key == apis.LIST_TRANSACTIONS and isinstance(found, dict):
            own = [one for one in found["transaction_states"] if one["transactional_id"] in ("~-x", "~-y")]
            return {**found, "transaction_states": own}
        return found

    def settle(self, rivals: Rivals) -> None:
        """Wait until no transaction is being ended: its markers are written after the answer."""

        def is_settled(broker: Broker) -> bool:
            states = broker.ask(apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[*map(Own, IDS)]).transaction_states
            return not any(one.transaction_state in ("PrepareCommit", "PrepareAbort") for one in states)

        for broker in rivals.both:
            until(lambda broker=broker: is_settled(broker))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: inner > 0 if name in TIMES and isinstance(inner, int) else _without_times(inner)
            for name, inner in value.items()
        }
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value
