"""`kcli consume`: prints the records of topics of a running cluster.

    options                              reading begins                           reading ends
    -----------------------------------  ---------------------------------------  ------------------------------------------
    none                                 at the first record                      at the end that each partition had when the
                                                                                  command started
    --offset A..B, --time A..B, --tail   at A, or N offsets before the end        the same, or before B
    --follow                             as without it                            never, or after --limit records
    --group                              at the group's committed offset, else    as without it, or when the group has given
                                         at the first record; offsets are         this member no partition for NOTHING_S
                                         committed after printing
    --timeout-ms, with any of these                                               also when no record has arrived for that time

Partitions are read concurrently: only the records of one partition are in order.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.commands.client_options import (
    ClientLog,
    add_client_options,
    check_cluster,
    client_errors,
    client_properties,
    common_settings,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message, write_out
from kcli.commands.record_formats import FormatTextError, Printer, format_printer, json_printer, unescape, value_printer
from kcli.commands.selection_options import READ_COMMITTED, add_selection_options, selection_of

if TYPE_CHECKING:
    from kcli.client import Consumer, ConsumerRecord, TopicPartition
    from kcli.selecting.selection import Selection

ARGUMENTS = "--topic TOPIC"
DESCRIPTION = """\
Prints the records of topics of a running cluster, from the first to the last. With --follow it continues with new
records. The options that select records are those of dump-log."""
EPILOG = """\
Exit codes: 0 done; 1 a topic does not exist; 2 the command could not run. docs/console.md has examples,
docs/json-output.md describes the members of --output json."""

POLL_MS = 500  # the longest wait before the end is compared
# Polls without a record after which a partition is checked for offsets without records.
EMPTY_POLLS = 2
# A member that joins with group.protocol=consumer, or cooperatively, gets partitions after another one gave them back: each of
# the two notices in a heartbeat, every 5 s by default.
NOTHING_S = 12.0


class Plan(NamedTuple):
    """Where each partition begins, and the offset at which it ends, None for never."""

    starts: dict[TopicPartition, int]
    ends: dict[TopicPartition, int] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli consume`."""
    parser.add_argument(
        "--topic", action="append", default=[], metavar="TOPIC", help="print the records of this topic; may be repeated"
    )
    parser.add_argument("--include", metavar="REGEX", help="print the records of all topics whose whole name matches")
    add_client_options(parser)
    group = parser.add_argument_group("selecting, as in dump-log")
    group.add_argument(
        "--partition", type=int, action="append", default=[], metavar="N", help="read only this partition; may be repeated"
    )
    add_selection_options(
        group,
        isolation_help="read_committed: no records of open or aborted transactions (read_uncommitted)",
        limit_aliases=["--max-messages"],
        tail_unit="offsets",
    )
    group = parser.add_argument_group("reading")
    group.add_argument("--from-beginning", action="store_true", help="begin at the first record (the default)")
    group.add_argument("--follow", action="store_true", help="do not stop at the end, but continue with new records")
    group.add_argument("--timeout-ms", type=int, metavar="MS", help="stop when no record has arrived for this time")
    group.add_argument(
        "--group", metavar="GROUP", help="read as a member of this consumer group, and commit offsets after printing"
    )
    group = parser.add_argument_group("output")
    group.add_argument(
        "--output", choices=["value", "json"], default="value", help="print values, or records as JSON (%(default)s)"
    )
    group.add_argument(
        "--format",
        metavar="TEXT",
        help="print records as TEXT: %%t topic, %%p partition, %%o offset, %%k key, %%s value, %%h headers, %%T time, ...",
    )
    group.add_argument("--delimiter", metavar="TEXT", help="print this after each value (\\n)")
    group.add_argument("--null-text", metavar="TEXT", help="print this for null (nothing)")


def run(args: argparse.Namespace) -> int:
    """Print the records and return the exit code. Raises CannotRun, and ReaderGone when the reader has enough."""
    if not args.topic and args.include is None:
        raise CannotRun("name a topic with --topic, or topics with --include REGEX")
    selection = selection_of(args, args.isolation)
    _check(args, selection)
    own = {"enable.auto.commit": "false", "auto.offset.reset": "earliest", "allow.auto.create.topics": "false"}
    properties = client_properties(args, {**own, "isolation.level": args.isolation, "group.id": args.group})
    printer = _printer(args)
    from kcli.client import Consumer

    with client_errors(), ClientLog() as log, Consumer(properties, log=log) as consumer:
        check_cluster(properties, log)
        log.watch(consumer)
        topics = _topics(consumer, args)
        if not topics:
            return EXIT_FINDINGS
        reading = _Reading(consumer, selection, printer, args, properties)
        if args.group is not None:
            consumer.subscribe(topics)
            reading.read_group()
        else:
            reading.read(_plan(consumer, topics, args, selection))
    return EXIT_OK


