"""`kcli groups`: lists, describes, resets and deletes the groups of a running cluster, of all types (Kafka: kafka-groups,
kafka-consumer-groups, kafka-share-groups, kafka-streams-groups).

The options of `kcli groups reset-offsets`, and the plan that they ask for (Kafka: ConsumerGroupCommand).

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

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    cell,
    done,
    known_words,
    partition_name,
    partitions_of,
    print_lines,
    run_action,
    select,
    show,
    split_words,
    table,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject, dump
from kcli.inspect.quantities import format_count
from kcli.network.events import PeerAddress

if TYPE_CHECKING:
    from kcli.client.admin.group_lag import AnyDescription, GroupLag
    from kcli.client.admin.group_reset import PlannedOffset, ResetTo
    from kcli.client.admin.groups import GroupListing, ListedGroups
    from kcli.client.admin.operation import Operation, Outcomes

USAGE = ACTION_USAGE
DESCRIPTION = (
    "Lists, describes, resets and deletes the groups of a running cluster: classic, consumer, share and streams groups."
)
EPILOG = action_epilog("groups")

_LISTED = (("group", "group"), ("type", "type"), ("protocol", "protocol"), ("state", "state"))
_LAGS = (
    ("topic", "topic"),
    ("partition", "partition"),
    ("current offset", "currentOffset"),
    ("log end offset", "logEndOffset"),
    ("lag", "lag"),
    ("member", "memberId"),
    ("host", "host"),
    ("client", "clientId"),
    ("error", "error"),
)
_MEMBERS = (
    ("member", "memberId"),
    ("instance", "instanceId"),
    ("host", "host"),
    ("client", "clientId"),
    ("epoch", "memberEpoch"),
    ("partitions", "partitionCount"),
    ("assignment", "assignment"),
    ("target", "targetAssignment"),
)
_STATES = (
    ("group", "group"),
    ("type", "type"),
    ("state", "state"),
    ("assignor", "assignor"),
    ("epoch", "groupEpoch"),
    ("members", "memberCount"),
    ("coordinator", "coordinator"),
)
_RESET = (("topic", "topic"), ("partition", "partition"), ("current offset", "currentOffset"), ("new offset", "newOffset"))
run = run_action


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli groups`."""
    actions = add_actions(parser)
    listing = add_action(actions, "list", _list, "list groups with their types and states")
    listing.add_argument(
        "--state",
        metavar="STATES",
        action="append",
        default=[],
        help="only groups in one of these states, such as Stable,Empty; may be repeated",
    )
    listing.add_argument(
        "--type",
        metavar="TYPES",
        action="append",
        default=[],
        help="only groups of these types: classic, consumer, share, streams; may be repeated",
    )
    listing.add_argument("--protocol", metavar="NAME", help="only groups of this protocol type, such as consumer")

    describing = add_action(actions, "describe", _describe, "show offsets and lag, members or states of groups")
    _add_groups(describing)
    what = describing.add_mutually_exclusive_group()
    what.add_argument("--offsets", action="store_true", help="show the offset and lag of each partition (the default)")
    what.add_argument("--members", action="store_true", help="show the members and their assignments")
    what.add_argument("--state", action="store_true", help="show one line for each group")

    resetting = add_action(actions, "reset-offsets", _reset, "show which offsets a group would get; with --execute, set them")
    add_reset_options(resetting)

    deleting = add_action(actions, "delete", _delete, "delete groups without members")
    _add_groups(deleting)
    deleting.add_argument("--dry-run", action="store_true", help="only print the names of the groups; delete nothing")

    offsets = add_action(actions, "delete-offsets", _delete_offsets, "delete offsets of a group")
    offsets.add_argument("--group", metavar="GROUP", required=True, help="id of the group")
    offsets.add_argument(
        "--topic",
        metavar="TOPIC[:0,1]",
        action="append",
        required=True,
        help="all partitions of a topic, or some; may be repeated",
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--group",
        metavar="GROUP",
        action="append",
        default=[],
        help="groups with this id, * and ? match any characters; may be repeated",
    )
    which.add_argument("--all-groups", action="store_true", help="all groups")


# --------------------------------------------------------------------------------------------------------------------- list


def listed_groups(args: argparse.Namespace, listed: ListedGroups) -> dict[str, GroupListing]:
    """Return the groups by id; a broker that did not list its groups is reported, CannotRun if none did."""
    for broker, error in listed.errors.items():
        print_message(f"broker {broker} did not list its groups: {error}")
    if listed.errors and not listed.groups:
        raise CannotRun("no groups are known")
    return {one.group_id: one for one in listed.groups}


