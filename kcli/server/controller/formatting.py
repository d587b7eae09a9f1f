"""Formats empty log directories for a node of a cluster, as kafka-storage format does.

    file                              where               contains
    --------------------------------  ------------------  ---------------------------------------------------------
    bootstrap.checkpoint              every directory     the first metadata records: features, SCRAM credentials;
                                                          written for metadata.version up to 4.3-IV0
    __cluster_metadata-0/             metadata directory  the first voters of a dynamic quorum; from 4.4-IV0 on also the
      0...0-0000000000.checkpoint                         first metadata records, of a controller only. Not written
                                                          if it would contain neither
    meta.properties                   every directory     cluster.id, node.id, directory.id; written last: a directory
                                                          with it is formatted, one without is not

A voter of a dynamic quorum is identified by the id of its metadata directory, so that id is chosen before the file is written.
A directory that is formatted already is not changed: with `ignore_formatted` the others are formatted, for its cluster if no
cluster id is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC, FileKind, metadata_snapshot_name, partition_directory_name
from kcli.format.kafka_uuid import random_uuid
from kcli.format.limits import MAX_TEXT_FILE_BYTES
from kcli.format.metadata_files import MetaProperties, decode_meta_properties, encode_meta_properties
from kcli.format.primitives import FormatError
from kcli.log.disk.port import Disk
from kcli.protocol.message import Message
from kcli.server.features import BOOTSTRAP_SNAPSHOT_SINCE, KRAFT_VERSION, METADATA_VERSION
from kcli.server.raft.metadata_batches import SnapshotBatches, bootstrap_records
from kcli.server.raft.voter_set import voter_node
from kcli.state.metadata_values import Voter

_DAYS = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")  # from 1970-01-01 on
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
METADATA_PARTITION = partition_directory_name(METADATA_TOPIC, 0)


class FormattingError(ValueError):
    """A directory that cannot be formatted as requested; the message is one sentence that names it."""


class FormatPlan(NamedTuple):
    """What to format; everything is checked but the directories themselves.

    Without a `cluster_id` that of formatted directories is used, or a new one. `directories` are all log directories, and
    `metadata_directory` is one of them. `features` has the level of every feature; `voters` are the first ones of a dynamic
    quorum, or None. `is_controller` is False for a node that is only a broker.
    """

    cluster_id: str | None
    node_id: int
    directories: tuple[str, ...]
    metadata_directory: str
    features: dict[str, int]
    voters: Sequence[Voter] | None = None
    more_records: Sequence[Message] = ()
    ignore_formatted: bool = False
    is_controller: bool = True


def format_directories(
    disk: Disk, plan: FormatPlan, random_bytes: Callable[[int], bytes], now_ms: int
) -> dict[str, MetaProperties]:
    """Format the empty ones of the plan's directories and return their meta.properties by path.

    The contents of the directories are flushed, but not their entries in the parent directories. Raises FormattingError if a
    directory belongs to another node, or is formatted and not to be ignored; OSError as the system does.
    """
    found = {path: read_meta_properties(disk, path) for path in plan.directories}
    for path, meta in found.items():
        if meta is not None:
            _check_same_node(path, meta, plan)
            if not plan.ignore_formatted:
                raise FormattingError(
                    f"{path} is already formatted, for node {meta.node_id} of cluster {meta.cluster_id}; "
                    "--ignore-formatted skips it and formats the others"
                )
    plan = plan._replace(cluster_id=plan.cluster_id or _cluster_of(found) or str(random_uuid(random_bytes)))
    made = {}
    for path, meta in found.items():
        if meta is None:
            is_metadata = path == plan.metadata_directory
            made[path] = _format_one(disk, path, plan, is_metadata, random_bytes, now_ms)
    return made


def read_meta_properties(disk: Disk, directory: str) -> MetaProperties | None:
    """Return the meta.properties of a log directory, None if it has none. Raises FormattingError if it cannot be read."""
    path = f"{directory}/{FileKind.META_PROPERTIES}"
    try:
        return decode_meta_properties(disk.read_file(path, MAX_TEXT_FILE_BYTES))
    except FileNotFoundError:
        return None
    except FormatError as error:
        raise FormattingError(f"{path} cannot be read: {error.message}") from error
    except NotADirectoryError as error:
        raise FormattingError(f"{directory} is not a directory") from error


class DirectoryProblem(NamedTuple):
    """Why a directory is not a formatted one of the same node; the sentence names it."""

    sentence: str


def describe_directories(disk: Disk, directories: Iterable[str]) -> dict[str, MetaProperties | DirectoryProblem]:
    """Return the meta.properties of each log directory, or what is wrong with it, sorted by path (Kafka: infoCommand)."""
    found: dict[str, MetaProperties | DirectoryProblem] = {}
    first: tuple[str, MetaProperties] | None = None
    for path in sorted(directories):
        try:
            meta = read_meta_properties(disk, path)
        except FormattingError as error:
            found[path] = DirectoryProblem(str(error))
            continue
        if meta is None:
            is_there = disk.exists(path)
            found[path] = DirectoryProblem(f"{path} is not formatted" if is_there else f"{path} does not exist")
            continue
        found[path] = meta
        first = first or (path, meta)
        for name, own, others in (
            ("cluster", meta.cluster_id, first[1].cluster_id),
            ("node", meta.node_id, first[1].node_id),
        ):
            if own != others:
                found[path] = DirectoryProblem(f"{path} belongs to {name} {own}, but {first[0]} to {name} {others}")
                break
    return found


def _cluster_of(found: Mapping[str, MetaProperties | None]) -> str | None:
    """Return the cluster id of formatted directories, None if there is none. Raises FormattingError for different ones."""
    named = {path: meta.cluster_id for path, meta in found.items() if meta is not None and meta.cluster_id is not None}
    if len(set(named.values())) > 1:
        listed = ", ".join(f"{path} to {cluster_id}" for path, cluster_id in named.items())
        raise FormattingError(f"the log directories belong to different clusters: {listed}")
    return next(iter(named.values()), None)


def _check_same_node(path: str, meta: MetaProperties, plan: FormatPlan) -> None:
    if None not in (meta.cluster_id, plan.cluster_id) and meta.cluster_id != plan.cluster_id:
        raise FormattingError(f"{path} belongs to cluster {meta.cluster_id}, not to {plan.cluster_id}")
    if meta.node_id is not None and meta.node_id != plan.node_id:
        raise FormattingError(f"{path} belongs to node {meta.node_id}, not to {plan.node_id}")


def _format_one(
    disk: Disk,
    path: str,
    plan: FormatPlan,
    is_metadata: bool,
    random_bytes: Callable[[int], bytes],
    now_ms: int,
) -> MetaProperties:
    """Write one directory's files, meta.properties last."""
    disk.make_directory(path)
    records: list[Message] = [*bootstrap_records(plan.features), *plan.more_records]
    if plan.features[METADATA_VERSION] < BOOTSTRAP_SNAPSHOT_SINCE:
        disk.write_file(f"{path}/{FileKind.BOOTSTRAP_CHECKPOINT}", _bootstrap_checkpoint(records, now_ms))
        records = []
    elif not plan.is_controller:
        records = []
    directory_id = None
    if is_metadata and (plan.voters is not None or records):
        directory_id = next((voter.directory_id for voter in plan.voters or () if voter.voter_id == plan.node_id), None)
        metadata = f"{path}/{METADATA_PARTITION}"
        disk.make_directory(metadata)
        disk.write_file(f"{metadata}/{metadata_snapshot_name(0, 0)}", _first_snapshot(plan, records, now_ms))
    meta = MetaProperties(1, plan.cluster_id, plan.node_id, directory_id or random_uuid(random_bytes))
    disk.write_file(f"{path}/{FileKind.META_PROPERTIES}", encode_meta_properties(meta, date=java_date(now_ms)))
    return meta


