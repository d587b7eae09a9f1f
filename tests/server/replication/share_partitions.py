"""A share partition for tests: with a log of batches, a persister in memory, a timer, and the settings of its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcli.format.kafka_uuid import Uuid
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.group_config import ShareGroupConfig
from kcli.server.config.loading import load_config
from kcli.server.metadata_cache import MetadataCache
from kcli.server.replication.share.acknowledgement import AcknowledgementBatch, ShareError
from kcli.server.replication.share.acquisition import AcquiredRecords, AcquireRequest, FetchedBatch
from kcli.server.replication.share.dead_letters import DeadLetters
from kcli.server.replication.share.in_flight import RecordState
from kcli.server.replication.share.share_partition import SharePartition
from kcli.server.replication.share_persister import ShareKey, ShareState, ShareSummary, ShareUpdateBatches
from kcli.state.metadata_values import ConfigResource
from kcli.state.share_group_state import StateBatch, combine_batches

KEY = ShareKey("group", Uuid(b"\1" * 16), 0)
A, B = "member-a", "member-b"


class MemoryPersister:
    """Keeps one state. While `is_held`, writes wait for `finish`; `code` is what reads and writes answer."""

    def __init__(self, start_offset: int = 0, batches: Sequence[StateBatch] = ()) -> None:
        self.start_offset = start_offset
        self.batches = list(batches)
        self.code = error_codes.NONE
        self.is_held = False
        self.updates: list[ShareUpdateBatches] = []
        self._held: list[tuple[ShareUpdateBatches, Callable[[int], None]]] = []

    def read(self, key: ShareKey, leader_epoch: int, done: Callable[[ShareState | int], None]) -> None:
        """Answer with the state."""
        done(self.code or ShareState(1, self.start_offset, tuple(self.batches)))

    def write(self, key: ShareKey, update: ShareUpdateBatches, done: Callable[[int], None]) -> None:
        """Write, or keep the write back."""
        self._held.append((update, done))
        if not self.is_held:
            self.finish()

    def finish(self) -> None:
        """Do what was held back."""
        while self._held:
            update, done = self._held.pop(0)
            if not self.code:
                self.updates.append(update)
                self.start_offset = max(self.start_offset, update.start_offset)
                self.batches = combine_batches([*self.batches, *update.batches], self.start_offset)
            done(self.code)

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int, done: Callable[[int], None]) -> None:
        """Is not used by share partitions."""
        raise NotImplementedError

    def delete(self, key: ShareKey, done: Callable[[int], None]) -> None:
        """Is not used by share partitions."""
        raise NotImplementedError

    def read_summary(self, key: ShareKey, done: Callable[[ShareSummary | int], None]) -> None:
        """Is not used by share partitions."""
        raise NotImplementedError


class NoDeadLetters:
    """The group has no dead letter queue."""

    def is_enabled(self, group_id: str) -> bool:
        """Return False."""
        return False

    def enqueue(self, letters: DeadLetters, done: Callable[[], None]) -> None:
        """Archive what an earlier leader has left as archiving."""
        done()


class Bench:
    """A share partition over batches of the given sizes, from offset 0 on."""

    def __init__(self, *sizes: int, persister: MemoryPersister | None = None, **settings: object) -> None:
        self.log: list[FetchedBatch] = []
        self.end_offset = 0
        for size in sizes:
            self.append(size)
        self.persister = persister or MemoryPersister()
        self.timer = Timer()
        self.metadata = MetadataCache()
        values = {f"share.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
        self.metadata.image.configs[ConfigResource("GROUP", "group")] = values
        self.changes = 0
        self.partition = self.make()

    def make(self) -> SharePartition:
        """Make the share partition from the persisted state."""
        config = load_config(None, ["log.dirs=/nowhere"])
        made = SharePartition(
            KEY,
            "topic",
            3,
            ShareGroupConfig(config, self.metadata),
            self.persister,
            self.timer,
            lambda done: done(self.log[0].base_offset),
            self._changed,
            NoDeadLetters(),
        )
        self.results: list[ShareError | None] = []
        made.initialize(self.results.append)
        return made

    def _changed(self) -> None:
        self.changes += 1

    def append(self, size: int) -> None:
        """Append a batch."""
        last = self.end_offset + size - 1
        self.log.append(FetchedBatch(100 * self.end_offset, 100 * (last + 1), self.end_offset, last))
        self.end_offset = last + 1

    def fetch(
        self, member_id: str = A, max_records: int = 500, *, mode: int = 0, batch_size: int = 500, most_batches: int = 1000
    ) -> list[AcquiredRecords]:
        """Read from the next fetch offset, and acquire."""
        if not self.partition.can_acquire:
            return []
        offset = self.partition.records.next_fetch_offset()
        found = [batch for batch in self.log if batch.last_offset >= offset][:most_batches]
        return self.partition.acquire(AcquireRequest(member_id, mode, batch_size, max_records, offset), found, ())

    def acknowledge(self, *batches: tuple[int, int, int | Sequence[int]], member_id: str = A) -> int | None:
        """Acknowledge (first, last, types) -> the error code; None if it is not written yet."""
        found: list[int] = []
        given = [
            AcknowledgementBatch(first, last, [types] if isinstance(types, int) else types) for first, last, types in batches
        ]
        self.partition.acknowledge(member_id, given, lambda error: found.append(error.code if error else error_codes.NONE))
        return found[0] if found else None

    def release(self, member_id: str = A) -> None:
        """The member leaves."""
        self.partition.release(member_id, self.results.append)

    def advance(self, ms: int) -> None:
        """Let time go by."""
        self.timer.advance(self.timer.clock_ms + ms)

    def states(self) -> dict[int, tuple[RecordState, int]]:
        """The state and the delivery count of each record in flight."""
        found = {}
        for batch in self.partition.records:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                state = batch.state_at(offset)
                found[offset] = (state.state, state.delivery_count)
        return found

    @property
    def span(self) -> tuple[int, int]:
        """The start and the end offset."""
        return self.partition.records.start_offset, self.partition.records.end_offset