def _list(args: argparse.Namespace) -> int:
    from kcli.client.admin.groups import GROUP_STATES, GROUP_TYPES, list_groups

    states = known_words("--state", split_words(args.state), GROUP_STATES)
    types = known_words("--type", split_words(args.type), (one.lower() for one in GROUP_TYPES))
    protocols = [] if args.protocol is None else [args.protocol]
    listed = ask(args, list_groups(states=states, types=types, protocols=protocols))
    groups = listed_groups(args, listed)
    rows = [
        {"group": one.group_id, "type": one.type or None, "protocol": one.protocol, "state": one.state or None}
        for one in groups.values()
    ]
    show(args, rows, _LISTED, "there are no groups")
    return EXIT_FINDINGS if listed.errors else EXIT_OK


def _chosen(args: argparse.Namespace) -> tuple[list[GroupListing], int]:
    """Return the groups that the options name, and the exit code so far."""
    from kcli.client.admin.groups import list_groups

    listed = ask(args, list_groups())
    groups = listed_groups(args, listed)
    chosen = select("group", args.group, groups)
    return [groups[name] for name in chosen.names], EXIT_FINDINGS if listed.errors else chosen.code


# ----------------------------------------------------------------------------------------------------------------- describe


def _describe(args: argparse.Namespace) -> int:
    from kcli.client.admin.group_lag import describe_group_lags
    from kcli.client.admin.groups import CoordinatorNode, find_coordinators

    listings, code = _chosen(args)
    if not listings:
        return code
    if args.state:
        described, refused = _described(args, listings)
        nodes = ask(args, find_coordinators(described))
        hosts = {
            name: f"{PeerAddress(one.host, one.port)} ({one.node_id})"
            for name, one in nodes.items()
            if isinstance(one, CoordinatorNode)
        }
        show(args, [_state_row(one, hosts.get(name)) for name, one in described.items()], _STATES)
    elif args.members:
        described, refused = _described(args, listings)
        for one in described.values():
            _show_block(args, _state_row(one), "members", _member_rows(one), _MEMBERS)
    else:
        lags, refused = values_of(ask(args, describe_group_lags(listings)), str)
        for lag in lags.values():
            rows = _lag_rows(lag)
            _show_block(args, _state_row(lag.description), "partitions", rows, _LAGS)
            if any(row["error"] is not None for row in rows):
                code = EXIT_FINDINGS
    return max(code, refused)


def _described(args: argparse.Namespace, listings: list[GroupListing]) -> tuple[dict[str, AnyDescription], int]:
    """Return descriptions by group id, and the exit code."""
    from kcli.client.admin.group_lag import describe_groups

    outcomes = ask(args, describe_groups(listings))
    described: tuple[dict[str, AnyDescription], int] = values_of(outcomes, str)
    return described


def _show_block(
    args: argparse.Namespace, head: JsonObject, name: str, rows: list[JsonObject], columns: tuple[tuple[str, str], ...]
) -> None:
    """Print one group: an object with its rows, or a line and a table."""
    if args.output == "json":
        print_lines([dump({**head, name: rows})])
        return
    members = format_count(head["memberCount"], "member")
    title = f"{cell(head['group'])}  {head['type'].lower()} group, {head['state']}, {members}"
    print_lines([title, *(table(rows, columns) if rows else [f"  no {name}"])])


def _state_row(one: AnyDescription, coordinator: str | None = None) -> JsonObject:
    from kcli.client.admin.groups import STREAMS, GroupDescription

    row: JsonObject = {
        "group": one.group_id,
        "type": one.type if isinstance(one, GroupDescription) else STREAMS,
        "state": one.state,
        "assignor": (one.assignor or None) if isinstance(one, GroupDescription) else None,
        "groupEpoch": one.group_epoch if one.group_epoch >= 0 else None,
        "memberCount": len(one.members),
    }
    return row if coordinator is None else {**row, "coordinator": coordinator}


