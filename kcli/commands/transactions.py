"""`kcli transactions`: lists, describes, finds and aborts transactions of a running cluster (Kafka: kafka-transactions)."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    done,
    instant,
    known_words,
    partition_name,
    run_action,
    show,
    split_words,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject

if TYPE_CHECKING:
    from kcli.client.admin.operation import Operation
    from kcli.client.admin.partitions import ActiveProducer
    from kcli.client.admin.transactions import HangingTransaction

USAGE = ACTION_USAGE
DESCRIPTION = "Lists, describes, finds and aborts transactions of a running cluster."
EPILOG = action_epilog(
    "transactions",
    """\
A transaction hangs if a partition has it open and no coordinator will end it. find-hanging finds such transactions,
and prints what abort needs to end them.
""",
)

_LISTED = (
    ("transactional id", "transactionalId"),
    ("coordinator", "coordinator"),
    ("producer id", "producerId"),
    ("state", "state"),
)
_DESCRIBED = (
    ("transactional id", "transactionalId"),
    ("coordinator", "coordinator"),
    ("producer id", "producerId"),
    ("epoch", "producerEpoch"),
    ("state", "state"),
    ("timeout ms", "timeoutMs"),
    ("started", "started"),
    ("duration ms", "durationMs"),
    ("partitions", "partitions"),
)
_PRODUCERS = (
    ("topic", "topic"),
    ("partition", "partition"),
    ("producer id", "producerId"),
    ("epoch", "producerEpoch"),
    ("last sequence", "lastSequence"),
    ("last timestamp", "lastTimestamp"),
    ("coordinator epoch", "coordinatorEpoch"),
    ("transaction start offset", "transactionStartOffset"),
)
_HANGING = tuple(column for column in _PRODUCERS if column[1] != "lastSequence")
run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli transactions`."""
    actions = add_actions(parser)
    listing = add_action(actions, "list", _list, "list transactional ids with their states")
    listing.add_argument(
        "--state",
        metavar="STATES",
        action="append",
        default=[],
        help="only transactions in one of these states, such as Ongoing,Empty; may be repeated",
    )
    listing.add_argument(
        "--producer-id",
        metavar="ID",
        type=int,
        action="append",
        default=[],
        help="only transactions of this producer; may be repeated",
    )
    listing.add_argument(
        "--duration-filter", metavar="MS", type=int, help="only transactions that have been open for longer than this"
    )
    listing.add_argument(
        "--transactional-id-pattern", metavar="REGEX", help="only transactional ids that match this regular expression (RE2)"
    )

    describing = add_action(actions, "describe", _describe, "show the states of transactional ids")
    describing.add_argument(
        "--transactional-id", metavar="ID", action="append", required=True, help="the transactional id; may be repeated"
    )

    producers = add_action(actions, "describe-producers", _producers, "show the producers of a partition")
    _add_partition(producers, required=True)
    producers.add_argument("--broker-id", metavar="ID", type=int, help="ask this broker instead of the leader")

    finding = add_action(actions, "find-hanging", _find, "find transactions that no coordinator will end")
    _add_partition(finding, required=False)
    finding.add_argument("--broker-id", metavar="ID", type=int, help="search the partitions of which this broker has a replica")
    finding.add_argument(
        "--max-transaction-timeout",
        metavar="MINUTES",
        type=int,
        default=15,
        help="only transactions that are older than this may hang (%(default)s)",
    )

    aborting = add_action(actions, "abort", _abort, "end a hanging transaction of a partition")
    _add_partition(aborting, required=True)
    aborting.add_argument(
        "--start-offset", metavar="N", type=int, help="first offset of the transaction; the rest is looked up"
    )
    aborting.add_argument(
        "--producer-id", metavar="ID", type=int, help="producer of the transaction, instead of --start-offset"
    )
    aborting.add_argument("--producer-epoch", metavar="N", type=int, help="epoch of the producer")
    aborting.add_argument("--coordinator-epoch", metavar="N", type=int, help="epoch of the coordinator (0)")
    aborting.add_argument("--dry-run", action="store_true", help="only print the transaction; abort nothing")

    fencing = add_action(actions, "force-terminate", _terminate, "abort the transaction of a transactional id")
    fencing.add_argument("--transactional-id", metavar="ID", required=True, help="the transactional id; its producer is fenced")


