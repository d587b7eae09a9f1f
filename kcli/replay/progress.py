"""How far a replay is, so that a run that was interrupted goes on and sends nothing twice.

    of a partition of the target   meaning
    -----------------------------  ----------------------------------------------------------------------------------------
    source offset                  all selected records below it have been acknowledged
    records                        their number, which modulo 2**31 is the next sequence of the producer
    target offset                  the end of the target's log after the last of them: records of the replay above it are not
                                   counted yet
    start offset                   the end of the target's log before the first of them
    producer id and epoch          those that the replay has in all its runs
    topic id                       of the topic in the target, since a topic that was created again does not have the records
    source topic id                of the topic in the source, which may have been created again, too
    last batch                     the source offset, number of records and CRC of the last batch below the source offset: a run
                                   that goes on makes it again, to notice that the source is another one
    replay                         a hash of paths (of a cluster its id), selection, --topic, --map and --join, since several
                                   replays may be given the same --name

The last three are missing in the progress of older versions, and are then not compared.

The progress is saved before the first record is sent, then each second and at the end. It is behind what the target has; the
next run reads the headers of the target's batches from `target offset` on and finds its own by the producer id. It makes the
same batches again, and the sequences show which of them are there (kcli.replay.preparation). That is why no transaction is
needed. Every consumer sees each record once, even with read_uncommitted, and the target's log has no transaction markers.

    kept in                                  as
    ---------------------------------------  ------------------------------------------------------------------------------
    the target, in the group of the replay   the committed offset of each partition; the rest is its metadata, as text
    a file (--progress FILE)                 JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from kcli.format import limits
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import INT64_MAX, FormatError, TopicPartition
from kcli.log.disk.port import Disk
from kcli.replay.source import UNKNOWN_CRC
from kcli.replay.steps import RESTART, ReplayError, Steps

_KIND = "kcli-replay"
_VERSION = 1
_OLD_WORDS, _WORDS = 8, 13
_NO_REPLAY = "-"
_MAX_EPOCH = 2**15 - 1


class LastBatch(NamedTuple):
    """The last batch that a replay has passed, see the table above."""

    offset: int
    record_count: int
    crc: int


NO_BATCH = LastBatch(-1, 0, UNKNOWN_CRC)


class PartitionProgress(NamedTuple):
    """The progress of one partition; see the table above."""

    producer_id: int
    producer_epoch: int
    source_offset: int
    records: int
    target_offset: int
    start_offset: int
    topic_id: Uuid = ZERO_UUID
    source_topic_id: Uuid = ZERO_UUID
    last: LastBatch = NO_BATCH
    replay: str = ""


Progress = Mapping[TopicPartition, PartitionProgress]


def _checked(progress: PartitionProgress) -> PartitionProgress:
    """Return the progress. Raises ValueError if no replay can have it: its numbers would be written into batches."""
    last = progress.last
    offsets = (progress.producer_id, progress.source_offset, progress.records, progress.start_offset, progress.target_offset)
    if (
        not all(0 <= one <= INT64_MAX for one in offsets)
        or not 0 <= progress.producer_epoch <= _MAX_EPOCH
        or progress.start_offset > progress.target_offset
        or not -1 <= last.offset < max(progress.source_offset, 1)
        or not 0 <= last.record_count <= progress.records
    ):
        raise ValueError
    return progress


class ProgressStore(Protocol):
    """Where the progress is kept; `where` names it for messages."""

    @property
    def where(self) -> str:
        """Name the place."""
        ...

    def load(self, partitions: list[TopicPartition]) -> Steps[dict[TopicPartition, PartitionProgress]]:
        """Return the progress of those partitions that have any. Raises ReplayError."""
        ...

    def save(self, progress: Progress) -> Steps[None]:
        """Keep the progress of these partitions. Raises ReplayError."""
        ...


def check_alone(store: ProgressStore, partitions: list[TopicPartition], producer_id: int) -> Steps[None]:
    """Raise ReplayError if another run has replaced the progress, whose producer id is another one then.

    A run that begins later goes on with the producer id of the first, so that the brokers drop what both send. Only runs
    that begin at the same time have an id each.
    """
    loaded = yield from store.load(partitions)
    if any(one.producer_id != producer_id for one in loaded.values()):
        raise ReplayError(
            f"{store.where} has the progress of another run of this replay, which began at the same time or with --restart: "
            "this run has ended; what both have sent is in the target twice"
        )


def encode_metadata(progress: PartitionProgress) -> str:
    """Return what is kept next to the source offset, as the metadata of a committed offset."""
    return " ".join(
        map(
            str,
            (
                _KIND,
                _VERSION,
                progress.producer_id,
                progress.producer_epoch,
                progress.records,
                progress.target_offset,
                progress.start_offset,
                progress.topic_id,
                progress.source_topic_id,
                *progress.last,
                progress.replay or _NO_REPLAY,
            ),
        )
    )


def decode_metadata(source_offset: int, metadata: str) -> PartitionProgress | None:
    """Return the progress in a committed offset, None if no replay wrote it."""
    words = metadata.split(" ")
    if words[:2] != [_KIND, str(_VERSION)] or len(words) not in (_OLD_WORDS, _WORDS):
        return None
    try:
        producer_id, epoch, records, target, start = map(int, words[2:7])
        found = PartitionProgress(producer_id, epoch, source_offset, records, target, start, Uuid.parse(words[7]))
        if len(words) == _OLD_WORDS:
            return _checked(found)
        last = LastBatch(*map(int, words[9:12]))
        replay = "" if words[12] == _NO_REPLAY else words[12]
        return _checked(found._replace(source_topic_id=Uuid.parse(words[8]), last=last, replay=replay))
    except (ValueError, FormatError):
        return None


class FileProgress:
    """The progress in a file, which is replaced as a whole.

    `identity` is the hash of the replay, `cluster_id` returns the id of the target: those of another one are refused.
    `older` are the identities that older versions wrote. A run saves and checks the file each second: it parses bytes that
    another run wrote only, and encodes partitions that have changed only. 10,000 partitions cost 15 ms, not 500.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        identity: str,
        older: Iterable[str] = (),
        cluster_id: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._disk = disk
        self._path = path
        self._identity = identity
        self._older = tuple(older)
        self._cluster_id = cluster_id
        self._known: dict[TopicPartition, PartitionProgress] = {}
        self._rows: dict[TopicPartition, str] = {}  # `_known` as JSON
        self._written = b""  # what `save` wrote last

    @property
    def where(self) -> str:
        """Name the file."""
        return f"the file {self._path}"

    def load(self, partitions: list[TopicPartition]) -> Steps[dict[TopicPartition, PartitionProgress]]:
        """Read the file; nothing if there is none. Raises ReplayError."""
        yield from ()
        if not self._disk.exists(self._path):
            return {}
        try:
            data = self._disk.read_file(self._path, limits.MAX_TEXT_FILE_BYTES)
            if self._written and data == self._written:
                return {where: self._known[where] for where in partitions if where in self._known}
            value = json.loads(data)
            if value["kind"] != _KIND or value["version"] != _VERSION:
                raise ValueError
            ids = value.get("target"), self._cluster_id()
            if value["replay"] not in (self._identity, *self._older) or (None not in ids and ids[0] != ids[1]):
                raise ReplayError(
                    f"{self._path} has the progress of another replay: its paths, selection, --map, --join or target differ; "
                    f"name another file, or {RESTART}"
                )
            for row in value["partitions"]:
                where = str(row["topic"]), int(row["partition"])
                self._rows.pop(where, None)
                self._known[where] = _checked(
                    PartitionProgress(
                        int(row["producerId"]),
                        int(row["producerEpoch"]),
                        int(row["sourceOffset"]),
                        int(row["records"]),
                        int(row["targetOffset"]),
                        int(row["startOffset"]),
                        Uuid.parse(row["topicId"]),
                        Uuid.parse(row.get("sourceTopicId", str(ZERO_UUID))),
                        LastBatch(*map(int, row.get("lastBatch", NO_BATCH))),
                    )
                )
        except OSError as error:
            raise ReplayError(f"{self._path}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, FormatError):
            raise ReplayError(
                f"{self._path} does not have the progress of a replay, or it is damaged; name another file, or {RESTART}"
            ) from None
        if value["replay"] != self._identity:
            yield from self.save({})  # the next run may not know the older identity
        return {where: self._known[where] for where in partitions if where in self._known}

    def save(self, progress: Progress) -> Steps[None]:
        """Write the file. Raises ReplayError."""
        yield from ()
        self._known.update(progress)
        for where, one in self._known.items():
            if where in progress or where not in self._rows:
                self._rows[where] = _row(where, one)
        head = {"kind": _KIND, "version": _VERSION, "replay": self._identity, "target": self._cluster_id()}
        rows = ",\n".join(self._rows[where] for where in sorted(self._known))
        data = f'{json.dumps(head)[:-1]}, "partitions": [\n{rows}\n]}}\n'.encode()
        self._written = b""
        try:
            self._disk.write_file(self._path, data)
            self._written = data
        except OSError as error:
            raise ReplayError(f"{self._path}: {error.strerror or error}") from None


def _row(where: TopicPartition, progress: PartitionProgress) -> str:
    return json.dumps(
        {
            "topic": where[0],
            "partition": where[1],
            "sourceOffset": progress.source_offset,
            "records": progress.records,
            "targetOffset": progress.target_offset,
            "startOffset": progress.start_offset,
            "producerId": progress.producer_id,
            "producerEpoch": progress.producer_epoch,
            "topicId": str(progress.topic_id),
            "sourceTopicId": str(progress.source_topic_id),
            "lastBatch": list(progress.last),
        }
    )