def _member_rows(one: AnyDescription) -> list[JsonObject]:
    from kcli.client.admin.groups import GroupMember
    from kcli.client.admin.partitions import by_topic

    rows: list[JsonObject] = []
    for member in one.members:
        row: JsonObject = {
            "memberId": member.member_id,
            "instanceId": member.instance_id,
            "host": member.host,
            "clientId": member.client_id,
            "memberEpoch": member.member_epoch if member.member_epoch >= 0 else None,
        }
        if isinstance(member, GroupMember):
            target = member.target_assignment
            row["partitionCount"] = len(member.assignment)
            row["assignment"] = {topic: sorted(at) for topic, at in by_topic(member.assignment).items()}
            row["targetAssignment"] = None if target is None else {topic: sorted(at) for topic, at in by_topic(target).items()}
            row["subscribedTopics"] = list(member.subscribed_topics)
            row["subscribedRegex"] = member.subscribed_regex
        else:
            tasks = member.assignment.active_tasks
            row["partitionCount"] = sum(map(len, tasks.values()))
            row["assignment"] = {name: sorted(at) for name, at in tasks.items()}
            row["standbyTasks"] = {name: sorted(at) for name, at in member.assignment.standby_tasks.items()}
            row["warmupTasks"] = {name: sorted(at) for name, at in member.assignment.warmup_tasks.items()}
            row["processId"] = member.process_id
        rows.append(row)
    return rows


def _lag_rows(one: GroupLag) -> list[JsonObject]:
    rows: list[JsonObject] = []
    for lag in one.partitions:
        owner = lag.member
        rows.append(
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "currentOffset": lag.current_offset,
                "logEndOffset": lag.log_end_offset,
                "lag": lag.lag,
                "memberId": None if owner is None else owner.member_id,
                "host": None if owner is None else owner.host,
                "clientId": None if owner is None else owner.client_id,
                "error": None if lag.error is None else str(lag.error),
            }
        )
    return rows


# ------------------------------------------------------------------------------------------------------------------- change


def _reset(args: argparse.Namespace) -> int:
    from kcli.client.admin.group_reset import commit_plan

    if args.export and args.output == "json":
        raise CannotRun("--export prints CSV, which excludes --output json")
    plan = planned(args)
    rows: list[JsonObject] = [
        {"group": args.group, "topic": topic, "partition": partition, "currentOffset": one.current, "newOffset": one.new}
        for (topic, partition), one in sorted(plan.offsets.items())
    ]
    code = plan.code
    if args.execute and plan.offsets:
        values, refused = values_of(ask(args, commit_plan(args.group, plan.offsets, is_share=plan.is_share)), partition_name)
        rows = [row for row in rows if (row["topic"], row["partition"]) in values]
        code = max(code, refused)
    if args.export:
        print_lines(f"{row['topic']},{row['partition']},{row['newOffset']}" for row in rows)
    else:
        show(args, rows, _RESET, "" if code else f"group {args.group} has no partitions to reset")
    if not args.execute and rows:
        print_message("this is a plan, nothing is changed; --execute sets these offsets")
    return code


def _delete(args: argparse.Namespace) -> int:
    from kcli.client.admin.groups import delete_groups

    listings, code = _chosen(args)
    names = [one.group_id for one in listings]
    if names and not args.dry_run:
        values, refused = values_of(ask(args, delete_groups(names)), str)
        names, code = list(values), max(code, refused)
    for name in names:
        row = {"group": name, "deleted": not args.dry_run}
        done(args, row, f"{'would delete' if args.dry_run else 'deleted'} group {name}")
    return code


def _delete_offsets(args: argparse.Namespace) -> int:
    from kcli.client.admin.group_offsets import delete_consumer_group_offsets, delete_share_group_offsets
    from kcli.client.admin.group_reset import current_offsets
    from kcli.client.admin.groups import SHARE

    args.all_groups, args.group, group = False, [args.group], args.group
    listings, code = _chosen(args)
    if not listings:
        return code
    is_share = listings[0].type == SHARE
    wanted = partitions_of(args.topic)
    if is_share:
        if any(numbers is not None for _, numbers in wanted):
            raise CannotRun("a share group loses its offsets of whole topics: name them without partitions")
        topics, refused = values_of(ask(args, delete_share_group_offsets(group, [topic for topic, _ in wanted])), str)
        for topic in topics:
            done(args, {"group": group, "topic": topic, "deleted": True}, f"deleted the offsets of {topic}")
        return max(code, refused)
    known = ask(args, current_offsets(group))
    partitions = [at for at in known if any(at[0] == topic and numbers is None for topic, numbers in wanted)]
    partitions += [(topic, number) for topic, numbers in wanted if numbers is not None for number in numbers]
    deleted, refused = values_of(ask(args, delete_consumer_group_offsets(group, partitions)), partition_name)
    for at in deleted:
        row = {"group": group, "topic": at[0], "partition": at[1], "deleted": True}
        done(args, row, f"deleted the offset of {partition_name(at)}")
    if not partitions:
        print_message(f"group {group} has no offsets of {', '.join(topic for topic, _ in wanted)}")
        code = EXIT_FINDINGS
    return max(code, refused)
