"""`kcli format`: formats empty log directories for a node of a cluster, or shows what they are (Kafka: kafka-storage).

option           kafka-storage
---------------  -------------------------------------------------------------------------------------
(none)           format
--info           info: what each directory is; exit code 1 if one is missing, not formatted, of another
                 node or cluster, or cannot be read
--random-uuid    random-uuid: a new id, for a cluster or a directory
"""

from __future__ import annotations

import argparse
import os
import time

from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_text
from kcli.log.disk.os_disk import OsDisk

ARGUMENTS = "--config FILE | --random-uuid"
DESCRIPTION = """\
Formats the empty log directories of a configuration for a node, as kafka-storage format of Apache Kafka does;
kcli and Kafka can then start on them. kcli serve formats an empty directory itself. --info shows what the
directories are, and changes nothing."""
EPILOG = """\
A controller without controller.quorum.voters needs one of --standalone, --initial-controllers and
--no-initial-controllers. Exit codes: 0 formatted, 1 a problem that --info found, 2 could not format."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kcli format`."""
    first = parser.add_mutually_exclusive_group(required=True)
    first.add_argument("-c", "--config", metavar="FILE", help="the node's server.properties")
    first.add_argument(
        "--random-uuid",
        action="store_true",
        help="print a new id for --cluster-id, or for a directory of --initial-controllers",
    )
    parser.add_argument("--info", action="store_true", help="only show what the directories are; change nothing")
    parser.add_argument(
        "-t",
        "--cluster-id",
        metavar="ID",
        help="the cluster id, 22 characters; default: the one of directories that are already formatted, or a new one",
    )
    parser.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set a key of server.properties, overriding the file, as in --override log.dirs=/data/kafka; can be repeated",
    )
    voters = parser.add_mutually_exclusive_group()
    voters.add_argument("-s", "--standalone", action="store_true", help="this controller is the only voter of a dynamic quorum")
    voters.add_argument(
        "-N", "--no-initial-controllers", action="store_true", help="a dynamic quorum whose voters become known later"
    )
    voters.add_argument(
        "-I", "--initial-controllers", metavar="VOTERS", help="the first voters: ID@HOST:PORT:DIRECTORY_ID, separated by commas"
    )
    parser.add_argument(
        "-f", "--feature", metavar="NAME=LEVEL", action="append", default=[], help="the initial level of a feature"
    )
    parser.add_argument(
        "-r",
        "--release-version",
        metavar="RELEASE",
        help="the release for the initial levels of all features: 3.3-IV3 to 4.4-IV2; default: 4.3-IV0",
    )
    parser.add_argument("-g", "--ignore-formatted", action="store_true", help="leave formatted directories as they are")
    parser.add_argument(
        "-S",
        "--add-scram",
        metavar="CREDENTIAL",
        action="append",
        default=[],
        help="an initial SCRAM credential: 'SCRAM-SHA-256=[name=alice,password=secret]'",
    )


def run(args: argparse.Namespace) -> int:
    """Format the log directories of the configuration and return the exit code. Raises CannotRun if that is not possible."""
    if args.random_uuid:
        from kcli.format.kafka_uuid import random_uuid

        print_text(str(random_uuid(os.urandom)))
        return EXIT_OK
    return _info(args) if args.info else _format(args)


def _info(args: argparse.Namespace) -> int:
    """Print a line for each log directory; EXIT_FINDINGS if one is not a formatted directory of the node."""
    from kcli.server.config import ConfigError, load_config
    from kcli.server.controller.formatting import DirectoryProblem, describe_directories

    try:
        config = load_config(args.config, args.override, serving=False)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    code = EXIT_OK
    for path, found in describe_directories(OsDisk(), {*config.log_dirs, config.metadata_log_dir}).items():
        if isinstance(found, DirectoryProblem):
            code = EXIT_FINDINGS
            print_text(found.sentence)
        else:
            directory = "" if found.directory_id is None else f", directory id {found.directory_id}"
            print_text(f"{path}: formatted for node {found.node_id} of cluster {found.cluster_id}{directory}")
    return code


def _format(args: argparse.Namespace) -> int:
    from kcli.server.config import ConfigError, load_config
    from kcli.server.controller.format_settings import FormatOptions, plan_format
    from kcli.server.controller.formatting import FormattingError, format_directories
    from kcli.server.features import METADATA_VERSION, metadata_version_name

    options = FormatOptions(
        cluster_id=args.cluster_id,
        is_standalone=args.standalone,
        has_no_initial_controllers=args.no_initial_controllers,
        initial_controllers=args.initial_controllers,
        features=args.feature,
        release=args.release_version,
        scram=args.add_scram,
        ignore_formatted=args.ignore_formatted,
    )
    try:
        config = load_config(args.config, args.override, serving=False)
        plan = plan_format(config, options, os.urandom)
        made = format_directories(OsDisk(), plan, os.urandom, time.time_ns() // 1_000_000)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    except FormattingError as error:
        raise CannotRun(str(error)) from None
    release = metadata_version_name(plan.features[METADATA_VERSION])
    for path, meta in made.items():
        print_text(f"{path}: formatted for node {meta.node_id} of cluster {meta.cluster_id}, metadata.version {release}")
    if not made:
        print_text("all log directories are already formatted; nothing was changed")
    return EXIT_OK
