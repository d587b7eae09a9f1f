"""`kcli cluster`: the nodes, quorum, features and log directories of a running cluster (Kafka: kafka-cluster,
kafka-metadata-quorum, kafka-features, kafka-log-dirs).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kcli.commands.admin_command import (
    ACTION_USAGE,
    action_epilog,
    add_action,
    add_actions,
    ask,
    cell,
    instant,
    print_lines,
    run_action,
    show,
    split_words,
    table,
    values_of,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.inspect.json_text import JsonObject, dump
from kcli.network.events import PeerAddress

if TYPE_CHECKING:
    from kcli.client.admin.cluster import QuorumInfo
    from kcli.client.admin.log_dirs import LogDirDescription

USAGE = ACTION_USAGE
DESCRIPTION = "Shows the nodes, quorum, features and log directories of a running cluster."
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
_SIZES = (("topic", "topic"), ("partition", "partition"), ("bytes", "sizeBytes"), ("lag", "offsetLag"), ("move", "isFuture"))
run = run_action


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of `kcli cluster`."""
    actions = add_actions(parser)
    nodes = add_action(actions, "nodes", _nodes, "show the brokers and the cluster's id")
    nodes.add_argument(
        "--include-fenced-brokers", action="store_true", help="show also brokers that are registered, but fenced"
    )
    add_action(actions, "quorum", _quorum, "show the voters and observers of the metadata quorum")
    add_action(actions, "features", _features, "show the features with their levels")
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


def _nodes(args: argparse.Namespace) -> int:
    from kcli.client.admin.cluster import describe_cluster

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
