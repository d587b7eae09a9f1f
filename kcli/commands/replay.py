"""`kcli replay`: send the records of segments, partitions or log directories to a Kafka cluster."""

from __future__ import annotations

import argparse

from kcli.commands.client_options import client_errors
from kcli.commands.output import CannotRun, print_message
from kcli.commands.selection_options import READ_COMMITTED, READ_UNCOMMITTED, add_selection_options, selection_of

JOIN_BYTES = "512KiB"
ARGUMENTS = "PATH... --to HOST:PORT"
DESCRIPTION = """\
Sends the records of segments, partitions or log directories to a Kafka cluster: to restore a
backup, to replay an incident, to move a topic. Each record keeps its partition, key, value,
headers, timestamp and order. Control records and records of aborted transactions are left out.
The same command continues an interrupted run, and sends no record twice."""
EPILOG = """\
Exit codes: 0 done; 1 the source is damaged (the rest was sent), or --check found differences;
2 the command could not run, or ended early. docs/replay.md has examples."""


# Options that have no meaning in a dry run without a target, and their defaults; a dry run with --to ignores them.
TARGET_OPTIONS: dict[str, object] = {
    **dict.fromkeys(("to_config", "name", "progress")),
    **dict.fromkeys(("no_create", "restart", "append", "groups", "check"), False),
    "group": [],
    "replication_factor": -1,
    "timeout": 30.0,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli replay`."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="segments, partitions, log directories, globs, or kafka://HOST:PORT"
    )
    parser.add_argument("--to", metavar="HOST:PORT[,...]", help="brokers of the target (bootstrap.servers)")
    parser.add_argument(
        "--to-config", metavar="FILE", help="settings of the client of the target, such as security.protocol (properties file)"
    )
    parser.add_argument("--from-config", metavar="FILE", help="the same for the source kafka://HOST:PORT")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be sent; send nothing")
    _add_topic_arguments(parser.add_argument_group("topics"))
    _add_schedule_arguments(parser.add_argument_group("speed (without these: as fast as acknowledgements allow)"))
    add_selection_options(
        parser.add_argument_group("selecting, as in dump-log"),
        batch_options=["producer-id", "transactional", "aborted"],
        isolation_help="read_committed (the default): no records of open or aborted transactions",
    )
    group = parser.add_argument_group("progress")
    group.add_argument(
        "--name",
        metavar="NAME",
        help="name of the replay (made of paths, selection, --map and --join); a run continues that with its name",
    )
    group.add_argument(
        "--progress", metavar="FILE", help="keep the progress in a file, not in the group kcli-replay-NAME of the target"
    )
    group.add_argument("--restart", action="store_true", help="send everything again, and ignore what earlier runs have sent")
    group.add_argument(
        "--append",
        action="store_true",
        help="send also to partitions that have records already, if no progress of this replay is found",
    )
    group = parser.add_argument_group("more")
    group.add_argument(
        "--groups", action="store_true", help="also commit the offsets of the groups in the target, translated to its offsets"
    )
    group.add_argument(
        "--group", metavar="GLOB", action="append", default=[], help="as --groups, but only for these groups; may be repeated"
    )
    group.add_argument(
        "--join",
        metavar="BYTES",
        nargs="?",
        const=JOIN_BYTES,
        help=f"join small batches that are not compressed into batches of up to BYTES; 0: send all batches as they are "
        f"(default: {JOIN_BYTES}; 0 with --speed or --rate)",
    )
    group.add_argument(
        "--check", action="store_true", help="at the end, read the records from the target and compare them with the source"
    )
    group.add_argument("--timeout", metavar="SECONDS", type=float, default=30.0, help="timeout of requests (%(default)s)")


def _add_topic_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--topic", metavar="GLOB", action="append", default=[], help="only topics of the source with this name; may be repeated"
    )
    group.add_argument(
        "--map",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help=r"give the topic OLD the name NEW in the target; OLD may be a regular expression: '(.*)=backup.\1'",
    )
    group.add_argument("--no-create", action="store_true", help="do not create topics that the target does not have")
    group.add_argument(
        "--replication-factor",
        metavar="N",
        type=int,
        default=-1,
        help="of topics that are created (default.replication.factor of the target)",
    )


def _add_schedule_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--speed", metavar="Nx", help="follow the timestamps: 1x is the original speed, 10x is ten times as fast"
    )
    group.add_argument("--rate", metavar="N", help="records per second (5000, 20K), or bytes per second (500KB, 10MB)")


def _check_target(args: argparse.Namespace) -> None:
    """Raise CannotRun if nothing says where to, but something what to do there."""
    if args.to:
        return
    if not args.dry_run:
        raise CannotRun("name the target: --to HOST:PORT, or --dry-run to send nothing")
    for name, default in TARGET_OPTIONS.items():
        if getattr(args, name) != default:
            raise CannotRun(f"--{name.replace('_', '-')} is about the target: name it, too, with --to HOST:PORT")


def run(args: argparse.Namespace) -> int:
    """Replay, and return the exit code. Raises CannotRun."""
    from kcli.commands.replay_run import ReplayRun
    from kcli.replay.directory_source import Problems
    from kcli.replay.scheduling import ScheduleError, parse_schedule
    from kcli.replay.source import SourceError
    from kcli.replay.topic_mapping import MappingError, parse_mapping

    _check_target(args)
    selection = selection_of(args, args.isolation or (READ_UNCOMMITTED if args.aborted else READ_COMMITTED))
    try:
        schedule = parse_schedule(args.speed, args.rate)
        mapping = parse_mapping(args.map, args.topic)
        with client_errors(), ReplayRun(args, selection, mapping, schedule, Problems(print_message)) as replay:
            return replay.dry_run() if args.dry_run else replay.run()
    except (MappingError, ScheduleError, SourceError) as error:
        raise CannotRun(str(error)) from None
