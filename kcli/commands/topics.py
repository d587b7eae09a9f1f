"""`kcli topics`: lists, describes, creates, deletes and extends the topics of a running cluster (Kafka: kafka-topics)."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    cell,
    done,
    glob,
    print_lines,
    run_action,
    select,
    table,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject, dump

if TYPE_CHECKING:
    from kcli.client.admin.configs import ConfigEntry, ConfigResource
    from kcli.client.admin.operation import Operation, Outcomes
    from kcli.client.admin.topics import TopicDescription, TopicListing, TopicPartitionInfo
    from kcli.commands.admin_command import Actions

USAGE = ACTION_USAGE
DESCRIPTION = "Lists, describes, creates, deletes and extends the topics of a running cluster."
EPILOG = action_epilog("topics")

_PARTITIONS = (
    ("partition", "partition"),
    ("leader", "leader"),
    ("epoch", "leaderEpoch"),
    ("replicas", "replicas"),
    ("in sync", "isr"),
    ("offline", "offlineReplicas"),
    ("eligible", "eligibleLeaderReplicas"),
    ("last known eligible", "lastKnownElr"),
)
run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli topics`."""
    actions = add_actions(parser)
    listing = add_action(actions, "list", _list, "list the names of topics")
    describing = add_action(actions, "describe", _describe, "show partitions, replicas and configs of topics")
    for one in (listing, describing):
        one.add_argument(
            "--topic",
            metavar="TOPIC",
            action="append",
            default=[],
            help="only topics with this name, * and ? match any characters; may be repeated",
        )
        one.add_argument("--exclude-internal", action="store_true", help="leave out internal topics")
    filters = describing.add_mutually_exclusive_group()
    filters.add_argument(
        "--under-replicated-partitions", action="store_true", help="only partitions with fewer in-sync replicas than replicas"
    )
    filters.add_argument("--unavailable-partitions", action="store_true", help="only partitions without a leader")
    filters.add_argument(
        "--under-min-isr-partitions",
        action="store_true",
        help="only partitions with fewer in-sync replicas than min.insync.replicas",
    )
    filters.add_argument(
        "--at-min-isr-partitions", action="store_true", help="only partitions with exactly min.insync.replicas in-sync replicas"
    )
    filters.add_argument("--topics-with-overrides", action="store_true", help="only topics that override a default config")
    _add_changes(actions)


def _add_changes(actions: Actions) -> None:
    creating = add_action(actions, "create", _create, "create a topic")
    creating.add_argument("--topic", metavar="TOPIC", required=True, help="name of the topic")
    creating.add_argument("--partitions", metavar="N", type=int, help="number of partitions (num.partitions of the broker)")
    creating.add_argument(
        "--replication-factor",
        metavar="N",
        type=int,
        help="replicas of each partition (default.replication.factor of the broker)",
    )
    creating.add_argument(
        "--replica-assignment",
        metavar="LIST",
        help="brokers of each partition instead: 1:2,2:3 puts partition 0 on 1 and 2, partition 1 on 2 and 3",
    )
    creating.add_argument(
        "--config", metavar="KEY=VALUE", action="append", default=[], help="set a config of the topic; may be repeated"
    )
    creating.add_argument("--if-not-exists", action="store_true", help="do not fail if the topic exists already")
    creating.add_argument("--dry-run", action="store_true", help="only have the cluster check the request; create nothing")

    deleting = add_action(actions, "delete", _delete, "delete topics")
    deleting.add_argument(
        "--topic",
        metavar="TOPIC",
        action="append",
        required=True,
        help="delete topics with this name, * and ? match any characters; may be repeated",
    )
    deleting.add_argument(
        "--include-internal", action="store_true", help="let * and ? match internal topics, too, such as __consumer_offsets"
    )
    deleting.add_argument("--if-exists", action="store_true", help="do not fail if no topic has the name")
    deleting.add_argument("--dry-run", action="store_true", help="only print the names of the topics; delete nothing")

    altering = add_action(actions, "alter", _alter, "add partitions to a topic")
    altering.add_argument("--topic", metavar="TOPIC", required=True, help="name of the topic")
    altering.add_argument("--partitions", metavar="N", type=int, required=True, help="new total number of partitions")
    altering.add_argument("--replica-assignment", metavar="LIST", help="brokers of each new partition, in the format of create")
    altering.add_argument("--dry-run", action="store_true", help="only have the cluster check the request; change nothing")


