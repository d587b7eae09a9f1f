"""`kcli describe`: shows the contents of log directories, without a broker."""

from __future__ import annotations

import argparse
import shutil
import time
from typing import TYPE_CHECKING

from kcli.commands.node_configuration import node_defaults
from kcli.commands.output import CannotRun, exit_code, is_terminal, print_message, use_colour, write_out
from kcli.commands.paths import distinct_paths
from kcli.inspect.description.describe_options import SECTIONS, SORTS
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.description.description import Description

ARGUMENTS = "DIR..."
DESCRIPTION = """\
Shows the contents of log directories: topics, partitions, offsets, sizes, codecs, time spans, groups with
their committed offsets and lag, transactions, brokers, configurations, ACLs. No broker is needed."""
EPILOG = f"""\
Sections for --show: {", ".join(SECTIONS[:8])},
{", ".join(SECTIONS[8:])}; or all.
Give all log directories of a node (log.dirs, metadata.log.dir), or some of a cluster's nodes, or a partition's
directory. Exit codes: 0 all could be read, 1 something is damaged or no topic or group has the name (all else is
shown), 2 could not run.
docs/describe.md says where each answer comes from, and has the schema of --output json."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli describe`."""
    parser.add_argument("paths", nargs="*", metavar="DIR", help="log directories, partitions' directories, or globs")
    parser.add_argument(
        "--show",
        metavar="SECTIONS",
        action="append",
        default=[],
        help="whole sections, separated by commas, instead of an overview",
    )
    parser.add_argument(
        "--topic", metavar="GLOB", action="append", default=[], help="topics with such a name; several: any of them"
    )
    parser.add_argument(
        "--group", metavar="GLOB", action="append", default=[], help="groups with such an id; several: any of them"
    )
    parser.add_argument(
        "--deep", action="store_true", help="read every batch, and so count the batches and records of large segments, too"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="the broker's server.properties: what it sets for all topics, for the section compaction",
    )
    parser.add_argument(
        "--sort",
        choices=SORTS,
        default="name",
        metavar="ORDER",
        help=f"order of the rows, the largest or latest first: {', '.join(SORTS[1:])}; or name (%(default)s)",
    )
    parser.add_argument("--output", choices=["text", "json"], default="text", help="tables, or one JSON object a line")


def run(args: argparse.Namespace) -> int:
    """Describe the directories and return the exit code. Raises CannotRun if there is nothing to describe."""
    from kcli.inspect.description.describe_options import DescribeOptions
    from kcli.inspect.description.description import describe
    from kcli.inspect.description.sources import DescriptionError

    if not args.paths:
        raise CannotRun("name what to describe: kcli describe DIR...")
    asked = _asked_sections(args.show)
    if not asked and args.output == "json":
        asked = frozenset(SECTIONS)
    options = DescribeOptions(
        asked or None, tuple(args.topic), tuple(args.group), args.deep, time.time_ns() // 1_000_000, args.sort
    )
    try:
        description = describe(OsDisk(), distinct_paths(args.paths), options, node_defaults(args.config))
    except DescriptionError as error:
        raise CannotRun(str(error)) from None
    for problem in description.problems:
        print_message(f"{problem.path}: {problem.message}")
    if args.output == "json" or not description.matches_nothing:
        _print(description, args.output)
    return exit_code(is_sound=not description.problems, all_opened=description.all_opened)


def _asked_sections(given: list[str]) -> frozenset[str]:
    names = {name.strip() for part in given for name in part.split(",") if name.strip()}
    unknown = sorted(names - {*SECTIONS, "all"})
    if unknown:
        raise CannotRun(f"--show: {unknown[0]!r} is not a section; the sections are {', '.join(SECTIONS)}, and all")
    return frozenset(SECTIONS if "all" in names else names)


def _print(description: Description, output: str) -> None:
    if output == "json":
        from kcli.inspect.renderers.description_report import json_lines

        lines = json_lines(description.report)
    else:
        from kcli.inspect.renderers.description_report import description_lines

        columns = shutil.get_terminal_size().columns if is_terminal() else None
        lines = description_lines(description.report, overview=description.is_overview, colour=use_colour(), columns=columns)
    # A directory name that is not UTF-8 has lone surrogates. They are written as escapes, which are also valid in JSON.
    write_out("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
