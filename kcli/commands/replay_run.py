"""One run of `kcli replay`: the source, the clients on their threads, the tables and sentences.

The tables: what would go (--dry-run) and what has gone.

column           meaning
---------------  --------------------------------------------------------------------------------------------------------
topic            of the source
partition        of the source and the target
target           the topic's name in the target
records          those sent by all runs of this replay
this run         those sent by this run
size             of the batches that this run has sent, with their headers, as in the target's log (unless it compresses
                 them in another way)
source offsets   the first and the last of the selected records
target offsets   from the first of them to the end of the log after the last one: describe's `end offset` of that partition
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from types import TracebackType
from typing import NamedTuple, Self

from kcli.client.client_config import SCHEME
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient
from kcli.client.shell.client_builder import build_network
from kcli.client.shell.client_thread import ClientThread
from kcli.commands.client_options import common_settings, read_properties
from kcli.commands.output import EXIT_FINDINGS, CannotRun, exit_code, print_message, print_text
from kcli.commands.paths import distinct_paths
from kcli.commands.progress import progress_bar
from kcli.commands.replay import JOIN_BYTES
from kcli.format.primitives import TopicPartition
from kcli.inspect.quantities import format_bytes, format_count
from kcli.inspect.renderers.terminal_text import table_lines
from kcli.log.disk.os_disk import OsDisk
from kcli.network.shell.clock import Clock
from kcli.replay.batch_maker import MOST_JOIN_BYTES
from kcli.replay.checking import Checker
from kcli.replay.cluster_source import ClusterSource
from kcli.replay.directory_source import DirectorySource, Problems
from kcli.replay.group_offsets import GroupProgress
from kcli.replay.partition_replay import PartitionReplay
from kcli.replay.preparation import Preparation, ReplayOptions
from kcli.replay.progress import FileProgress, ProgressStore
from kcli.replay.replayer import Replayer
from kcli.replay.scheduling import AtOnce, Schedule, parse_bytes
from kcli.replay.source import CommittedOffset, Source
from kcli.replay.topic_mapping import TopicMapping
from kcli.selecting.selection import Selection

POLL_S = 0.2
STREAM_POLL_S = 0.002
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 0.001, 86_400
CLIENT_ID = "kcli-replay"


def timeout_of(seconds: float) -> int:
    """Return --timeout in ms. Raises CannotRun."""
    if not LEAST_TIMEOUT_S <= seconds <= MOST_TIMEOUT_S:  # also of nan
        raise CannotRun(f"--timeout {seconds:g}: write a number of seconds from {LEAST_TIMEOUT_S:g} to {MOST_TIMEOUT_S:,}")
    return round(seconds * 1000)


def identity_of(sources: Iterable[str], selection: Selection, args: argparse.Namespace) -> str:
    """Return the hash by which the progress of a replay is found; it must stay what it is, or all records are sent again."""
    parts = [*sorted(sources), repr(selection), repr(sorted(args.map)), repr(sorted(args.topic)), repr(args.join)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class ReplayRun:
    """A run; as a context manager it ends the threads of its clients. Raises CannotRun, SourceError, ClientError."""

    def __init__(
        self, args: argparse.Namespace, selection: Selection, mapping: TopicMapping, schedule: Schedule, problems: Problems
    ) -> None:
        self._args = args
        self._selection = selection
        self._schedule = schedule
        self._problems = problems
        self._clock = Clock()
        self._threads: list[ClientThread] = []
        self._mapping = mapping
        self._found_topics: set[str] = set()  # the topics of the source, also those that are left out
        if schedule.needs_origin:
            # The first timestamps of all partitions decide, so that each has an open file.
            from kcli.server.shell.server import raise_descriptor_limit

            raise_descriptor_limit()

    def __enter__(self) -> Self:
        try:
            self._source = self._open_source()
            self._names = self._mapping.targets(dict.fromkeys(topic for topic, _ in self._source.partitions()))
            self._mapping.check_topics(self._found_topics)
            if not self._names:
                raise CannotRun("no topic is left to replay")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        for thread in reversed(self._threads):
            thread.close()

    # ----------------------------------------------------------------------------------------------------------- source

    def _open_source(self) -> DirectorySource | ClusterSource:
        paths = self._args.paths
        wants = self._wants
        join_bytes = self._join_bytes()
        clusters = [path for path in paths if path.startswith(SCHEME)]
        if self._args.from_config and not clusters:
            raise CannotRun("--from-config is for a source kafka://HOST:PORT")
        if not clusters:
            named = distinct_paths(paths)
            return DirectorySource(OsDisk(), named, self._selection, wants, self._problems, os.path.abspath, join_bytes)
        if len(paths) > 1:
            raise CannotRun(f"{clusters[0]} must be the only source")
        for name in ("limit", "tail", "aborted"):
            if getattr(self._args, name):
                raise CannotRun(f"--{name} is for log directories; a cluster does not say how many records it has")
        network = self._network(clusters[0].removeprefix(SCHEME).rstrip("/"), self._args.from_config)
        source = ClusterSource(network, self._selection, wants, self._problems, join_bytes)
        thread = self._start(source, "kcli-replay-source")
        source.wake = thread.wake
        thread.start(source.discover).result()
        return source

    def _join_bytes(self) -> int:
        """Return up to what size batches are joined. A schedule is kept for each batch, so that these stay as they are."""
        if self._args.join is not None:
            join_bytes = parse_bytes("--join", self._args.join)
            if join_bytes > MOST_JOIN_BYTES:
                raise CannotRun(f"--join {self._args.join}: at most {format_bytes(MOST_JOIN_BYTES)}")
            return join_bytes
        return parse_bytes("--join", JOIN_BYTES) if isinstance(self._schedule, AtOnce) else 0

    def _wants(self, topic: str) -> bool:
        self._found_topics.add(topic)
        return self._mapping.target_of(topic) is not None

    def _committed(self) -> dict[TopicPartition, list[CommittedOffset]]:
        globs = self._args.group
        if not self._args.groups and not globs:
            return {}
        source = self._source
        if isinstance(source, DirectorySource):
            offsets = source.committed_offsets(globs)
        else:
            offsets = self._threads[0].start(source.find_committed(globs)).result()
        found: dict[TopicPartition, list[CommittedOffset]] = {}
        for one in offsets:
            found.setdefault((one.topic, one.partition), []).append(one)
        return found

    # ---------------------------------------------------------------------------------------------------------- clients

    def _network(self, servers: str, config_file: str | None) -> NetworkClient:
        timeout_ms = str(timeout_of(self._args.timeout))
        given = {} if config_file is None else common_settings(read_properties(config_file))
        own = {
            "bootstrap.servers": servers,
            "request.timeout.ms": timeout_ms,
            "default.api.timeout.ms": timeout_ms,
            "allow.auto.create.topics": "false",
        }
        # A connection that fails is reported if the call fails for which it was made.
        return build_network({"client.id": CLIENT_ID, **given, **own}, self._clock)

    def _start(self, core: Replayer | ClusterSource, name: str) -> ClientThread:
        thread = ClientThread(core, self._clock, name)
        self._threads.append(thread)
        return thread

    # ------------------------------------------------------------------------------------------------------------- runs

    def dry_run(self) -> int:
        """Print what would be sent."""
        rows = plan(self._source, self._names, lambda: time.sleep(STREAM_POLL_S))
        print_text("\n".join(plan_lines(rows)))
        return self._exit_code()

    def run(self) -> int:
        """Send, print the table, and return the exit code."""
        args = self._args
        committed = self._committed()
        network = self._network(args.to, args.to_config)
        store = self._store(network)
        options = ReplayOptions(not args.no_create, args.replication_factor, args.restart, args.append)
        preparation = Preparation(network, self._source, store, self._names, options, committed, print_message)
        checker = Checker(network, self._source, print_message) if args.check else None
        check = None if checker is None else checker.steps
        replayer = Replayer(network, self._source, store, preparation.steps, self._schedule, committed, check)
        failure = self._wait_for(replayer)
        if replayer.partitions:
            print_text("\n".join(result_lines(replayer.partitions)))
        for group, count in replayer.committed_groups.items():
            print_message(f"{format_count(count, 'offset')} of the group {group!r} committed")
        for group, count in replayer.kept_groups.items():
            print_message(
                f"{format_count(count, 'offset')} of the group {group!r} kept: its consumers have read more in the target than "
                "in the source"
            )
        for group, reason in replayer.group_problems.items():
            print_message(f"the offsets of the group {group!r} are not committed: {reason}")
        if failure is not None:
            raise failure
        if checker is not None and not checker.differences:
            print_message(f"checked: all {format_count(checker.records, 'record')} of the target are those of the source")
        is_different = bool(replayer.group_problems) or (checker is not None and bool(checker.differences))
        return self._exit_code() or (EXIT_FINDINGS if is_different else 0)

    def _exit_code(self) -> int:
        """Return the exit code by the source, after a summary of what was left out."""
        if self._problems.damages:
            print_message(
                f"the source has {format_count(self._problems.damages, 'problem')}, see above; the records there are left out"
            )
        return exit_code(is_sound=not self._problems.damages, all_opened=not self._problems.unopened)

    def _store(self, network: NetworkClient) -> ProgressStore:
        args, identity = self._args, self._identity()
        older = [self._identity_by_address()] if isinstance(self._source, ClusterSource) else []
        if args.progress:
            # Older versions wrote --name instead of the hash.
            known = [*older, args.name or identity]
            return FileProgress(OsDisk(), args.progress, identity, known, lambda: network.metadata.cluster_id)
        name, *older_names = (f"{CLIENT_ID}-{args.name or one}" for one in (identity, *older))
        return GroupProgress(network, name, identity, zip(older_names, older, strict=True))

    def _identity(self) -> str:
        """Return the hash of the replay: the same command line has the same, however a cluster is addressed."""
        cluster_id = self._source.cluster_id
        if cluster_id is None:
            return self._identity_by_address()
        return identity_of([SCHEME + cluster_id], self._selection, self._args)

    def _identity_by_address(self) -> str:
        """Return the hash with the address of a cluster, which older versions used."""
        paths = [path if path.startswith(SCHEME) else os.path.realpath(path) for path in self._args.paths]
        return identity_of(paths, self._selection, self._args)

    def _wait_for(self, replayer: Replayer) -> ClientError | None:
        """Run the client until the replay has ended, and return its error."""
        thread = self._start(replayer, CLIENT_ID)
        if isinstance(self._source, ClusterSource):
            self._source.on_data = thread.wake
        ended: Future[None] = thread.start(replayer.run)
        done = 0
        with progress_bar(sum(map(self._source.size_bytes, self._source.partitions()))) as bar:
            while True:
                try:
                    ended.result(POLL_S)
                    return None
                except NotYet:
                    if bar is not None:
                        now = sum(partition.source_bytes for partition in replayer.partitions)
                        bar.advance(now - done)
                        done = now
                except ClientError as error:
                    return error


class PlannedRow(NamedTuple):
    """What a partition of the source would send."""

    source: TopicPartition
    target: TopicPartition
    records: int
    batches: int
    bytes: int
    first_offset: int | None
    last_offset: int | None


def plan(source: Source, names: Mapping[str, str], wait: Callable[[], None]) -> Iterator[PlannedRow]:
    """Yield what each partition would send; all is read, nothing is sent. `wait` is called while a source has nothing yet."""
    for where in source.partitions():
        stream = source.open(where, 0, [])
        records = batches = size = 0
        first: int | None = None
        last: int | None = None
        while not stream.is_ended:
            batch = stream.peek()
            if batch is None:
                wait()
                continue
            stream.take()
            records += batch.record_count
            batches += 1
            size += len(batch.data)
            first = batch.first_offset if first is None else first
            last = batch.next_offset - 1
        stream.close()
        yield PlannedRow(where, (names[where[0]], where[1]), records, batches, size, first, last)


def plan_lines(rows: Iterable[PlannedRow]) -> Iterator[str]:
    """Yield the table of a dry run."""
    columns = ("topic", "partition", "target", "records", "batches", "size", "source offsets")
    cells = [
        (
            row.source[0],
            str(row.source[1]),
            row.target[0],
            f"{row.records:,}",
            f"{row.batches:,}",
            format_bytes(row.bytes),
            "" if row.first_offset is None else f"{row.first_offset} to {row.last_offset}",
        )
        for row in rows
    ]
    yield from table_lines(columns, cells)


def result_lines(partitions: Iterable[PartitionReplay]) -> Iterator[str]:
    """Yield the table of a run."""
    columns = ("topic", "partition", "target", "records", "this run", "size", "next source offset", "target offsets")
    cells = []
    for one in partitions:
        progress = one.progress
        cells.append(
            (
                one.source[0],
                str(one.source[1]),
                one.target[0],
                f"{progress.records:,}",
                f"{one.records:,}",
                format_bytes(one.bytes),
                str(progress.source_offset),
                f"{progress.start_offset} to {progress.target_offset}" if progress.records else f"end {progress.target_offset}",
            )
        )
    yield from table_lines(columns, cells)
