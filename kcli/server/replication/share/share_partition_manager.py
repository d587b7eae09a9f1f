"""The share partitions and share sessions of a broker (KIP-932; Kafka: SharePartitionManager).

A share partition is made by the first fetch of its group on the leader of the partition, and removed when this broker does not
lead the partition any more, the topic is deleted, its log directory fails, the group has no member, or the persister refuses
this leader or does not know the group. Then the next fetch makes it again, if this broker is the leader.

Fetches wait in ReplicaManager.share_fetch_purgatory under two keys for each partition: the partition's, which is checked when
it grows, and the share partition's, which is checked when records become available or its start offset moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.port import Disk
from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.time_lookup import LongScanError, SegmentScan, TimestampAndOffset
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.group_config import EARLIEST, LATEST, ShareGroupConfig
from kcli.server.config.server_config import ConfigReader
from kcli.server.events import Connection
from kcli.server.metadata_cache import MetadataCache
from kcli.server.outstanding import Computations, Gather
from kcli.server.replication.partition import PartitionError
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.share.acknowledgement import AcknowledgementBatch, ShareError
from kcli.server.replication.share.dead_letters import DeadLetterQueue
from kcli.server.replication.share.delayed_share_fetch import (
    LOAD_WAIT_MS,
    DelayedShareFetch,
    Results,
    ShareFetchParams,
    ShareFetchResult,
    read_again,
)
from kcli.server.replication.share.share_partition import SharePartition
from kcli.server.replication.share.share_session import MemberKey, ShareSessionCache, ShareTarget
from kcli.server.replication.share_persister import ShareKey, SharePersister

# The errors of a share partition after which it is removed, for the next fetch to make it again.
_FENCING = frozenset(
    (
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.FENCED_STATE_EPOCH,
        error_codes.GROUP_ID_NOT_FOUND,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    )
)

Errors = dict[ShareTarget, ShareError | None]


class SharePartitionManager:
    """The share partitions of the groups that read from this broker. `config` has the settings of the groups."""

    def __init__(
        self,
        config: ConfigReader,
        metadata: MetadataCache,
        replica_manager: ReplicaManager,
        persister: SharePersister,
        timer: Timer,
        computations: Computations,
        disk: Disk,
        dead_letters: DeadLetterQueue,
    ) -> None:
        self.config = ShareGroupConfig(config, metadata)
        self.partitions: dict[ShareKey, SharePartition] = {}
        max_sessions = config.get_int("group.share.max.share.sessions")
        self.sessions = ShareSessionCache(max_sessions, self._member_left, self._group_empty)
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._persister = persister
        self._timer = timer
        self._computations = computations
        self._disk = disk
        self._dead_letters = dead_letters
        self._waiting: dict[Connection, DelayedShareFetch] = {}
        replica_manager.watch_leadership(self._leadership_changed)

    # ----------------------------------------------------------------------------------------------------------- fetch

    def fetch(
        self,
        params: ShareFetchParams,
        connection: Connection,
        done: Callable[[Results, int], None],
        failed: Callable[[Exception], None],
        now_ms: int,
    ) -> None:
        """Fetch and acquire records for a member, now or later; `done(results, now_ms)` is called once."""
        if not params.targets or params.max_records == 0 or params.max_bytes == 0:
            done({}, now_ms)
            return
        errors: dict[ShareTarget, ShareError] = {}
        found: dict[ShareTarget, SharePartition] = {}
        for target, topic in params.targets:
            key = ShareKey(params.group_id, *target)
            share_partition = self._get_or_create(key, topic)
            if isinstance(share_partition, ShareError):
                errors[target] = share_partition
                continue
            found[target] = share_partition
            share_partition.initialize(partial(self._initialized, key, share_partition, errors, target))
        if len(errors) == len(params.targets):
            done({target: ShareFetchResult(error) for target, error in errors.items()}, now_ms)
            return

        def completed(results: Results, now_ms: int) -> None:
            self._waiting.pop(connection, None)
            done(results, now_ms)

        def ended(error: Exception) -> None:
            self._waiting.pop(connection, None)
            failed(error)

        fetch = DelayedShareFetch(params, found, errors, self._replica_manager, completed, ended)
        if fetch.can_complete(now_ms):
            fetch.on_complete(now_ms)
            return
        self._waiting[connection] = fetch
        keys = [key for target, topic in params.targets for key in (ShareKey(params.group_id, *target), (topic, target[1]))]
        wait_ms = params.max_wait_ms if params.max_wait_ms > 0 else LOAD_WAIT_MS
        self._replica_manager.share_fetch_purgatory.watch(fetch, keys, now_ms + wait_ms)

    def renew(self, results: Results) -> Results:
        """Return results that had to wait for their answer, with the records that are in closed files read again."""
        files = self._replica_manager.log_manager.files
        closed = [
            target
            for target, one in results.items()
            if one.records is not None and not files.touch(one.records.file.name, one.records.file)
        ]
        return {**results, **{target: self._read_again(target, results[target]) for target in closed}}

    def _read_again(self, target: ShareTarget, result: ShareFetchResult) -> ShareFetchResult:
        topic = self.topic_name(target[0])
        hosted = None if topic is None else self._replica_manager.partition(topic, target[1])
        if hosted is None:
            return ShareFetchResult(ShareError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "the partition is deleted"))
        try:
            return result._replace(records=read_again(hosted.leader_log(), result.acquired))
        except PartitionError as error:
            return ShareFetchResult(ShareError(error.code, str(error)))
        except OffsetOutOfRangeError as error:
            return ShareFetchResult(ShareError(error_codes.OFFSET_OUT_OF_RANGE, str(error)))
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(hosted, error)
            return ShareFetchResult(ShareError(error_codes.KAFKA_STORAGE_ERROR, str(error)))

    def _get_or_create(self, key: ShareKey, topic: str) -> SharePartition | ShareError:
        known = self.partitions.get(key)
        if known is not None:
            return known
        hosted = self._replica_manager.partition(topic, key.partition)
        if hosted is None:
            code = self._replica_manager.missing_partition_code(topic, key.partition)
            return ShareError(code, "this broker does not host the partition")
        try:
            hosted.leader_log()
        except PartitionError as error:
            return ShareError(error.code, str(error))
        made = SharePartition(
            key,
            topic,
            hosted.leader_epoch,
            self.config,
            self._persister,
            self._timer,
            lambda done: self._find_start(key, topic, done),
            lambda: self._check(key),
            self._dead_letters,
        )
        self.partitions[key] = made
        return made

    def _initialized(
        self,
        key: ShareKey,
        share_partition: SharePartition,
        errors: dict[ShareTarget, ShareError],
        target: ShareTarget,
        error: ShareError | None,
    ) -> None:
        """Note the error of an initialization, and let the fetches continue that wait for it."""
        if error is not None and error.code != error_codes.LEADER_NOT_AVAILABLE:
            errors[target] = error
            if self.partitions.get(key) is share_partition:
                self._remove(key)
        self._check(key)

    def _check(self, key: ShareKey) -> None:
        self._replica_manager.share_fetch_purgatory.check(key, self._timer.clock_ms)

    # ---------------------------------------------------------------------------------------------------- start offset

    def _find_start(self, key: ShareKey, topic: str, done: Callable[[int | ShareError], None]) -> None:
        """Find where a group begins in a partition, by share.auto.offset.reset."""
        share_partition = self.partitions.get(key)
        hosted = self._replica_manager.partition(topic, key.partition)
        if hosted is None or share_partition is None:
            done(ShareError(error_codes.NOT_LEADER_OR_FOLLOWER, "this broker does not host the partition"))
            return
        try:
            log = hosted.leader_log(share_partition.leader_epoch)
            reset = self.config.auto_offset_reset(key.group_id)
            if reset == LATEST:
                done(log.high_watermark)
            elif reset == EARLIEST:
                done(log.log_start_offset)
            else:
                timestamp = self._timer.wall.at(self._timer.clock_ms) - int(reset)
                scan = log.scan_by_time(timestamp)
                self._run_scan(scan, partial(_time_found, log.high_watermark, done))
        except PartitionError as error:
            done(ShareError(error.code, str(error)))
        except OSError as error:
            self._replica_manager.handle_log_dir_failure(hosted, error)
            done(ShareError(error_codes.KAFKA_STORAGE_ERROR, str(error)))

    def _run_scan(self, scan: SegmentScan | None, found: Callable[[TimestampAndOffset | None], None]) -> None:
        """Search a segment; outside the event loop if that may take long."""
        if scan is None:
            found(None)
            return
        try:
            result = scan.run(self._disk, is_hurried=True)
        except LongScanError:

            def searched(result: TimestampAndOffset | Exception | None, now_ms: int) -> None:
                found(None if isinstance(result, Exception) else result)

            self._computations.compute(partial(_run, scan, self._disk), searched)
            return
        found(result)

    # --------------------------------------------------------------------------------------------------- acknowledgement

    def acknowledge(
        self,
        key: MemberKey,
        batches: Mapping[ShareTarget, Sequence[AcknowledgementBatch]],
        done: Callable[[Errors], None],
    ) -> None:
        """Acknowledge records of a member; `done` gets the error of each partition, None for none."""
        errors: Errors = {}
        gather = Gather(len(batches), lambda: done(errors))

        def acknowledged(share_key: ShareKey, target: ShareTarget, error: ShareError | None) -> None:
            self._check_fenced(share_key, error)
            errors[target] = error
            gather.done()

        for target, wanted in batches.items():
            share_key = ShareKey(key.group_id, *target)
            share_partition = self.partitions.get(share_key)
            if share_partition is None:
                errors[target] = ShareError(error_codes.UNKNOWN_TOPIC_OR_PARTITION, "the group reads nothing here")
                gather.done()
                continue
            share_partition.acknowledge(key.member_id, wanted, partial(acknowledged, share_key, target))
            self._check(share_key)

    def release_session(self, key: MemberKey) -> None:
        """End a member's session, and release the records that it has acquired.

        These are also records of partitions that the session has forgotten. Kafka leaves them to their locks, so that their
        delivery counts are lost if the member was the last one of its group.
        """
        if not self.sessions.remove(key):
            return
        for share_key in [share_key for share_key in self.partitions if share_key.group_id == key.group_id]:
            share_partition = self.partitions.get(share_key)
            if share_partition is not None:
                share_partition.release(key.member_id, partial(self._check_fenced, share_key))
                self._check(share_key)

    def _check_fenced(self, key: ShareKey, error: ShareError | None) -> None:
        """Remove a share partition after an error that ends it; the next fetch makes it again."""
        if error is not None and error.code in _FENCING:
            self._remove(key)

    # --------------------------------------------------------------------------------------------------------- removal

    def _remove(self, key: ShareKey) -> None:
        """Fence and remove a share partition; the fetches that wait for it are checked."""
        share_partition = self.partitions.pop(key, None)
        if share_partition is not None:
            share_partition.fence()
            self._check(key)

    def _leadership_changed(self, topic: str, index: int) -> None:
        """Remove the share partitions of a partition that this broker does not lead any more."""
        hosted = self._replica_manager.partition(topic, index)
        for key in [key for key, found in self.partitions.items() if key.partition == index and found.topic == topic]:
            if hosted is None or not hosted.is_leader or hosted.log is None or hosted.topic_id != key.topic_id:
                self._remove(key)

    def _group_empty(self, group_id: str) -> None:
        for key in [key for key in self.partitions if key.group_id == group_id]:
            self._remove(key)

    def _member_left(self, key: MemberKey) -> None:
        self.release_session(key)

    def connection_closed(self, connection: Connection) -> None:
        """Drop the fetch that waits for a connection that has ended, and end the session that began with it."""
        fetch = self._waiting.pop(connection, None)
        if fetch is not None:
            self._replica_manager.share_fetch_purgatory.drop(fetch)
        self.sessions.connection_closed(connection)

    def topic_name(self, topic_id: Uuid) -> str | None:
        """Return the name of a topic, None for an unknown id."""
        return self._metadata.topic_name(topic_id)


def _run(scan: SegmentScan, disk: Disk) -> TimestampAndOffset | Exception | None:
    try:
        return scan.run(disk)
    except OSError as error:
        return error


def _time_found(high_watermark: int, done: Callable[[int | ShareError], None], found: TimestampAndOffset | None) -> None:
    if found is None or found.offset >= high_watermark:
        done(ShareError(error_codes.OFFSET_NOT_AVAILABLE, "the partition has no record of the time to begin at"))
    else:
        done(found.offset)
