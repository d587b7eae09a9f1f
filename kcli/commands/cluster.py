"""`kcli cluster`: the nodes, quorum, features and log directories of a running cluster.

action                             Kafka's tool
---------------------------------  --------------------------------------------------
nodes, unregister,                 kafka-cluster list-endpoints, cluster-id, unregister
unregister-controller
api-versions                       kafka-broker-api-versions
quorum, add-controller,            kafka-metadata-quorum
remove-controller
features                           kafka-features describe
log-dirs                           kafka-log-dirs
status, stop, start, kill, pause,  - (a cluster that `kcli serve --brokers` runs on this machine)
resume
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    cell,
    done,
    instant,
    print_lines,
    run_action,
    seconds,
    show,
    split_words,
    table,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject, dump
from kcli.network.events import PeerAddress

if TYPE_CHECKING:
    from kcli.client.admin.cluster import QuorumInfo, RaftEndpoint
    from kcli.client.admin.log_dirs import LogDirDescription
    from kcli.commands.admin_command import Actions
    from kcli.format.kafka_uuid import Uuid

USAGE = ACTION_USAGE
DESCRIPTION = """\
Shows the nodes, quorum, features and log directories of a running cluster, changes the voters of the quorum, and
removes the registrations of nodes that do not run any more. The actions status, stop, start, kill, pause and resume
are for a cluster that kcli serve --brokers runs on this machine, and status is what kcli cluster alone shows."""
EPILOG = action_epilog("cluster")

_NODES = (
    ("node", "node"),
    ("host", "host"),
    ("port", "port"),
    ("rack", "rack"),
    ("controller", "isController"),
    ("fenced", "isFenced"),
)
_REPLICAS = (
    ("node", "node"),
    ("status", "status"),
    ("directory", "directoryId"),
    ("log end offset", "logEndOffset"),
    ("lag", "lag"),
    ("last fetch", "lastFetch"),
    ("last caught up", "lastCaughtUp"),
    ("listeners", "listeners"),
)
_API_VERSIONS = (
    ("node", "node"),
    ("API", "api"),
    ("key", "apiKey"),
    ("from", "minVersion"),
    ("to", "maxVersion"),
    ("usable", "usableVersion"),
)
_FEATURES = (
    ("feature", "feature"),
    ("finalized", "finalizedVersion"),
    ("supported from", "supportedMinVersion"),
    ("to", "supportedMaxVersion"),
)
_DIRS = (
    ("broker", "broker"),
    ("directory", "directory"),
    ("partitions", "partitionCount"),
    ("bytes", "sizeBytes"),
    ("usable bytes", "usableBytes"),
    ("total bytes", "totalBytes"),
    ("cordoned", "isCordoned"),
    ("error", "error"),
)
_PROCESSES = (
    ("node", "name"),
    ("roles", "roles"),
    ("state", "state"),
    ("pid", "pid"),
    ("broker", "broker"),
    ("controller", "controller"),
    ("starts", "starts"),
    ("ended", "ended"),
)
_SIZES = (("topic", "topic"), ("partition", "partition"), ("bytes", "sizeBytes"), ("lag", "offsetLag"), ("move", "isFuture"))
run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli cluster`."""
    actions = add_actions(parser)
    actions.required = False
    parser.set_defaults(run_action=_status, data_dir=None, output="text")
    help_text = "show the brokers, or the controllers, and the cluster's id"
    nodes = add_action(actions, "nodes", _nodes, help_text, takes_controllers=True)
    nodes.add_argument(
        "--include-fenced-brokers", action="store_true", help="show also brokers that are registered, but fenced"
    )
    help_text = "show the versions of each API that the brokers, or the controllers, have"
    add_action(actions, "api-versions", _api_versions, help_text, takes_controllers=True)
    _add_unregistering(actions)
    help_text = "show the voters and observers of the metadata quorum"
    add_action(actions, "quorum", _quorum, help_text, takes_controllers=True)
    _add_voter_changes(actions)
    add_action(actions, "features", _features, "show the features with their levels", takes_controllers=True)
    dirs = add_action(actions, "log-dirs", _log_dirs, "show the log directories of brokers")
    dirs.add_argument(
        "--broker-list", metavar="IDS", action="append", default=[], help="only these brokers: ids, separated by commas (all)"
    )
    dirs.add_argument(
        "--topic-list",
        metavar="TOPICS",
        action="append",
        default=[],
        help="show also the partitions of these topics, separated by commas",
    )
    _add_local_actions(actions)