def _add_partition(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--topic", metavar="TOPIC", required=required, help="the topic")
    parser.add_argument("--partition", metavar="N", type=int, required=required, help="the partition")


# ----------------------------------------------------------------------------------------------------------- list, describe


def _list(args: argparse.Namespace) -> int:
    from kcli.client.admin.transactions import ANY_DURATION, list_transactions
    from kcli.state.transaction_state import TRANSACTION_STATES

    listed = ask(
        args,
        list_transactions(
            states=known_words("--state", split_words(args.state), TRANSACTION_STATES.values()),
            producer_ids=args.producer_id,
            duration_ms=ANY_DURATION if args.duration_filter is None else args.duration_filter,
            transactional_id_pattern=args.transactional_id_pattern,
        ),
    )
    for broker, error in listed.errors.items():
        print_message(f"broker {broker} did not list its transactions: {error}")
    if listed.errors and not listed.by_broker:
        raise CannotRun("no transactions are known")
    rows: list[JsonObject] = [
        {
            "transactionalId": one.transactional_id,
            "coordinator": broker,
            "producerId": one.producer_id,
            "state": one.state,
        }
        for broker, found in listed.by_broker.items()
        for one in found
    ]
    show(args, rows, _LISTED, "there are no transactions")
    return EXIT_FINDINGS if listed.errors else EXIT_OK


def _describe(args: argparse.Namespace) -> int:
    from kcli.client.admin.groups import CoordinatorNode, find_coordinators
    from kcli.client.admin.transactions import describe_transactions

    ids = list(dict.fromkeys(args.transactional_id))
    described, code = values_of(ask(args, describe_transactions(ids)), str)
    nodes = ask(args, find_coordinators(described, of_transactions=True)) if described else {}
    now_ms = time.time_ns() // 1_000_000
    rows: list[JsonObject] = []
    for name, one in described.items():
        node = nodes[name]
        rows.append(
            {
                "transactionalId": name,
                "coordinator": node.node_id if isinstance(node, CoordinatorNode) else None,
                "producerId": one.producer_id,
                "producerEpoch": one.producer_epoch,
                "state": one.state,
                "timeoutMs": one.timeout_ms,
                "startTimestamp": one.start_ms if one.start_ms >= 0 else None,
                "started": instant(one.start_ms),
                "durationMs": max(now_ms - one.start_ms, 0) if one.start_ms >= 0 else None,
                "partitions": [partition_name(at) for at in one.partitions],
            }
        )
    show(args, rows, _DESCRIBED)
    return code


def _producer_row(topic: str, partition: int, one: ActiveProducer) -> JsonObject:
    start = one.transaction_start_offset
    return {
        "topic": topic,
        "partition": partition,
        "producerId": one.producer_id,
        "producerEpoch": one.producer_epoch,
        "lastSequence": one.last_sequence if one.last_sequence >= 0 else None,
        "timestamp": one.last_timestamp,
        "lastTimestamp": instant(one.last_timestamp),
        "coordinatorEpoch": one.coordinator_epoch if one.coordinator_epoch >= 0 else None,
        "transactionStartOffset": start if start >= 0 else None,
    }


def _producers(args: argparse.Namespace) -> int:
    from kcli.client.admin.partitions import describe_producers

    wanted = [(args.topic, args.partition)]
    _check_exists(args)
    found, code = values_of(ask(args, describe_producers(wanted, broker_id=args.broker_id)), partition_name)
    rows = [_producer_row(topic, index, one) for (topic, index), producers in found.items() for one in producers]
    show(args, rows, _PRODUCERS, "the partition has no producers that its broker remembers")
    return code


def _check_exists(args: argparse.Namespace) -> None:
    """Raise KafkaError for a partition that does not exist, so that its leader is not waited for."""
    from kcli.client.admin.error_sentences import kafka_error
    from kcli.client.admin.topics import describe_topic
    from kcli.protocol import error_codes

    description = ask(args, describe_topic(args.topic))
    if args.partition is not None and all(one.partition != args.partition for one in description.partitions):
        what = f"topic {args.topic} has {len(description.partitions)} partitions, and no partition {args.partition}"
        raise kafka_error(error_codes.UNKNOWN_TOPIC_OR_PARTITION, what)


# ------------------------------------------------------------------------------------------------------------------ hanging


def _find(args: argparse.Namespace) -> int:
    if args.topic is None and args.broker_id is None:
        raise CannotRun("name where to search: --topic TOPIC or --broker-id ID")
    if args.partition is not None and args.topic is None:
        raise CannotRun("--partition needs --topic")
    if args.topic is not None:
        _check_exists(args)
    older_than_ms = time.time_ns() // 1_000_000 - args.max_transaction_timeout * 60_000
    found, deleted = ask(args, _hanging(args, older_than_ms))
    for topic in deleted:
        print_message(f"topic {topic} is left out: it was deleted during the search")
    rows = [_producer_row(one.topic, one.partition, one.producer) for one in found]
    show(args, rows, _HANGING, "no transaction hangs")
    return EXIT_OK


def _hanging(args: argparse.Namespace, older_than_ms: int) -> Operation[tuple[list[HangingTransaction], list[str]]]:
    """Return the hanging transactions, and the topics that were deleted before all was asked."""
    from kcli.client.admin.operation import value_of
    from kcli.client.admin.topics import describe_topics, list_topics
    from kcli.client.admin.transactions import find_hanging_transactions
    from kcli.client.errors import KafkaError
    from kcli.protocol.error_codes import UNKNOWN_TOPIC_OR_PARTITION

    names = [args.topic] if args.topic is not None else list((yield from list_topics(include_internal=True)))
    partitions: list[tuple[str, int]] = []
    deleted: list[str] = []
    for name, outcome in (yield from describe_topics(names)).items():
        if isinstance(outcome, KafkaError) and outcome.code == UNKNOWN_TOPIC_OR_PARTITION:
            deleted.append(name)
            continue
        partitions += (
            (name, one.partition)
            for one in value_of(outcome).partitions
            if args.partition in (None, one.partition) and (args.broker_id is None or args.broker_id in one.replicas)
        )
    found, missing = yield from find_hanging_transactions(partitions, older_than_ms=older_than_ms, broker_id=args.broker_id)
    return found, [*deleted, *dict.fromkeys(topic for topic, _ in missing)]


def _abort(args: argparse.Namespace) -> int:
    from kcli.client.admin.transactions import AbortTransactionSpec, abort_transaction

    by_producer = (args.producer_id, args.producer_epoch)
    if args.start_offset is None and None in by_producer:
        raise CannotRun("name the transaction: --start-offset N, or --producer-id ID with --producer-epoch N")
    if args.start_offset is not None and (*by_producer, args.coordinator_epoch) != (None, None, None):
        raise CannotRun("name the transaction in one way: --start-offset, or --producer-id with the epochs")
    if args.start_offset is not None and args.start_offset < 0:  # producers without a transaction have -1
        raise CannotRun(f"--start-offset must be 0 or more, not {args.start_offset}")
    _check_exists(args)
    if args.start_offset is None:
        producer = (args.producer_id, args.producer_epoch, args.coordinator_epoch or 0)
    else:
        producer = _producer_at(args)
    spec = AbortTransactionSpec(args.topic, args.partition, *producer)
    if not args.dry_run:
        ask(args, abort_transaction(spec))
    row = {**spec._asdict(), "aborted": not args.dry_run}
    names = {"producer_id": "producerId", "producer_epoch": "producerEpoch", "coordinator_epoch": "coordinatorEpoch"}
    row = {names.get(name, name): value for name, value in row.items()}
    what = f"the transaction of producer {spec.producer_id}, epoch {spec.producer_epoch}"
    where = partition_name((spec.topic, spec.partition))
    done(args, row, f"{'would abort' if args.dry_run else 'aborted'} {what} on {where}")
    return EXIT_OK


def _producer_at(args: argparse.Namespace) -> tuple[int, int, int]:
    """Return the producer whose transaction begins at an offset. Raises KafkaError if there is none."""
    from kcli.client.admin.error_sentences import kafka_error
    from kcli.client.admin.operation import value_of
    from kcli.client.admin.partitions import describe_producers
    from kcli.protocol import error_codes

    at = (args.topic, args.partition)
    for one in value_of(ask(args, describe_producers([at]))[at]):
        if one.transaction_start_offset == args.start_offset:
            return one.producer_id, one.producer_epoch, max(one.coordinator_epoch, 0)
    what = f"no open transaction of {partition_name(at)} begins at offset {args.start_offset}"
    raise kafka_error(error_codes.RESOURCE_NOT_FOUND, what)


def _terminate(args: argparse.Namespace) -> int:
    from kcli.client.admin.operation import value_of
    from kcli.client.admin.transactions import describe_transactions, fence_producers

    name = args.transactional_id
    value_of(ask(args, describe_transactions([name]))[name])  # fencing an id that does not exist would create it
    fenced, code = values_of(ask(args, fence_producers([name])), str)
    for one in fenced.values():
        row = {"transactionalId": name, "producerId": one.producer_id, "producerEpoch": one.producer_epoch}
        done(args, row, f"fenced the producer of {name}: it is producer {one.producer_id}, epoch {one.producer_epoch} now")
    return code
