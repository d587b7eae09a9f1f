"""`kcli serve`: runs a Kafka broker and controller in this process."""

from __future__ import annotations

import argparse
import gc

from kcli.commands.output import EXIT_OK, CannotRun

ARGUMENTS = "[server.properties]"
DESCRIPTION = """\
Runs a node of a Kafka cluster: broker and KRaft controller in one process, on log directories in Kafka's format.

Without arguments it listens on PLAINTEXT://127.0.0.1:9092 and uses ./kcli-data, which it formats if it is empty. On
another port: kcli serve --override listeners=PLAINTEXT://127.0.0.1:PORT. It accepts a server.properties of Apache Kafka,
and logs the keys that it does not support. It does not start with security settings that it does not support yet.
Ctrl-C or SIGTERM stops it; Kafka can then open its directories."""
EPILOG = "Exit codes: 0 stopped cleanly; 2 could not start."


def port(text: str) -> int:
    """Parse a port; 0 is any free port. Raises ValueError for an invalid one."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kcli serve`."""
    parser.add_argument("config", nargs="?", metavar="server.properties", help="the configuration, in Kafka's format")
    parser.add_argument(
        "--override",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set a key of server.properties, overriding the file, as in --override log.dirs=/data/kafka; can be repeated",
    )
    parser.add_argument("--strict-config", action="store_true", help="do not start if the file has an unknown key")
    parser.add_argument(
        "--accept-stray",
        action="store_true",
        help="start though the metadata log has none of the topics in the log directories, or a partition with records has no "
        "partition.metadata: such partitions are renamed to -stray and kept, and not served",
    )
    parser.add_argument("--metrics-port", metavar="PORT", type=port, help="serve Kafka's metrics for Prometheus on this port")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="the format of log lines on stderr")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped and return the exit code. Raises CannotRun if the node cannot start."""
    gc.disable()  # nearly all objects of a start live as long as the process; kcli.server.shell.server enables it again
    from kcli.server.config.loading import load_config
    from kcli.server.config.values import ConfigError
    from kcli.server.shell.log_writer import WARN, LogWriter
    from kcli.server.shell.server import ServerError, log_ready, serve

    try:
        config = load_config(args.config, args.override, strict=args.strict_config)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    write_log = LogWriter(args.log_format)
    for warning in config.warnings:
        write_log(warning, WARN)

    try:
        serve(
            config,
            write_log,
            lambda bound: log_ready(config, bound, write_log),
            args.metrics_port,
            accepts_stray=args.accept_stray,
        )
    except ServerError as error:
        raise CannotRun(str(error)) from None
    return EXIT_OK