def _add_local_actions(actions: Actions) -> None:
    """Add the actions on a cluster of this machine, which ask its supervisor and not the nodes."""
    for name, run, help_text in (
        ("status", _status, "show the processes of the cluster that kcli serve --brokers runs on this machine"),
        ("stop", _stop, "stop a node of it in order, or the whole cluster"),
        ("start", _act, "start a node of it that was stopped, or that died"),
        ("kill", _act, "end a node of it at once, as a crash would; it is not started again by itself"),
        ("pause", _act, "stop the process of a node of it where it is, as a machine that hangs"),
        ("resume", _act, "let a node that was paused go on"),
    ):
        one = actions.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        one.set_defaults(run_action=run)
        if name != "status":
            one.add_argument("node", metavar="NODE", nargs="?" if name == "stop" else None, help="node-2, or only 2")
        one.add_argument("--data-dir", metavar="DIR", help="the directory of the cluster (./kcli-cluster)")
        if name in ("stop", "start"):
            one.add_argument(
                "--timeout",
                metavar="SECONDS",
                type=seconds,
                default=60.0,
                help="how long to wait for the end or the start (60)",
            )
        one.add_argument("--output", choices=["text", "json"], default="text", help="tables, or one JSON object (text)")


def _add_unregistering(actions: Actions) -> None:
    for name, run, kind in (
        ("unregister", _unregister_broker, "broker"),
        ("unregister-controller", _unregister_controller, "controller"),
    ):
        since = "" if kind == "broker" else " (Kafka 4.4)"
        help_text = f"remove the registration of a {kind} that does not run any more{since}"
        one = add_action(actions, name, run, help_text, takes_controllers=True)
        one.add_argument("--id", metavar="ID", type=_node_id, required=True, help=f"the node id of the {kind}")


def _add_voter_changes(actions: Actions) -> None:
    help_text = "make a controller that runs a voter of the quorum"
    adding = add_action(actions, "add-controller", _add_controller, help_text, takes_controllers=True)
    adding.add_argument(
        "--config", metavar="FILE", required=True, help="the server.properties of the controller, on its machine"
    )
    help_text = "make a voter of the quorum an observer; stop it first if it has controller.quorum.auto.join.enable"
    removing = add_action(actions, "remove-controller", _remove_controller, help_text, takes_controllers=True)
    removing.add_argument("--controller-id", metavar="ID", type=_node_id, required=True, help="the node id of the voter")
    removing.add_argument(
        "--controller-directory-id",
        metavar="ID",
        required=True,
        help="the id of its metadata directory, as cluster quorum shows",
    )
    for one in (adding, removing):
        one.add_argument("--dry-run", action="store_true", help="only show what would be changed")


def _node_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a node")
    return int(text)


