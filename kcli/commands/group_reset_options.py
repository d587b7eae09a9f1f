"""The options of `kcli groups reset-offsets`, and the plan that they ask for (Kafka: ConsumerGroupCommand).

option                  new offsets
----------------------  -----------------------------------------------------------------------------------------
--to-earliest           the first offsets
--to-latest             the ends
--to-current            the committed offsets; the ends for partitions without one
--to-offset N           N, within the bounds of each partition
--shift-by N            N more than the committed offsets, or less, within the bounds
--to-datetime TIME      of the first records at or after a time, as the other commands of kcli read it
--by-duration DURATION  the same, for that long before now: an ISO 8601 duration such as PT12H or P2DT3H4M
--from-file FILE        lines `topic,partition,offset` or `group,topic,partition,offset`, as --export prints the former
"""

from __future__ import annotations

import argparse
import csv
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from kcli.commands.admin_command import ask, partition_name, partitions_of, values_of
from kcli.commands.output import CannotRun

if TYPE_CHECKING:
    from kcli.client.admin.group_reset import PlannedOffset, ResetTo
    from kcli.client.admin.operation import Operation, Outcomes

_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?"
)
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}


class Plan(NamedTuple):
    """The new offsets by partition, and the exit code so far."""

    offsets: dict[tuple[str, int], PlannedOffset]
    is_share: bool
    code: int


def add_reset_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--group", metavar="GROUP", required=True, help="id of the group; --execute creates a group that does not exist"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--topic",
        metavar="TOPIC[:0,1]",
        action="append",
        default=[],
        help="all partitions of a topic, or some; may be repeated",
    )
    which.add_argument("--all-topics", action="store_true", help="all partitions for which the group has committed offsets")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="to the first offset of each partition")
    to.add_argument("--to-latest", action="store_true", help="to the end of each partition")
    to.add_argument("--to-current", action="store_true", help="to the committed offsets")
    to.add_argument("--to-offset", metavar="N", type=int, help="to this offset")
    to.add_argument("--shift-by", metavar="N", type=int, help="N offsets forward, or back if N is negative")
    to.add_argument(
        "--to-datetime", metavar="TIME", help="to this time: 2026-11-14T22:13:20 (UTC without a zone), or ms since 1970"
    )
    to.add_argument("--by-duration", metavar="DURATION", help="to this long before now: PT12H, P7D")
    to.add_argument("--from-file", metavar="FILE", help="to the offsets in a CSV file of topic,partition,offset")
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--dry-run", action="store_true", help="only print the new offsets; change nothing (the default)")
    does.add_argument("--execute", action="store_true", help="set the offsets")
    parser.add_argument("--export", action="store_true", help="print the new offsets as CSV for --from-file")


def duration_ms(text: str) -> int:
    """Parse an ISO 8601 duration of days to seconds. Raises CannotRun."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[unit] for unit in _UNITS_MS):
        raise CannotRun(f"--by-duration: {text!r} is not a duration such as PT12H, PT30M or P7DT1H")
    total = sum(float(found[unit]) * ms for unit, ms in _UNITS_MS.items() if found[unit])
    return int(-total if found["sign"] else total)


def _target(args: argparse.Namespace) -> tuple[ResetTo, int]:
    """Return what the new offsets follow from. Raises CannotRun."""
    from kcli.client.admin.group_reset import ResetTo
    from kcli.selecting.selection import parse_period

    if args.to_earliest:
        return ResetTo.EARLIEST, 0
    if args.to_latest:
        return ResetTo.LATEST, 0
    if args.to_offset is not None:
        return ResetTo.OFFSET, args.to_offset
    if args.shift_by is not None:
        return ResetTo.SHIFT, args.shift_by
    if args.to_datetime is not None:
        try:
            return ResetTo.TIME, max(parse_period(args.to_datetime).first_ms, 0)
        except ValueError as error:
            raise CannotRun(f"--to-datetime: {error}") from None
    if args.by_duration is not None:
        return ResetTo.TIME, max(time.time_ns() // 1_000_000 - duration_ms(args.by_duration), 0)
    return ResetTo.CURRENT, 0


def planned(args: argparse.Namespace) -> Plan:
    """Return the plan for the options; partitions that have no new offset are reported. Raises CannotRun, KafkaError."""
    from kcli.client.admin.group_lag import describe_groups
    from kcli.client.admin.group_reset import SHARE_RESETS, check_inactive, plan_offsets
    from kcli.client.admin.groups import SHARE, GroupListing, list_groups

    listed = ask(args, list_groups())
    by_id = {one.group_id: one for one in listed.groups}
    for broker, error in listed.errors.items():
        if args.group not in by_id:
            raise CannotRun(f"the type of group {args.group} is not known: broker {broker} did not list its groups: {error}")
    listing = by_id.get(args.group, GroupListing(args.group, "", "", ""))
    is_share = listing.type == SHARE
    check_inactive(ask(args, describe_groups([listing]))[args.group])
    if args.from_file is not None:
        if args.topic or args.all_topics:
            raise CannotRun("--from-file names the partitions: it excludes --topic and --all-topics")
        offsets = read_plan(args.from_file, args.group)
        outcomes = ask(args, plan_offsets(args.group, offsets))
    else:
        if not args.topic and not args.all_topics:
            raise CannotRun("name what to reset: --topic TOPIC, --all-topics or --from-file FILE")
        to, value = _target(args)
        if is_share and to not in SHARE_RESETS:
            raise CannotRun("a share group is reset with --to-earliest, --to-latest, --to-datetime or --by-duration")
        outcomes = ask(args, _plan(args, to, value, is_share))
    values, code = values_of(outcomes, partition_name)
    return Plan(values, is_share, code)


def _plan(
    args: argparse.Namespace, to: ResetTo, value: int, is_share: bool
) -> Operation[Outcomes[tuple[str, int], PlannedOffset]]:
    from kcli.client.admin.group_reset import current_offsets, plan_reset
    from kcli.client.admin.topics import describe_topic

    partitions: list[tuple[str, int]] = []
    if args.all_topics:
        partitions += yield from current_offsets(args.group, is_share=is_share)
    for topic, numbers in partitions_of(args.topic):
        description = yield from describe_topic(topic)
        if numbers is None:
            numbers = [one.partition for one in description.partitions]
        partitions += ((topic, number) for number in numbers)
    return (yield from plan_reset(args.group, partitions, to, value, is_share=is_share))


def read_plan(path: str, group: str) -> dict[tuple[str, int], int]:
    """Return the offsets of a CSV file; lines of other groups are ignored. Raises CannotRun."""
    try:
        return _read_lines(path, group)
    except (UnicodeDecodeError, csv.Error) as error:
        raise CannotRun(f"{path} is not a CSV file in UTF-8: {error}") from None


def _read_lines(path: str, group: str) -> dict[tuple[str, int], int]:
    offsets: dict[tuple[str, int], int] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for number, words in enumerate(csv.reader(file), 1):
            if not words:
                continue
            of_group = words[0] if len(words) == 4 else group
            try:
                topic, partition, offset = words[-3:]
                at = (topic, int(partition))
                new = {at: int(offset)} if of_group == group else {}
            except ValueError:
                what = "topic,partition,offset or group,topic,partition,offset"
                raise CannotRun(f"{path}, line {number}: {','.join(words)!r} is not {what}") from None
            if new.keys() & offsets.keys():
                raise CannotRun(f"{path}, line {number}: {topic}-{partition} was named before")
            offsets |= new
    return offsets
