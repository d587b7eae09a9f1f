"""One member of a group, as a process: `python -m tests.oracle.clients.group_member CLIENT SETTINGS`, SETTINGS as JSON.

It prints a line for each event, with the monotonic time in ns: `assigned P...`, `revoked P...` (`lost P...` if it
knows that it was too late), `read P OFFSET`, `closed`. It commits what it has read after each poll. A line on stdin ends it,
as a client ends that leaves its group; the line `stall SECONDS` lets a member of kcli not poll for a time, with the events
`stalled` and `resumed`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tests.oracle.clients.member_lines import note, run_until_a_line, stall_if_asked, stopped

POLL_S = 0.1


def note_partitions(event: str, partitions: Iterable[Any]) -> None:
    note(event, *sorted(one.partition for one in partitions))


def properties(settings: dict[str, Any]) -> dict[str, str | int | float | bool]:
    """The settings of a consumer by Kafka's names, as librdkafka and kcli have them."""
    config = {
        "bootstrap.servers": settings["bootstrap"],
        "group.id": settings["group"],
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    if settings.get("protocol") == "consumer":
        config["group.protocol"] = "consumer"
        if "assignor" in settings:
            config["group.remote.assignor"] = settings["assignor"]
    else:
        config |= {
            "session.timeout.ms": settings["session_ms"],
            "heartbeat.interval.ms": settings["session_ms"] // 5,
            "partition.assignment.strategy": settings.get("assignor", "range"),
        }
    if "max_poll_ms" in settings:
        config["max.poll.interval.ms"] = settings["max_poll_ms"]
    if "instance" in settings:
        config["group.instance.id"] = settings["instance"]
    return config


def run_confluent(settings: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer(properties(settings))
    consumer.subscribe(
        [settings["topic"]],
        on_assign=lambda _, found: note_partitions("assigned", found),
        on_revoke=lambda _, found: note_partitions("revoked", found),
        on_lost=lambda _, found: note_partitions("lost", found),
    )
    while not stopped.is_set():
        found = consumer.consume(100, POLL_S)
        for message in found:
            if message.error() is not None:
                note("error", message.error())
        read = [message for message in found if message.error() is None]
        for message in read:
            note("read", message.partition(), message.offset())
        if read:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                note("error", repr(error))
    consumer.close()


def run_kafka_python(settings: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            note_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            note_partitions("revoked", revoked)

        def on_partitions_lost(self, lost: Any) -> None:
            note_partitions("lost", lost)

    consumer = KafkaConsumer(
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        group_instance_id=settings.get("instance"),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 5,
        partition_assignment_strategy=[assignors[settings.get("assignor", "range")]],
    )
    # A metadata request that is under way when it subscribes leaves the topic unknown to it for five minutes, and as the leader
    # it assigns nothing (its cluster.py has a TODO for that). So it learns the topic first.
    while not consumer.partitions_for_topic(settings["topic"]):
        pass
    consumer.subscribe([settings["topic"]], listener=Listener())
    while not stopped.is_set():
        read = consumer.poll(int(POLL_S * 1000))
        for partition, records in read.items():
            for record in records:
                note("read", partition.partition, record.offset)
        if read:
            try:
                consumer.commit()
            except KafkaError as error:
                note("error", repr(error))
    consumer.close()


def run_aiokafka(settings: dict[str, Any]) -> None:
    asyncio.run(_run_aiokafka(settings))


async def _run_aiokafka(settings: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer
    from aiokafka.abc import ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            note_partitions("assigned", assigned)

        def on_partitions_revoked(self, revoked: Any) -> None:
            note_partitions("revoked", revoked)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings["bootstrap"],
        group_id=settings["group"],
        group_instance_id=settings.get("instance"),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=settings["session_ms"],
        heartbeat_interval_ms=settings["session_ms"] // 5,
        partition_assignment_strategy=[assignors[settings.get("assignor", "range")]],
    )
    consumer.subscribe([settings["topic"]], listener=Listener())
    await consumer.start()
    while not stopped.is_set():
        read = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        for partition, records in read.items():
            for record in records:
                note("read", partition.partition, record.offset)
        if read:
            try:
                await consumer.commit()
            except KafkaError as error:
                note("error", repr(error))
    await consumer.stop()


def run_kcli(settings: dict[str, Any]) -> None:
    from kcli.client.errors import ClientError
    from kcli.client.shell.consumer import Consumer

    class Listener:
        def on_partitions_assigned(self, partitions: Any) -> None:
            note_partitions("assigned", partitions)

        def on_partitions_revoked(self, partitions: Any) -> None:
            note_partitions("revoked", partitions)

        def on_partitions_lost(self, partitions: Any) -> None:
            note_partitions("lost", partitions)

    with Consumer(properties(settings)) as consumer:
        consumer.subscribe([settings["topic"]], Listener())
        while not stopped.is_set():
            try:
                read = consumer.poll(POLL_S)
                for record in read:
                    note("read", record.partition, record.offset)
                stall_if_asked()
                if read:
                    consumer.commit_sync()
            except ClientError as error:
                note("error", repr(error))


CLIENTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "confluent": run_confluent,
    "kafka-python": run_kafka_python,
    "aiokafka": run_aiokafka,
    "kcli": run_kcli,
}


def main() -> None:
    if sys.argv[1] == "program":
        # A member in another language: this process becomes it, so that signals reach it.
        command = json.loads(sys.argv[2])["command"]
        os.execvp(command[0], [*command, sys.argv[2]])

    run_until_a_line(lambda: CLIENTS[sys.argv[1]](json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
