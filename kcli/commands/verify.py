"""`kcli verify`: checks log directories, partitions and segments by everything that a Kafka broker relies on."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from kcli.commands.output import (
    EXIT_CANNOT_RUN,
    EXIT_HOLES,
    EXIT_OK,
    CannotRun,
    exit_code,
    print_message,
    print_text,
    use_colour,
)
from kcli.commands.progress import progress_bar
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.log.files.log_directory import PathProblem, ResolvedPath

ARGUMENTS = "PATH..."
DESCRIPTION = """\
Checks log directories, partitions and single segments by everything that a Kafka broker relies on: batches,
records, offsets, indexes, producers, transactions, snapshots, leader epochs, checkpoints, names."""
EPILOG = """\
Paths are log directories, partition directories, files and globs; several log directories are checked against
each other too. Exit codes: 0 sound, 1 findings, 2 could not run, 3 no damage, but offsets are missing.
docs/findings.md lists all findings, docs/verify.md has examples and the schema of --output json."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli verify`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="log directories, partition directories, files or globs")
    parser.add_argument(
        "--output", choices=["text", "json"], default="text", help="one line a finding, or one JSON object a line"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="how many cores to use (all of them)")
    group = parser.add_argument_group("repairing (instead of verifying)")
    group.add_argument("--repair", action="store_true", help="show what a repair would do; with --apply do it")
    how = group.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="change nothing (this is the default)")
    how.add_argument("--apply", action="store_true", help="carry the plan out")
    # The earlier name, by itself: argparse would name both as one word, --apply/--no-dry-run, in its messages.
    how.add_argument("--no-dry-run", dest="apply", action="store_true", help=argparse.SUPPRESS)
    group.add_argument(
        "--like-kafka", action="store_true", help="cut the log at the first bad batch, as a broker does after a crash"
    )
    group.add_argument(
        "--take-inner",
        action="store_true",
        help="keep what looks like sound batches inside of damaged ones: they may be the payload of a record",
    )
    group.add_argument(
        "--quarantine", metavar="DIR", help="where to keep what is removed (LOGDIR.quarantine, next to the log directory)"
    )


def _check_repair_arguments(args: argparse.Namespace) -> None:
    if not args.repair and (args.apply or args.like_kafka or args.quarantine or args.dry_run or args.take_inner):
        raise CannotRun("--apply, --dry-run, --like-kafka, --take-inner and --quarantine belong to a repair: add --repair")
    if args.like_kafka and args.take_inner:
        raise CannotRun("--take-inner has no meaning with --like-kafka, which cuts the log at the first bad batch")


def run(args: argparse.Namespace) -> int:
    """Verify or repair `args.paths` and return the exit code. Raises CannotRun."""
    from kcli.log.files.log_directory import resolve_paths

    _check_repair_arguments(args)
    if not args.paths:
        verb, command = ("repair", "verify --repair") if args.repair else ("verify", "verify")
        raise CannotRun(f"name what to {verb}: kcli {command} PATH...")
    if args.processes is not None and args.repair:
        raise CannotRun("--processes is for verifying: a repair changes one partition after the other")
    if args.processes is not None and args.processes < 1:
        raise CannotRun("--processes takes a number of cores, 1 or more")
    disk = OsDisk()
    targets, problems = resolve_paths(disk, args.paths)
    for problem in problems:
        print_message(problem.message)
    if not targets:
        return EXIT_CANNOT_RUN
    if args.repair:
        from kcli.commands.repair_output import run_repair

        return run_repair(disk, args, targets, all_opened=not problems)
    return _verify(disk, args, targets, problems)


def _verify(disk: OsDisk, args: argparse.Namespace, targets: list[ResolvedPath], problems: list[PathProblem]) -> int:
    from kcli.inspect.process_pool import WorkerLostError
    from kcli.inspect.renderers.verify_report import json_lines, report_lines
    from kcli.inspect.verification.verifier import Verifier
    from kcli.log.files.quarantine import default_folder

    verifier = Verifier(disk, targets, lambda path: default_folder(os.path.realpath(path)))
    try:
        with progress_bar(verifier.total_bytes) as bar:
            report = verifier.run(args.processes or len(os.sched_getaffinity(0)), bar.advance if bar is not None else None)
    except WorkerLostError as error:
        raise CannotRun(str(error)) from None
    if args.output == "json":
        print_text("\n".join(json_lines(report, problems)))
    else:
        print_text("\n".join(report_lines(report, colour=use_colour())))
    code = exit_code(is_sound=report.is_undamaged, all_opened=not problems)
    return EXIT_HOLES if code == EXIT_OK and not report.is_sound else code
