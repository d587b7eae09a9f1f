"""`kcli verify`: checks log directories, partitions and segments by everything that a Kafka broker relies on."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from kcli.commands.output import (
    EXIT_CANNOT_RUN,
    EXIT_FINDINGS,
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
    from kcli.server.config.serving import ClusterUse

ARGUMENTS = "PATH..."
DESCRIPTION = """\
Checks log directories, partitions and single segments by everything that a Kafka broker relies on: batches,
records, offsets, indexes, producers, transactions, snapshots, leader epochs, checkpoints, names. With --can-serve it
checks instead whether kcli serves all that a cluster of Apache Kafka uses: the settings of the file, and with the
directories the features, topics, ACLs and quotas of its metadata."""
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
    parser.add_argument(
        "--can-serve",
        metavar="FILE",
        help="list what this server.properties, and the log directories of its node, use that kcli serve does not serve",
    )
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
    if args.can_serve is not None:
        if args.repair or args.processes is not None:
            raise CannotRun("--can-serve reads the settings and the metadata: it is not for --repair and --processes")
        return _can_serve(args)
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


def _can_serve(args: argparse.Namespace) -> int:
    """Print what kcli does not serve of a cluster, and return EXIT_FINDINGS if kcli refuses or ignores any of it."""
    from kcli.inspect.json_text import dump
    from kcli.server.config import ConfigError, load_config
    from kcli.server.config.serving import Effect, not_served

    try:
        config = load_config(args.can_serve, serving=False)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    use, code = _use_of(args.paths) if args.paths else (None, EXIT_OK)
    found = not_served(config, use)
    refused, ignored, harmless = (sum(one.effect == effect for one in found) for effect in Effect)
    if args.output == "json":
        for one in found:
            row = {"effect": one.effect.value, "of": one.of, "name": one.name, "sentence": one.sentence}
            print_text(dump({"type": "not-served", **row}))
        counts = {"refused": refused, "ignored": ignored, "noMeaning": harmless}
        print_text(dump({"type": "summary", "canServe": not refused, **counts}))
    else:
        verdict = "kcli serves all of it"
        if refused or ignored:
            verdict = "kcli does not serve it" if refused else "kcli serves it without what is ignored"
        seen = "the settings and the metadata" if use is not None else "the settings; name log directories for the metadata"
        counted = f"{refused} refused, {ignored} ignored, {harmless} without meaning"
        print_text("\n".join([*(f"{one.effect}: {one.sentence}" for one in found), f"{verdict}: {counted} (checked: {seen})"]))
    return code or (EXIT_FINDINGS if refused or ignored else EXIT_OK)


def _use_of(paths: list[str]) -> tuple[ClusterUse, int]:
    """Return what the metadata in log directories uses, and the exit code of reading it. Raises CannotRun if it has none."""
    from kcli.commands.node_configuration import node_defaults
    from kcli.inspect.description.describe_options import DescribeOptions
    from kcli.inspect.description.description import describe
    from kcli.inspect.description.sources import DescriptionError
    from kcli.server.config.serving import ClusterUse

    sections = frozenset({"cluster", "configs", "acls", "users", "quotas", "tokens"})
    try:
        found = describe(OsDisk(), paths, DescribeOptions(sections, (), (), False, 0, "name"), node_defaults(None))
    except DescriptionError as error:
        raise CannotRun(str(error)) from None
    for problem in found.problems:
        print_message(f"{problem.path}: {problem.message}")
    (cluster,) = found.report["cluster"]
    directories = {one["path"]: one["metaVersion"] for one in cluster["logDirectories"] if one["metaVersion"] is not None}
    if cluster["metadata"] is None and 0 not in directories.values():
        raise CannotRun(f"{' '.join(paths)}: no metadata of the cluster is there: name the directory of metadata.log.dir, too")
    configs = [(one["resourceType"], one["resourceName"], one["name"], one["value"]) for one in found.report["configs"] or ()]
    acls, users, quotas, tokens = (len(found.report[name] or ()) for name in ("acls", "users", "quotas", "tokens"))
    features = {one["name"]: one["level"] for one in cluster["features"] or ()}
    use = ClusterUse(features, configs, acls, users, quotas, tokens, directories)
    return use, exit_code(is_sound=True, all_opened=found.all_opened)