# ----------------------------------------------------------------------------------------------------------- list, describe


def _list(args: argparse.Namespace) -> int:
    from kcli.client.admin.topics import list_topics

    listed = ask(args, list_topics(include_internal=not args.exclude_internal))
    chosen = select("topic", args.topic, listed)
    rows = [_listing_row(listed[name]) for name in chosen.names]
    print_lines([dump(row) for row in rows] if args.output == "json" else map(cell, chosen.names))
    return chosen.code


def _listing_row(one: TopicListing) -> JsonObject:
    return {"topic": one.name, "topicId": str(one.topic_id), "isInternal": one.is_internal}


def _described(
    names: list[str],
) -> Operation[tuple[Outcomes[str, TopicDescription], Outcomes[ConfigResource, dict[str, ConfigEntry]]]]:
    """Return descriptions and configurations of topics."""
    from kcli.client.admin.configs import ConfigResource, ResourceType, describe_configs
    from kcli.client.admin.topics import describe_topics

    topics = yield from describe_topics(names)
    configs = yield from describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    return topics, configs


def _describe(args: argparse.Namespace) -> int:
    from kcli.client.admin.topics import list_topics

    listed = ask(args, list_topics(include_internal=not args.exclude_internal))
    chosen = select("topic", args.topic, listed)
    if not chosen.names:
        return chosen.code
    topics, configs = ask(args, _described(chosen.names))
    described, code = values_of(topics, str)
    known, refused = values_of(configs, lambda resource: f"configs of {resource.name}")
    entries = {one.name: list(found.values()) for one, found in known.items()}
    rows = [_topic_row(one, entries.get(name), args) for name, one in described.items()]
    shown = [row for row in rows if row is not None]
    if args.output == "json":
        print_lines(dump(row) for row in shown)
    else:
        print_lines(line for row in shown for line in _topic_lines(row))
    return max(code, refused, chosen.code)


def _topic_row(topic: TopicDescription, configs: list[ConfigEntry] | None, args: argparse.Namespace) -> JsonObject | None:
    """Return what is shown of a topic, None if the filters leave nothing; configs that are not known are None."""
    from kcli.client.admin.configs import ConfigSource

    overrides = {one.name: one.value for one in configs or () if one.source is ConfigSource.TOPIC_CONFIG}
    least = next((int(one.value) for one in configs or () if one.name == "min.insync.replicas" and one.value), 1)
    partitions = [_partition_row(one) for one in topic.partitions if _is_wanted(one, least, args)]
    is_filtered = len(partitions) < len(topic.partitions) or (args.topics_with_overrides and not overrides)
    if is_filtered and (not partitions or args.topics_with_overrides):
        return None
    return {
        "topic": topic.name,
        "topicId": str(topic.topic_id),
        "isInternal": topic.is_internal,
        "partitionCount": len(topic.partitions),
        "replicationFactor": max((len(one.replicas) for one in topic.partitions), default=0),
        "configs": None if configs is None else overrides,
        "partitions": partitions,
    }


def _is_wanted(one: TopicPartitionInfo, min_insync_replicas: int, args: argparse.Namespace) -> bool:
    if args.under_replicated_partitions:
        return len(one.isr) < len(one.replicas)
    if args.unavailable_partitions:
        return one.leader < 0
    if args.under_min_isr_partitions:
        return len(one.isr) < min_insync_replicas
    if args.at_min_isr_partitions:
        return len(one.isr) == min_insync_replicas
    return True


def _partition_row(one: TopicPartitionInfo) -> JsonObject:
    return {
        "partition": one.partition,
        "leader": one.leader if one.leader >= 0 else None,
        "leaderEpoch": one.leader_epoch if one.leader_epoch >= 0 else None,
        "replicas": list(one.replicas),
        "isr": list(one.isr),
        "offlineReplicas": list(one.offline_replicas),
        "eligibleLeaderReplicas": None if one.eligible_leader_replicas is None else list(one.eligible_leader_replicas),
        "lastKnownElr": None if one.last_known_elr is None else list(one.last_known_elr),
    }


