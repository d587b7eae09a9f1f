"""`kcli serve`: runs a Kafka broker and controller in this process, or with --brokers a cluster of processes."""

from __future__ import annotations

import argparse
import gc
import time
from pathlib import Path

from kcli.commands.output import EXIT_OK, CannotRun, print_message, use_colour

ARGUMENTS = "[server.properties]"
DESCRIPTION = """\
Runs a node of a Kafka cluster: broker and KRaft controller in one process, on log directories in Kafka's format.

Without arguments it listens on PLAINTEXT://127.0.0.1:9092 and uses ./kcli-data, which it formats if it is empty. On
another port: --port PORT. It accepts a server.properties of Apache Kafka, and logs the keys that it does not support.
It does not start with security settings that it does not support yet. Ctrl-C or SIGTERM stops it; Kafka can then open
its directories. With --brokers N it runs a whole cluster on this machine, a process for each node, on the ports from
9092 on and in ./kcli-cluster; kcli cluster status, stop, start, kill, pause and resume act on its nodes."""
EPILOG = "Exit codes: 0 stopped cleanly; 2 could not start; 1 ended at once by a second signal."


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
    parser.add_argument(
        "--port",
        metavar="PORT",
        type=port,
        help="the port for clients on 127.0.0.1, of the first broker; 0: any free ports (9092)",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the log directory, or the directory of the cluster with --brokers")
    parser.add_argument("--strict-config", action="store_true", help="do not start if the file has an unknown key")
    parser.add_argument(
        "--accept-stray",
        action="store_true",
        help="start though the metadata log has none of the topics in the log directories, or a partition with records has no "
        "partition.metadata: such partitions are renamed to -stray and kept, and not served",
    )
    parser.add_argument("--metrics-port", metavar="PORT", type=port, help="serve Kafka's metrics for Prometheus on this port")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="the format of log lines on stderr")
    group = parser.add_argument_group("a cluster on this machine")
    group.add_argument(
        "--brokers",
        metavar="N",
        type=int,
        help="run a cluster of N brokers, the first three of which are controllers as well; the nodes keep their ports and "
        "data, and a later start may have more brokers",
    )
    group.add_argument(
        "--controllers",
        metavar="N",
        type=int,
        help="run N controllers in processes of their own, and brokers that are only brokers",
    )
    group.add_argument("--no-restart", action="store_true", help="do not start a node again that dies")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped and return the exit code. Raises CannotRun if the node cannot start."""
    began = time.monotonic()
    gc.disable()  # nearly all objects of a start live as long as the process; kcli.server.shell.server enables it again
    if args.brokers is not None:
        return _run_cluster(args, began)
    for option in ("--controllers", "--no-restart"):
        if getattr(args, option[2:].replace("-", "_")):
            raise CannotRun(f"{option} is for a cluster: add --brokers N")
    from kcli.server.config.loading import load_config
    from kcli.server.config.values import ConfigError
    from kcli.server.shell.log_writer import WARN, LogWriter
    from kcli.server.shell.server import ServerError, log_ready, serve

    try:
        config = load_config(args.config, [*_own_overrides(args), *args.override], strict=args.strict_config)
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


def _own_overrides(args: argparse.Namespace) -> list[str]:
    """Return --port and --data-dir of one node as overrides. Raises CannotRun."""
    if args.port is not None and args.config is not None:
        raise CannotRun(f"--port is for a start without a file: set listeners in {args.config}, or with --override")
    found = [] if args.port is None else [f"listeners=PLAINTEXT://127.0.0.1:{args.port}"]
    if args.data_dir is None:
        return found
    from kcli.server.supervisor.layout import CLUSTER_FILE

    if Path(args.data_dir, CLUSTER_FILE).exists():
        raise CannotRun(f"{args.data_dir} is the directory of a cluster: start it with --brokers N, or name another one")
    return [*found, f"log.dirs={args.data_dir}"]


def _run_cluster(args: argparse.Namespace, began: float) -> int:
    """Run a cluster until it is stopped and return the exit code. Raises CannotRun."""
    if args.accept_stray:
        raise CannotRun(
            "--accept-stray is for one node: start it with its file, kcli serve DIR/node-N.properties --accept-stray"
        )
    from kcli.server.config.values import ConfigError
    from kcli.server.supervisor.layout import (
        DEFAULT_DIRECTORY,
        ClusterError,
        check_common,
        configure_node,
        plan_cluster,
        prepare,
    )
    from kcli.server.supervisor.supervisor import RunOptions, Supervisor

    try:
        check_common(args.config, args.override)
        layout = plan_cluster(args.data_dir or DEFAULT_DIRECTORY, args.brokers, args.controllers, args.port)
        configs = [configure_node(layout, node, args.config, args.override, strict=args.strict_config) for node in layout.nodes]
        for warning in dict.fromkeys(warning for config in configs for warning in config.warnings):
            print_message(warning)
        layout = prepare(layout, configs, time.time_ns() // 1_000_000, print_message)
        options = RunOptions(args.log_format, use_colour(2), not args.no_restart, args.metrics_port)
        return Supervisor(layout, configs, options, began).run()
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    except ClusterError as error:
        raise CannotRun(str(error)) from None