def _bootstrap_checkpoint(records: Sequence[Message], now_ms: int) -> bytes:
    snapshot = SnapshotBatches(leader_epoch=0, now_ms=now_ms)
    return b"".join([snapshot.header(0, 0, ()), *snapshot.batches(records), snapshot.footer()])


def _first_snapshot(plan: FormatPlan, records: Sequence[Message], now_ms: int) -> bytes:
    """Return the snapshot at offset 0, which contains the voters and the first records."""
    snapshot = SnapshotBatches(leader_epoch=0, now_ms=now_ms)
    header = snapshot.header(now_ms, plan.features[KRAFT_VERSION], tuple(map(voter_node, plan.voters or ())))
    return b"".join([header, *snapshot.batches(records), snapshot.footer()])


def java_date(now_ms: int) -> str:
    """Format a time as Java's Date does, in UTC: "Sat Nov 21 03:50:00 UTC 2026"."""
    seconds = now_ms // 1000
    days, second_of_day = divmod(seconds, 86400)
    # The algorithm civil_from_days: years begin in March, eras have 400 years.
    era, day_of_era = divmod(days + 719468, 146097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = (shifted_month + 2) % 12
    year = era * 400 + year_of_era + (month < 2)
    clock = f"{second_of_day // 3600:02}:{second_of_day // 60 % 60:02}:{second_of_day % 60:02}"
    return f"{_DAYS[days % 7]} {_MONTHS[month]} {day:02} {clock} UTC {year}"