def _check(args: argparse.Namespace, selection: Selection) -> None:
    """Raise CannotRun for options that exclude each other."""
    chosen = [name for name in ("offset", "time", "tail", "partition") if getattr(args, name)]
    if args.group is not None and chosen:
        raise CannotRun(f"--group and --{chosen[0]} exclude each other: the group decides partitions and offsets")
    if args.tail is not None and (args.offset is not None or args.time is not None):
        raise CannotRun("--tail excludes --offset and --time")
    if args.timeout_ms is not None and args.timeout_ms < 0:
        raise CannotRun(f"--timeout-ms {args.timeout_ms}: write 0 or more milliseconds")
    if args.from_beginning and (args.group is not None or args.offset is not None or args.time is not None or args.tail):
        raise CannotRun("--from-beginning excludes --group, --offset, --time and --tail, which say where to begin")
    if args.format is not None and args.output != "value":
        raise CannotRun("--format and --output json exclude each other")
    if args.delimiter is not None and (args.format is not None or args.output != "value"):
        raise CannotRun("--delimiter is for values; --format contains what is printed between records")
    if args.null_text is not None and args.output != "value":
        raise CannotRun("--null-text is for values and --format: --output json prints null")


def _printer(args: argparse.Namespace) -> Printer:
    null_text = os.fsencode(args.null_text or "")
    try:
        if args.format is not None:
            return format_printer(args.format, null_text)
        return (
            json_printer()
            if args.output == "json"
            else value_printer(null_text, unescape("\\n" if args.delimiter is None else args.delimiter))
        )
    except FormatTextError as error:
        raise CannotRun(str(error)) from None


def _topics(consumer: Consumer, args: argparse.Namespace) -> list[str]:
    """Return the topics that are asked for and exist; a message is printed if there are none."""
    import re

    known = consumer.list_topics()
    found = list(dict.fromkeys(topic for topic in args.topic if topic in known))
    missing = [topic for topic in args.topic if topic not in known]
    if args.include is not None:
        try:
            found += [topic for topic in sorted(known) if re.fullmatch(args.include, topic) and topic not in found]
        except re.error as error:
            raise CannotRun(f"--include {args.include}: it is not a regular expression: {error}") from None
        if not found:
            missing.append(args.include)
    for topic in missing:
        from kcli.inspect.suggestions import did_you_mean

        print_message(f"there is no topic {topic}{did_you_mean(topic, known)}")
    return [] if missing else found


def _plan(consumer: Consumer, topics: Iterable[str], args: argparse.Namespace, selection: Selection) -> Plan:
    """Look up where each partition begins and ends. Raises CannotRun for a partition that does not exist."""
    from kcli.client import TopicPartition

    partitions: list[TopicPartition] = []
    for topic in topics:
        numbers = [one.partition for one in consumer.partitions_for(topic)]
        for wanted in args.partition:
            if wanted not in numbers:
                raise CannotRun(f"{topic} has no partition {wanted}, only {len(numbers)} from 0 on")
        partitions += [TopicPartition(topic, number) for number in args.partition or numbers]
    beginnings, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    starts = dict(beginnings)
    if selection.tail is not None:
        starts = {one: max(beginnings[one], ends[one] - selection.tail) for one in partitions}
    if selection.offsets.first is not None:
        starts = {one: min(max(beginnings[one], selection.offsets.first), ends[one]) for one in partitions}
    if selection.times.first is not None:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, max(selection.times.first, 0)))
        for one in partitions:
            at = found[one]
            starts[one] = max(starts[one], ends[one] if at is None else at.offset)
    if selection.offsets.end is not None:
        last = selection.offsets.end
        return Plan(starts, {one: last if args.follow else min(last, ends[one]) for one in partitions})
    return Plan(starts, None if args.follow else dict(ends))


