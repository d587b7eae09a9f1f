"""`kcli serve`: run a Kafka broker and controller in this process."""

from __future__ import annotations

import argparse
import gc

from kcli.commands.output import EXIT_OK, CannotRun

ARGUMENTS = "[server.properties]"
DESCRIPTION = """\
Run a node of a Kafka cluster: broker and KRaft controller in one process, on Kafka's own files.

Without anything it serves PLAINTEXT://127.0.0.1:9092 from ./kcli-data, which it formats when it is empty. A
server.properties of Apache Kafka is taken as it is; what is not served is named, and what guards and is not
served yet refuses the start. Stop it with Ctrl-C or SIGTERM: it leaves its directories as Kafka does."""
EPILOG = "Exit codes: 0 stopped in order; 2 could not start."


def port(text: str) -> int:
    """A port as text; 0 is any free one. Raises ValueError for what is none."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("config", nargs="?", metavar="server.properties", help="the configuration, as Kafka's")
    parser.add_argument(
        "--override", metavar="KEY=VALUE", action="append", default=[], help="set a key, over the file; can be repeated"
    )
    parser.add_argument("--strict-config", action="store_true", help="an unknown key in the file is an error")
    parser.add_argument("--metrics-port", metavar="PORT", type=port, help="serve Kafka's metrics for Prometheus at this port")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="the form of a line on stderr")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped -> exit code. Raises CannotRun where that cannot be."""
    gc.disable()  # a start makes nothing but what stays; kcli.server.shell.server turns it on again
    from kcli.server.config.loading import load_config
    from kcli.server.config.values import ConfigError
    from kcli.server.log_lines import Line
    from kcli.server.shell.log_writer import WARN, LogWriter
    from kcli.server.shell.server import ServerError, addresses, serve

    try:
        config = load_config(args.config, args.override, strict=args.strict_config)
    except ConfigError as error:
        raise CannotRun(str(error)) from None
    tell = LogWriter(args.log_format)
    for warning in config.warnings:
        tell(warning, WARN)

    def ready(ports: dict[str, int]) -> None:
        where = addresses(config.broker_listeners, ports)
        paths = ", ".join(config.log_dirs)
        text = f"node {config.node_id} is ready: {where}; data in {paths}; Ctrl-C stops it"
        tell(Line(text, node=config.node_id, listeners=where, paths=paths))

    try:
        serve(config, tell, ready, args.metrics_port)
    except ServerError as error:
        raise CannotRun(str(error)) from None
    return EXIT_OK
