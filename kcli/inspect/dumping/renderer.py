"""The outputs of dump-log: each is a Renderer, whose methods are called in this order.

    begin_file                  a file, with its contents:
      batch, records, damage    a log segment or a metadata snapshot: a batch before its records
      entries, note, damage     any other file
    end_file
    problem                     a path that could not be opened or read
    statistics                  instead of batches and records
    end                         once, at the very end

Renderers escape the control characters of payloads, because a terminal would act on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from kcli.inspect.dumping.text_buffer import TextBuffer

if TYPE_CHECKING:
    from kcli.inspect.dumping.record_contents import ContentDecoder
    from kcli.inspect.json_text import JsonObject
    from kcli.log.reading.segment_reader import Damage, LogBatch
    from kcli.selecting.selected_log import SelectedRecords

# The names of the timestamps of a batch, as Kafka prints them.
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"
NO_TIMESTAMP_TYPE = "NoTimestampType"


class DumpedFile(NamedTuple):
    """A file that is shown: `kind` is its kind in kcli.format.file_names, `sentence` describes that kind.

    Topic, partition and base offset are None if the names do not contain them; `decoder` is None for plain keys and values.
    `preallocated_bytes` are the zeros after the entries of an index.
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
    """An entry of a file that is not a log: its type and its fields, as values for JSON."""

    type: str
    fields: JsonObject


class DumpResult(NamedTuple):
    """Counts of a dump: of what was shown, of damaged batches and ranges of bytes, of paths that could not be read (problems).

    `unopened` counts the problems of paths of the command line, without those that were found in a directory.
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
        """Whether all files were read and nothing was damaged."""
        return not self.damages and not self.problems


class Renderer:
    """An output of dump-log, which writes bytes with `write`. Without a method of its own it leaves a part out.

    `shows_damage` is False if its form has no place for damage, problems and notes; then the caller reports them.
    """

    shows_damage = True

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        self._out = TextBuffer(write)

    def begin_file(self, file: DumpedFile) -> None:
        """Begin a file."""

    def batch(self, batch: LogBatch) -> None:
        """Show a batch, sound or not."""

    def records(self, selected: SelectedRecords) -> None:
        """Show records of the last batch."""

    def entries(self, entries: Iterable[Entry]) -> None:
        """Show entries of a file that is not a log."""

    def damage(self, damage: Damage) -> None:
        """Show bytes of the file that are not what they should be."""

    def note(self, message: str) -> None:
        """Show a remark on the file that is not damage; one sentence."""

    def end_file(self) -> None:
        """End the file."""

    def problem(self, path: str, message: str) -> None:
        """Show a path that could not be read; the sentence does not name it."""

    def statistics(self, report: JsonObject) -> None:
        """Show the report of kcli.inspect.dumping.statistics."""

    def end(self, result: DumpResult) -> None:
        """End the output: write out what was collected."""
        self.flush()

    def flush(self) -> None:
        """Write out what was collected."""
        self._out.flush()


def timestamp_type(batch: LogBatch) -> str:
    """Return Kafka's name of the timestamp type of a batch."""
    if batch.header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if batch.header.is_log_append_time else CREATE_TIME


def fixed_timestamp(batch: LogBatch) -> int | None:
    """Return the timestamp (ms) of all records of a batch with LogAppendTime, else None."""
    header = batch.header
    return header.max_timestamp if header.magic == 2 and header.is_log_append_time else None