class _Reading:
    """The records that are printed, until there is a reason to end."""

    def __init__(
        self,
        consumer: Consumer,
        selection: Selection,
        printer: Printer,
        args: argparse.Namespace,
        properties: Mapping[str, str],
    ) -> None:
        self._consumer = consumer
        self._properties = properties
        self._empty_polls = 0
        self._printer = printer
        self._left = selection.limit
        self._follow: bool = args.follow
        self._timeout_ms: int | None = args.timeout_ms
        self._is_selected = _filter(selection)
        self._found_s = time.monotonic()  # when the last record came
        self._nothing_since: tuple[int, float] | None = None  # the generation without partitions, and its begin

    def read(self, plan: Plan) -> None:
        """Read partitions from their starts to their ends."""
        consumer, ends = self._consumer, plan.ends
        by_place = {tuple(partition): end for partition, end in (ends or {}).items()}
        consumer.assign(list(plan.starts))
        for partition, offset in plan.starts.items():
            consumer.seek(partition, offset)
        unread = None if ends is None else {one for one in plan.starts if plan.starts[one] < ends[one]}
        while self._left != 0 and (unread is None or unread):
            found = self._poll()
            if found is None:
                return
            if ends is not None and unread is not None:
                found = [record for record in found if record.offset < by_place[record.topic, record.partition]]
                ended = {one for one in unread if consumer.position(one) >= ends[one]}
                unread -= ended
                unread -= self._without_records(found, unread, ends)
                self._print(found)
                consumer.pause(ended)
            else:
                self._print(found)

    def read_group(self) -> None:
        """Read what the group assigns to this member, and commit what was printed."""
        consumer = self._consumer
        ends: dict[TopicPartition, int] = {}
        while self._left != 0:
            found = self._poll()
            if found is None:
                return
            from kcli.client import OffsetAndMetadata

            done = self._print(found)
            if done:
                consumer.commit_sync({(one.topic, one.partition): OffsetAndMetadata(one.offset + 1) for one in done})
            if self._follow:
                continue
            assigned = consumer.assignment()
            if self._gets_nothing(assigned):
                print_message("the group has no partition for this member: the other members have all of them")
                return
            if not assigned:
                continue
            new = [one for one in assigned if one not in ends]
            ends |= consumer.end_offsets(new) if new else {}
            unread = {one for one in assigned if consumer.position(one) < ends[one]}
            if unread == self._without_records(found, unread, ends):
                return

    def _without_records(
        self, found: Sequence[ConsumerRecord], unread: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        """Return the unread partitions whose offsets up to their ends have no records, if none came for some time.

        The log cleaner and a repair may leave a log like that. The position of a consumer then never reaches the end.
        """
        self._empty_polls = 0 if found else self._empty_polls + 1
        if not unread or self._empty_polls < EMPTY_POLLS:
            return set()
        from kcli.client.errors import ClientError
        from kcli.replay.fetching import FetchClient

        self._empty_polls = 0
        isolation = int(self._properties.get("isolation.level") == READ_COMMITTED)
        missing = set()
        try:
            with FetchClient(common_settings(self._properties)) as client:
                for one in unread:
                    client.connect(one.topic)
                    offset = self._consumer.position(one)
                    if client.fetch(one, offset, isolation).result().skip_missing(offset) >= ends[one]:
                        missing.add(one)
        except ClientError:
            return set()  # the consumer reports what lasts
        return missing

    def _gets_nothing(self, assigned: Collection[TopicPartition]) -> bool:
        """Return whether the member has joined its group and has had no partition for NOTHING_S of one generation."""
        generation = self._consumer.group_metadata().generation_id
        if assigned or generation < 0:
            self._nothing_since = None
        elif self._nothing_since is None or self._nothing_since[0] != generation:
            self._nothing_since = generation, time.monotonic()
        return self._nothing_since is not None and time.monotonic() - self._nothing_since[1] >= NOTHING_S

    def _poll(self) -> Sequence[ConsumerRecord] | None:
        """Return the next records, none if there are none now, None if it is time to end."""
        if self._timeout_ms is None:
            return self._consumer.poll(POLL_MS / 1000)
        end_s = self._found_s + self._timeout_ms / 1000
        found = self._consumer.poll(min(POLL_MS / 1000, max(end_s - time.monotonic(), 0)))
        if found:
            self._found_s = time.monotonic()
        return found if found or time.monotonic() < end_s else None

    def _print(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Print the selected ones of records; return the records up to the limit, whose offsets may be committed."""
        chosen = [at for at, one in enumerate(records) if self._is_selected is None or self._is_selected(one)]
        if self._left is not None:
            if len(chosen) > self._left:
                chosen = chosen[: self._left]
                records = records[: chosen[-1] + 1 if chosen else 0]
            self._left -= len(chosen)
        data = b"".join([self._printer(records[at]) for at in chosen])
        if data:
            write_out(data)
        return records


def _filter(selection: Selection) -> Callable[[ConsumerRecord], bool] | None:
    """Return the function that selects records by time, key and headers; None if all are selected."""
    times, keys = selection.times, selection.keys
    headers = [(wanted.key.decode("utf-8", "surrogateescape"), wanted.value) for wanted in selection.headers]
    if times.first is None and times.end is None and not keys and not headers:
        return None

    def is_selected(record: ConsumerRecord) -> bool:
        if not times.has(record.timestamp) or (keys and record.key not in keys):
            return False
        own = record.headers
        return all(any(key == name and (wanted is None or value == wanted) for key, value in own) for name, wanted in headers)

    return is_selected
