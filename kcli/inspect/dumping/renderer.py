"""What every output of dump-log can be told, in this order: files one after the other, and what is in them.

    begin_file                  a file; all that follows is in it
      batch, records, damage    a log segment or a snapshot of metadata: a batch comes before its records
      entries, note, damage     any other file
    end_file
    problem                     a path that could not be opened or read
    statistics                  instead of batches and records
    end                         once, at the very end

Renderers write bytes, in large pieces, to the stream that they were made with. Nothing of a payload reaches a terminal as
a control character.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from kcli.inspect.dumping.record_contents import ContentDecoder
    from kcli.inspect.dumping.selected_log import SelectedRecords
    from kcli.log.reading.segment_reader import Damage, LogBatch

# The names of the timestamps of a batch, as Kafka prints them.
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
NO_TIMESTAMP_TYPE = "NoTimestampType"


class DumpedFile(NamedTuple):
    """A file that is shown: `kind` is kcli.format.file_names' word for it, `sentence` says what that is.

    Topic, partition and base offset are None where the names do not tell; `decoder` is None for plain keys and values. Of an
    index `preallocated_bytes` of its size are zeros behind its entries.
    """

    path: str
    kind: str
    sentence: str
    size_bytes: int
    topic: str | None = None
    partition: int | None = None
    base_offset: int | None = None
    decoder: ContentDecoder | None = None
    preallocated_bytes: int = 0


class Entry(NamedTuple):
    """One entry of a file that is no log: its type and its fields, values for JSON."""

    type: str
    fields: dict[str, Any]


class DumpResult(NamedTuple):
    """What came of a dump: `damages` counts stretches and batches, `problems` paths that could not be read.

    `unopened` counts the problems of paths that were named on the command line, not found in a directory.
    """

    files: int = 0
    batches: int = 0
    records: int = 0
    entries: int = 0
    damages: int = 0
    problems: int = 0
    unopened: int = 0

    @property
    def is_sound(self) -> bool:
        """True where all was read and nothing was damaged."""
        return not self.damages and not self.problems


class Renderer(Protocol):
    """An output of dump-log. `shows_damage` is False where its form has no place for damage, problems and notes."""

    shows_damage: bool

    def begin_file(self, file: DumpedFile) -> None:
        """A file begins."""
        ...

    def batch(self, batch: LogBatch) -> None:
        """A batch, sound or not."""
        ...

    def records(self, selected: SelectedRecords) -> None:
        """Records of the batch before."""
        ...

    def entries(self, entries: Iterable[Entry]) -> None:
        """Entries of a file that is no log."""
        ...

    def damage(self, damage: Damage) -> None:
        """Bytes of the file that are not what they should be."""
        ...

    def note(self, message: str) -> None:
        """One sentence on the file that is no damage."""
        ...

    def end_file(self) -> None:
        """The file is done."""
        ...

    def problem(self, path: str, message: str) -> None:
        """A path that could not be read; the sentence does not name it."""
        ...

    def statistics(self, report: dict[str, Any]) -> None:
        """What kcli.inspect.dumping.statistics found."""
        ...

    def end(self, result: DumpResult) -> None:
        """All is done; flushes."""
        ...

    def flush(self) -> None:
        """Write out what was collected."""
        ...


def timestamp_type(batch: LogBatch) -> str:
    """The name of a batch's timestamps."""
    if batch.header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if batch.header.is_log_append_time else CREATE_TIME


def fixed_timestamp(batch: LogBatch) -> int | None:
    """The timestamp (ms) of all of a batch's records where its header gives it, else None."""
    header = batch.header
    return header.max_timestamp if header.magic == 2 and header.is_log_append_time else None
