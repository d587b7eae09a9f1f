"""The report of a compaction: as text, and as JSON.

text      a table of partitions: what is removed, of how much                once, or per partition if the disk is nearly full
          <partitions>: why they do not change; the option that would help   a line for each reason, after the table
          <counts>; what was done                                            the last line

JSON      one object per line; docs/compact.md documents the schema. SCHEMA_VERSION grows when a field changes its meaning or
  is removed, not when one is added. Types: schema (the first line), skipped, plan, problem, result, summary (the last line).
  A path that is not UTF-8 is in pathBase64, in base64, instead of path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kcli.format import limits
from kcli.inspect.compacting.compaction import Placed
from kcli.inspect.compacting.jobs import CompactionPlan, PartitionOutcome, Reason
from kcli.inspect.compacting.obstacles import ASSUME_COMMITTED, sentence
from kcli.inspect.compacting.partition_selection import LeftOut
from kcli.inspect.json_text import dump, json_string, path_member
from kcli.inspect.quantities import format_bytes, format_count
from kcli.inspect.renderers.terminal_text import escape, table_lines

SCHEMA_NAME = "kcli.compact"
SCHEMA_VERSION = 1

CLEAN_COLUMNS = ("partition", "records removed", "of", "tombstones", "of", "keys", "bytes removed", "of", "segments", "rounds")
RECOMPRESS_COLUMNS = ("partition", "batches", "records", "bytes", "become", "segments", "from format 0, 1")
# The order of the lines with reasons: those that an option would change come first.
_REASONS = (
    *(Reason.NO_HIGH_WATERMARK, Reason.HIGH_WATERMARK, Reason.ACTIVE_SEGMENT, Reason.MIN_COMPACTION_LAG),
    *(Reason.OPEN_TRANSACTION, Reason.CLEANED_BEFORE, Reason.HAS_CODEC, Reason.EMPTY),
)
_NAMES_PER_LINE = 3


class RunSummary(NamedTuple):
    """The totals of a run; `is_done` is False for a dry run."""

    is_done: bool
    recompresses: bool
    plans: tuple[CompactionPlan, ...]
    left_out: int
    problems: int

    def total(self, field: str) -> int:
        """Return the sum of a field over all plans."""
        return sum(getattr(plan, field) for plan in self.plans)


class TextCompactReport:
    """The report as text."""

    def begin(self) -> Iterator[str]:
        """Yield nothing: the text has no head."""
        yield from ()

    def left_out(self, left: LeftOut) -> Iterator[str]:
        """Yield nothing: partitions that are left out are reported on stderr, after the plan."""
        yield from ()

    def plans(self, outcomes: Sequence[PartitionOutcome]) -> Iterator[str]:
        """Yield a row for each partition that changes, then the reasons why the others do not change."""
        planned = [outcome for outcome in outcomes if outcome.problem is None]
        rows = [outcome for outcome in planned if not outcome.plan.is_nothing]
        for one in planned:
            if one.plan.large_batches:
                count = format_count(one.plan.large_batches, "batch")
                most = format_bytes(limits.MAX_RECOMPRESSED_BYTES)
                yield f"{_name(one)}: {count} with more than {most} of records keep their codec"
        if rows and rows[0].job.options.recompression is not None:
            yield from table_lines(RECOMPRESS_COLUMNS, [_recompress_row(one) for one in rows])
        elif rows:
            yield from table_lines(CLEAN_COLUMNS, [_clean_row(one) for one in rows])
        assuming = [one for one in rows if one.assumes_committed]
        if assuming:
            yield f"{_names(assuming)}: {ASSUME_COMMITTED} counts records as committed that no high watermark covers"
        yield from _reason_lines([one for one in planned if one.plan.is_nothing])

    def problem(self, path: str, message: str) -> Iterator[str]:
        """Yield nothing: problems are reported on stderr."""
        yield from ()

    def placed(self, placed: Placed) -> Iterator[str]:
        """Yield nothing: the last line has the totals."""
        yield from ()

    def end(self, summary: RunSummary) -> Iterator[str]:
        """Yield the last line."""
        worked = [plan for plan in summary.plans if not plan.is_nothing]
        partitions = format_count(len(worked), "partition")
        if not worked:
            what = "re-compress" if summary.recompresses else "clean"
            yield f"nothing to {what} in {format_count(len(summary.plans), 'partition')}"
            return
        before, after = summary.total("log_bytes"), summary.total("log_bytes_left")
        sizes = f"{format_bytes(before)} {'became' if summary.is_done else 'would become'} {format_bytes(after)}"
        if summary.recompresses:
            what = f"{format_count(summary.total('batches'), 'batch')} of {partitions}"
        else:
            gone = summary.total("records") - summary.total("records_left")
            what = f"{gone:,} of {format_count(summary.total('records'), 'record')} of {partitions}"
        done = "re-compressed" if summary.recompresses else "removed"
        if summary.is_done:
            yield f"{what} {done}, {sizes}"
        else:
            yield f"{what} would be {done}, {sizes}; nothing was changed: --apply carries it out"


def _name(outcome: PartitionOutcome) -> str:
    return escape(outcome.job.path)


def _names(outcomes: Sequence[PartitionOutcome]) -> str:
    """Return the paths of partitions; if there are many, the first ones and the number of the others."""
    shown = ", ".join(_name(one) for one in outcomes[:_NAMES_PER_LINE])
    more = len(outcomes) - _NAMES_PER_LINE
    return f"{shown} and {more:,} more" if more > 0 else shown


def _reason_lines(unchanged: Sequence[PartitionOutcome]) -> Iterator[str]:
    """Yield a line for each reason why partitions do not change, with their names."""
    by_reason: dict[tuple[int, str], list[PartitionOutcome]] = {}
    for one in unchanged:
        rank = min(_REASONS.index(obstacle.reason) for obstacle in one.obstacles)
        by_reason.setdefault((rank, sentence(one.obstacles)), []).append(one)
    for (_, why), outcomes in sorted(by_reason.items(), key=lambda item: item[0][0]):
        yield f"{_names(outcomes)}: {escape(why)}"


def _segments(plan: CompactionPlan) -> str:
    return f"{plan.segments} -> {plan.segments_left}" if plan.segments != plan.segments_left else f"{plan.segments}"


def _clean_row(outcome: PartitionOutcome) -> tuple[str, ...]:
    plan = outcome.plan
    return (
        _name(outcome),
        f"{plan.records - plan.records_left:,}",
        f"{plan.records:,}",
        f"{plan.tombstones - plan.tombstones_left:,}",
        f"{plan.tombstones:,}",
        f"{plan.keys:,}",
        format_bytes(plan.size_bytes - plan.size_bytes_left),
        format_bytes(plan.size_bytes),
        _segments(plan),
        f"{plan.rounds}",
    )


def _recompress_row(outcome: PartitionOutcome) -> tuple[str, ...]:
    plan = outcome.plan
    return (
        _name(outcome),
        f"{plan.batches:,}",
        f"{plan.records:,}",
        format_bytes(plan.size_bytes),
        format_bytes(plan.size_bytes_left),
        _segments(plan),
        f"{plan.converted_batches:,}",
    )


class JsonCompactReport:
    """The report as JSON."""

    def begin(self) -> Iterator[str]:
        """Yield the first line."""
        yield f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}'

    def left_out(self, left: LeftOut) -> Iterator[str]:
        """Yield a line for a partition that is left out, with the reason."""
        fields = {"topic": left.topic, "refused": left.is_refused, "reason": left.reason.value, "message": left.message}
        yield f'{{"type":"skipped",{path_member(left.path)},{dump(fields)[1:]}'

    def plans(self, outcomes: Sequence[PartitionOutcome]) -> Iterator[str]:
        """Yield the plan of each partition, also of those that do not change."""
        for outcome in outcomes:
            if outcome.problem is None:
                yield f'{{"type":"plan",{path_member(outcome.job.path)},{dump(_fields(outcome))[1:]}'

    def problem(self, path: str, message: str) -> Iterator[str]:
        """Yield a line for a problem with a path."""
        yield f'{{"type":"problem",{path_member(path)},"message":{json_string(message)}}}'

    def placed(self, placed: Placed) -> Iterator[str]:
        """Yield a line for a partition that was put in place."""
        partition = placed.outcome.job.partition
        fields = {
            "topic": partition.topic,
            "partition": partition.partition,
            "cleanedOffset": placed.outcome.cleaned_offset,
            "logBytes": placed.log_bytes,
        }
        yield f'{{"type":"result",{path_member(placed.path)},{dump(fields)[1:]}'

    def end(self, summary: RunSummary) -> Iterator[str]:
        """Yield the last line."""
        yield dump(
            {
                "type": "summary",
                "done": summary.is_done,
                "partitions": len(summary.plans),
                "changed": sum(not plan.is_nothing for plan in summary.plans),
                "skipped": summary.left_out,
                "problems": summary.problems,
                "records": summary.total("records"),
                "recordsLeft": summary.total("records_left"),
                "tombstones": summary.total("tombstones"),
                "tombstonesLeft": summary.total("tombstones_left"),
                "batches": summary.total("batches"),
                "logBytes": summary.total("log_bytes"),
                "logBytesLeft": summary.total("log_bytes_left"),
            }
        )


def _fields(outcome: PartitionOutcome) -> dict[str, object]:
    partition, plan = outcome.job.partition, outcome.plan
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "records": plan.records,
        "recordsLeft": plan.records_left,
        "tombstones": plan.tombstones,
        "tombstonesLeft": plan.tombstones_left,
        "withoutKey": plan.without_key,
        "keys": plan.keys,
        "bytes": plan.size_bytes,
        "bytesLeft": plan.size_bytes_left,
        "segments": plan.segments,
        "segmentsLeft": plan.segments_left,
        "logBytes": plan.log_bytes,
        "logBytesLeft": plan.log_bytes_left,
        "rounds": plan.rounds,
        "batches": plan.batches,
        "convertedBatches": plan.converted_batches,
        "legacyBatches": plan.legacy_batches,
        "largeBatches": plan.large_batches,
        "cleanedOffset": outcome.cleaned_offset,
        "highWatermark": outcome.job.high_watermark,
        "assumedCommitted": outcome.assumes_committed,
        "reasons": [one.reason.value for one in outcome.obstacles],
        "message": sentence(outcome.obstacles) if outcome.obstacles else None,
        "options": [one.option for one in outcome.obstacles if one.option],
    }