def _topic_lines(row: JsonObject) -> list[str]:
    head = f"{cell(row['topic'])}  id {row['topicId']}  partitions {row['partitionCount']}"
    head += f"  replication factor {row['replicationFactor']}"
    if row["configs"]:
        head += f"  configs {cell(row['configs'])}"
    return [head, *table(row["partitions"], _PARTITIONS)]


# ------------------------------------------------------------------------------------------------------------------- change


def assignment_of(text: str) -> list[list[int]]:
    """Parse brokers of partitions as kafka-topics does: 1:2,2:3. Raises CannotRun."""
    try:
        return [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise CannotRun(f"--replica-assignment: {text!r} is not a list such as 1:2,2:3") from None


def _create(args: argparse.Namespace) -> int:
    from kcli.client.admin.topics import BROKER_DEFAULT, NewTopic, create_topics
    from kcli.client.errors import KafkaError
    from kcli.commands.configs import parse_values, refuse_repeated
    from kcli.protocol import error_codes

    if args.replica_assignment is not None and (args.partitions is not None or args.replication_factor is not None):
        raise CannotRun("--replica-assignment replaces --partitions and --replication-factor: give one or the others")
    for option, number in (("--partitions", args.partitions), ("--replication-factor", args.replication_factor)):
        if number is not None and number < 1:
            raise CannotRun(f"{option} must be 1 or more, not {number}")
    brokers = [] if args.replica_assignment is None else assignment_of(args.replica_assignment)
    configs = [pair for text in args.config for pair in parse_values(text, "--config")]
    refuse_repeated(name for name, _ in configs)
    topic = NewTopic(
        args.topic,
        BROKER_DEFAULT if args.partitions is None else args.partitions,
        BROKER_DEFAULT if args.replication_factor is None else args.replication_factor,
        dict(enumerate(brokers)),
        dict(configs),
    )
    outcome = ask(args, create_topics([topic], validate_only=args.dry_run))[args.topic]
    if args.if_not_exists and isinstance(outcome, KafkaError) and outcome.code == error_codes.TOPIC_ALREADY_EXISTS:
        done(args, {"topic": args.topic, "created": False}, f"topic {args.topic} exists already")
        return EXIT_OK
    for created in values_of({args.topic: outcome}, str)[0].values():
        row = {
            "topic": args.topic,
            "created": not args.dry_run,
            "topicId": None if args.dry_run else str(created.topic_id),
            "partitionCount": created.num_partitions,
            "replicationFactor": created.replication_factor,
        }
        done(args, row, f"{'would create' if args.dry_run else 'created'} topic {args.topic}")
        return EXIT_OK
    return EXIT_FINDINGS


def _delete(args: argparse.Namespace) -> int:
    from kcli.client.admin.topics import delete_topics, list_topics

    listed = ask(args, list_topics(include_internal=True))
    kept = {one.name for one in listed.values() if one.is_internal and not args.include_internal} - set(args.topic)
    left_out = [name for name in listed if name in kept and any(glob(pattern).fullmatch(name) for pattern in args.topic)]
    if left_out:
        print_message(f"{', '.join(left_out)}: internal, and left out; name them, or give --include-internal")
    chosen = select("topic", args.topic, (name for name in listed if name not in kept))
    deleted, code = chosen.names, EXIT_OK if args.if_exists else chosen.code
    if deleted and not args.dry_run:
        values, refused = values_of(ask(args, delete_topics(deleted)), str)
        deleted, code = [str(name) for name in values], max(code, refused)
    for name in deleted:
        row = {"topic": name, "topicId": str(listed[name].topic_id), "deleted": not args.dry_run}
        done(args, row, f"{'would delete' if args.dry_run else 'deleted'} topic {name}")
    return code


def _alter(args: argparse.Namespace) -> int:
    from kcli.client.admin.topics import NewPartitions, create_partitions

    brokers = None if args.replica_assignment is None else assignment_of(args.replica_assignment)
    wanted = {args.topic: NewPartitions(args.partitions, brokers)}
    values, code = values_of(ask(args, create_partitions(wanted, validate_only=args.dry_run)), str)
    for name in values:
        row = {"topic": name, "partitionCount": args.partitions, "altered": not args.dry_run}
        done(args, row, f"topic {name} {'would have' if args.dry_run else 'has'} {args.partitions} partitions")
    return code