def _nodes(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import describe_cluster

    if args.include_fenced_brokers and args.bootstrap_controller is not None:
        raise CannotRun("--include-fenced-brokers is for brokers: it needs --bootstrap-server")
    found = ask(args, describe_cluster(include_fenced_brokers=args.include_fenced_brokers))
    rows: list[JsonObject] = [
        {
            "node": one.node_id,
            "host": one.host,
            "port": one.port,
            "rack": one.rack,
            "isController": one.node_id == found.controller_id,
            "isFenced": one.node_id in found.fenced,
        }
        for one in found.nodes
    ]
    if args.output == "json":
        print_lines([dump({"clusterId": found.cluster_id, "controllerId": found.controller_id, "nodes": rows})])
    else:
        print_lines([f"cluster {cell(found.cluster_id)}", *table(rows, _NODES)])
    return EXIT_OK


def _api_versions(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import describe_api_versions
    from kcli.protocol.apis import API_KEYS

    found, code = values_of(ask(args, describe_api_versions()), lambda node: f"node {node.node_id}")
    rows: list[JsonObject] = []
    for node, versions in found.items():
        for key, (lowest, highest) in sorted(versions.items()):
            own = API_KEYS.get(key)
            usable = -1 if own is None else min(highest, own.highest_version)
            is_usable = own is not None and usable >= max(lowest, own.lowest_version)
            rows.append(
                {
                    "node": node.node_id,
                    "host": node.host,
                    "port": node.port,
                    "api": None if own is None else own.name,
                    "apiKey": key,
                    "minVersion": lowest,
                    "maxVersion": highest,
                    "usableVersion": usable if is_usable else None,
                }
            )
    show(args, rows, _API_VERSIONS)
    return code


def _unregister_broker(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import unregister_broker

    ask(args, unregister_broker(args.id))
    done(args, {"broker": args.id, "registered": False}, f"broker {args.id} is no longer registered")
    return EXIT_OK


def _unregister_controller(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import unregister_controller

    ask(args, unregister_controller(args.id))
    done(args, {"controller": args.id, "registered": False}, f"controller {args.id} is no longer registered")
    return EXIT_OK


def _quorum(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import describe_metadata_quorum

    found = ask(args, describe_metadata_quorum())
    rows = _replica_rows(found)
    if args.output == "json":
        head = {"leaderId": found.leader_id, "leaderEpoch": found.leader_epoch, "highWatermark": found.high_watermark}
        print_lines([dump({**head, "replicas": rows})])
    else:
        head_line = f"leader {found.leader_id}, epoch {found.leader_epoch}, high watermark {found.high_watermark}"
        print_lines([head_line, *table(rows, _REPLICAS)])
    return EXIT_OK


def _replica_rows(found: QuorumInfo) -> list[JsonObject]:
    leader_end = next((one.log_end_offset for one in found.voters if one.replica_id == found.leader_id), None)
    rows: list[JsonObject] = []
    for one in (*found.voters, *found.observers):
        status = "observer" if one in found.observers else "leader" if one.replica_id == found.leader_id else "follower"
        listeners = found.nodes.get(one.replica_id, ()) if status != "observer" else ()
        rows.append(
            {
                "node": one.replica_id,
                "status": status,
                "directoryId": str(one.directory_id),
                "logEndOffset": one.log_end_offset,
                "lag": None if leader_end is None else leader_end - one.log_end_offset,
                "lastFetchTimestamp": one.last_fetch_timestamp,
                "lastFetch": instant(one.last_fetch_timestamp),
                "lastCaughtUpTimestamp": one.last_caught_up_timestamp,
                "lastCaughtUp": instant(one.last_caught_up_timestamp),
                "listeners": [f"{each.name}://{PeerAddress(each.host, each.port)}" for each in listeners],
            }
        )
    return rows


class _AddedController(NamedTuple):
    """A controller as add-controller names it to the quorum."""

    node_id: int
    directory_id: Uuid
    endpoints: tuple[RaftEndpoint, ...]


def _read_controller(path: str) -> _AddedController:
    """Return the controller of a server.properties; its directory must be formatted. Raises CannotRun."""
    from kcli.client.admin.cluster import RaftEndpoint
    from kcli.log.disk.os_disk import OsDisk
    from kcli.server.config import ConfigError, load_config
    from kcli.server.controller.formatting import FormattingError, read_meta_properties

    try:
        config = load_config(path, [], serving=False)
        meta = read_meta_properties(OsDisk(), config.metadata_log_dir)
    except ConfigError as error:
        raise CannotRun(*error.faults) from None
    except FormattingError as error:
        raise CannotRun(str(error)) from None
    if not config.is_controller:
        raise CannotRun(f"{path}: process.roles does not contain controller")
    if meta is None or meta.directory_id is None:
        raise CannotRun(f"{config.metadata_log_dir} has no directory id: format it with kcli format --no-initial-controllers")
    if not config.advertised_controller_listeners:
        raise CannotRun(f"{path}: listeners has none of controller.listener.names")
    endpoints = (
        RaftEndpoint(one.name.upper(), one.host or "localhost", one.port) for one in config.advertised_controller_listeners
    )
    return _AddedController(config.node_id, meta.directory_id, tuple(endpoints))


def _add_controller(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import add_raft_voter

    found = _read_controller(args.config)
    if not args.dry_run:
        ask(args, add_raft_voter(*found))
    listeners = [f"{one.name}://{PeerAddress(one.host, one.port)}" for one in found.endpoints]
    row = {
        "controller": found.node_id,
        "directoryId": str(found.directory_id),
        "listeners": listeners,
        "added": not args.dry_run,
    }
    verb = "would add" if args.dry_run else "added"
    done(args, row, f"{verb} controller {found.node_id} with directory id {found.directory_id} at {', '.join(listeners)}")
    return EXIT_OK


def _remove_controller(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import remove_raft_voter
    from kcli.format.kafka_uuid import Uuid
    from kcli.format.primitives import FormatError

    try:
        directory_id = Uuid.parse(args.controller_directory_id)
    except FormatError as error:
        raise CannotRun(f"--controller-directory-id: {error.message}") from None
    if not args.dry_run:
        ask(args, remove_raft_voter(args.controller_id, directory_id))
    row = {"controller": args.controller_id, "directoryId": str(directory_id), "removed": not args.dry_run}
    verb = "would remove" if args.dry_run else "removed"
    done(args, row, f"{verb} controller {args.controller_id} with directory id {directory_id}")
    return EXIT_OK


def _features(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import describe_features

    found = ask(args, describe_features())
    rows: list[JsonObject] = [
        {
            "feature": name,
            "finalizedVersion": found.finalized.get(name, 0),
            "supportedMinVersion": found.supported[name].lowest if name in found.supported else None,
            "supportedMaxVersion": found.supported[name].highest if name in found.supported else None,
            "epoch": found.finalized_epoch if found.finalized_epoch >= 0 else None,
        }
        for name in sorted({*found.supported, *found.finalized})
    ]
    show(args, rows, _FEATURES, "the broker has no features")
    return EXIT_OK


def _log_dirs(args: argparse.Namespace) -> int:
    from kcli.client.admin.brokers import live_brokers
    from kcli.client.admin.log_dirs import describe_log_dirs
    from kcli.client.admin.topics import list_topics

    words = split_words(args.broker_list)
    if not all(word.isascii() and word.isdigit() for word in words):
        raise CannotRun("--broker-list: write ids of brokers, separated by commas")
    brokers = [int(word) for word in words] or ask(args, live_brokers())
    topics = set(split_words(args.topic_list))
    missing = sorted(topics - set(ask(args, list_topics(include_internal=True)))) if topics else []
    for name in missing:
        print_message(f"the cluster has no topic {name!r}")
    described, code = values_of(ask(args, describe_log_dirs(brokers)), lambda broker: f"broker {broker}")
    rows = [_dir_row(broker, path, one, topics) for broker, dirs in described.items() for path, one in dirs.items()]
    if args.output == "json":
        print_lines(dump(row) for row in rows)
    else:
        print_lines(table(rows, _DIRS) if rows else [])
        if topics:
            for row in rows:
                print_lines([f"broker {row['broker']}, {cell(row['directory'])}", *table(row["partitions"], _SIZES)])
    has_error = any(row["error"] is not None for row in rows)
    return max(code, EXIT_FINDINGS if missing or has_error else EXIT_OK)


def _dir_row(broker: int, path: str, one: LogDirDescription, topics: set[str]) -> JsonObject:
    replicas = {at: info for at, info in sorted(one.replicas.items()) if not topics or at[0] in topics}
    return {
        "broker": broker,
        "directory": path,
        "error": None if one.error is None else str(one.error),
        "totalBytes": one.total_bytes if one.total_bytes >= 0 else None,
        "usableBytes": one.usable_bytes if one.usable_bytes >= 0 else None,
        "isCordoned": one.is_cordoned,
        "partitionCount": len(replicas),
        "sizeBytes": sum(info.size_bytes for info in replicas.values()),
        "partitions": [
            {
                "topic": topic,
                "partition": partition,
                "sizeBytes": info.size_bytes,
                "offsetLag": info.offset_lag,
                "isFuture": info.is_future,
            }
            for (topic, partition), info in replicas.items()
        ],
    }


# ------------------------------------------------------------------------------------------------ a cluster of this machine


def _ask_supervisor(args: argparse.Namespace, action: str) -> int:
    """Send a request about a node, or about all, wait for its end, and print the status. Raises CannotRun."""
    from kcli.server.supervisor.control import NodeAction, act, request, wait_until_ended
    from kcli.server.supervisor.layout import DEFAULT_DIRECTORY, ClusterError

    directory, node = args.data_dir or DEFAULT_DIRECTORY, getattr(args, "node", None)
    try:
        if node is not None:
            node_id = node.removeprefix("node-")
            if not (node_id.isascii() and node_id.isdigit()):
                raise CannotRun(f"{node!r} is not a node: write node-2, or only 2")
            found = act(directory, NodeAction(action), int(node_id), getattr(args, "timeout", 60.0))
        else:
            found = request(directory, action)
            if action == "stop":
                wait_until_ended(directory, args.timeout)
                done(args, {"stopped": True}, f"the cluster in {directory} has stopped")
                return EXIT_OK
    except ClusterError as error:
        raise CannotRun(str(error)) from None
    if args.output == "json":
        print_lines([dump(found)])
    else:
        leader = "no leader" if found["leader"] is None else f"leader node-{found['leader']}"
        head = f"cluster {found['clusterId']}, {leader} of the quorum, bootstrap.servers={found['bootstrapServers']}"
        print_lines([head, *table(found["nodes"], _PROCESSES)])
    return EXIT_OK


def _status(args: argparse.Namespace) -> int:
    return _ask_supervisor(args, "status")


def _stop(args: argparse.Namespace) -> int:
    return _ask_supervisor(args, "stop")


def _act(args: argparse.Namespace) -> int:
    return _ask_supervisor(args, args.action)
