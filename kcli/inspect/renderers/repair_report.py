"""Prints what a repair would do or has done, as text or as JSON.

text      <partition>: <counts>; afterwards log start offset A, log end offset B
            <change>  <file>: <why>                                one line for each change, hole and remark
            left for you <path>: <code>: <sentence>                one line for each finding that stays
          <log directory>: how it counts afterwards                with its own changes
          the quarantine, ...: <path>
          what to do about <code>: ...                             one line for each code that stays
          <counts>

JSON      one object a line; docs/repair.md documents the schema. SCHEMA_VERSION grows when a field changes its meaning or is
  removed, not when one is added. Types: schema (the first line), change, hole, remark, alternative, left, partition,
  directory, problem, summary (the last line). A path that is not UTF-8 is in pathBase64, in base64, instead of path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcli.inspect.json_text import dump, json_string, path_member
from kcli.inspect.quantities import format_byte_range, format_bytes, format_count, format_offsets
from kcli.inspect.renderers.human_text import Palette
from kcli.inspect.renderers.terminal_text import escape, shorten
from kcli.inspect.repairing.holes import Hole, Remark
from kcli.inspect.repairing.repair import CLEAN, NO_LONGER_CLEAN, UNCLEAN, RootPlan
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.inspect.verification.finding_kinds import HOLES, KINDS
from kcli.inspect.verification.findings import Finding
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, Change
from kcli.log.disk.port import base_name

SCHEMA_NAME = "kcli.repair"
SCHEMA_VERSION = 1

_SHUTDOWN = {
    CLEAN: "counts as cleanly shut down: a broker does not recover it",
    UNCLEAN: "does not count as cleanly shut down, as before: a broker recovers it at its start",
    NO_LONGER_CLEAN: "no longer counts as cleanly shut down, since records are missing",
}
_WILL_NOT_BE_CLEAN = "will no longer count as cleanly shut down, since records are missing"


class RepairSummary(NamedTuple):
    """The counts of a whole run, and whether the changes were applied."""

    is_applied: bool
    partitions: int
    changes: int
    holes: int
    problems: int
    left: int


class TextRepairReport:
    """The text output; `colour` for a terminal with colours, `is_applied` if the changes are made."""

    def __init__(self, *, colour: bool = False, is_applied: bool = False) -> None:
        self._is_applied = is_applied
        self._palette = Palette(colour)
        self._left_codes: set[str] = set()

    def begin(self) -> Iterator[str]:
        """Yield the first lines: none."""
        yield from ()

    def partition(self, plan: PartitionPlan) -> Iterator[str]:
        """Yield the lines of one partition, none if there is nothing to report."""
        if not plan.changes and not plan.remarks and not plan.holes and not plan.left:
            return
        palette = self._palette
        count = format_count(len(plan.changes), "change")
        offsets = f"afterwards log start offset {plan.log_start_offset}, log end offset {plan.log_end_offset}"
        yield f"{palette.bold}{escape(plan.directory)}{palette.plain}: {count}; {offsets}"
        remarks = [*plan.remarks, *(Remark(path, alternative.message) for path, alternative in plan.alternatives)]
        yield from self._lines(plan.changes, plan.holes, remarks, plan.left)

    def _lines(self, changes: list[Change], holes: list[Hole], remarks: list[Remark], left: list[Finding]) -> Iterator[str]:
        palette = self._palette
        for change in changes:
            yield f"  {_what(change)}{f': {escape(change.why)}' if change.why else ''}"
        for hole in holes:
            which = f"offsets from {hole.first_offset} on"
            if hole.end_offset is not None:
                which = format_offsets(hole.first_offset, hole.end_offset)
            yield f"  {palette.red}lost{palette.plain} {which}: {escape(base_name(hole.path))}: {escape(hole.why)}"
        for remark in remarks:
            yield f"  {palette.yellow}note{palette.plain} {escape(base_name(remark.path))}: {shorten(escape(remark.message))}"
        yield from self.left(left)

    def left(self, findings: Iterable[Finding]) -> Iterator[str]:
        """Yield the findings that a repair leaves."""
        palette = self._palette
        for finding in findings:
            self._left_codes.add(finding.code)
            message = shorten(escape(finding.message))
            yield f"  {palette.red}left for you{palette.plain} {escape(finding.file)}: {finding.code}: {message}"

    def root(self, plan: RootPlan, quarantine: str) -> Iterator[str]:
        """Yield the changes of the log directory's own files; `quarantine` is the folder that has the kept files, or ""."""
        shutdown = _SHUTDOWN[plan.shutdown]
        if plan.shutdown == NO_LONGER_CLEAN and not self._is_applied:
            shutdown = _WILL_NOT_BE_CLEAN
        yield f"{self._palette.bold}{escape(plan.directory)}{self._palette.plain}: {shutdown}"
        if any("not start" in finding.broker_does for finding in plan.left):
            yield "  but a broker does not start on it until you have done what is left for you"
        yield from self._lines(plan.changes, [], plan.remarks, plan.left)
        if quarantine:
            yield f"the quarantine, with all removed bytes and manifest.json: {escape(quarantine)}"

    def problem(self, path: str, message: str) -> Iterator[str]:
        """Yield something that could not be planned or done."""
        yield f"{self._palette.red}problem{self._palette.plain} {escape(path)}: {escape(message)}"

    def cannot_run(self, message: str, summary: RepairSummary) -> Iterator[str]:
        """Yield nothing: the message is printed on stderr."""
        yield from ()

    def end(self, summary: RepairSummary) -> Iterator[str]:
        """Yield the closing lines."""
        palette = self._palette
        for code, kind in KINDS.items():
            # The advice on lost offsets follows below.
            if code in self._left_codes and not (summary.holes and code in HOLES):
                yield f"{palette.dim}what to do about {code}: {kind.to_do}{palette.plain}"
        counts = f"{format_count(summary.changes, 'change')}, {format_count(summary.partitions, 'partition')} checked"
        if summary.holes:
            counts += f", {format_count(summary.holes, 'range')} of offsets lost"
            yield (
                "If another replica has all records, remove this one and let Kafka copy it: a replica without these offsets "
                "answers fetches differently from its peers."
            )
            if summary.changes and not summary.is_applied:
                yield (
                    "Export first what can still be read: kcli to-parquet DIR --out OUT --on-corrupt skip, or kcli dump-log "
                    "--output csv. A repair keeps in the quarantine what it removes."
                )
        if summary.left:
            counts += f", {format_count(summary.left, 'finding')} left for you"
        if summary.problems:
            counts += f", {format_count(summary.problems, 'problem')}"
        if summary.is_applied and summary.changes and summary.problems:
            yield f"{counts}; carried out except for the problems: repair again when their causes are gone"
        elif summary.is_applied and summary.changes:
            yield f"{counts}, carried out"
        elif summary.changes:
            yield f"{counts}; nothing was changed: --apply carries it out"
        elif summary.left or summary.holes or summary.problems:
            yield counts
        else:
            yield f"nothing to repair in {format_count(summary.partitions, 'partition')}"


def _what(change: Change) -> str:
    """Return what is done to a file, in words."""
    name = escape(base_name(change.path))
    dropped = sum(end - start for start, end in change.dropped)
    if change.kind == REMOVE:
        return f"remove   {name} ({format_bytes(change.size_bytes)})"
    if change.kind == RENAME:
        return f"rename   {name} to {escape(base_name(change.target))}"
    if change.kind == TRUNCATE:
        return f"truncate {name} to {change.size_bytes} bytes, {format_count(dropped, 'byte')} removed"
    if change.kind == REWRITE:
        real_size = dropped + sum(extent.end - extent.start for extent in change.content if isinstance(extent.source, str))
        if change.size_bytes == real_size:
            return f"correct  {name}: {format_count(dropped, 'byte')}"
        parts = ", ".join(format_byte_range(start, end) for start, end in change.dropped[:4])
        more = f" and {len(change.dropped) - 4} more ranges" if len(change.dropped) > 4 else ""
        return f"rewrite  {name} without {parts}{more}"
    return f"{'replace ' if change.replaces else 'write   '} {name} ({format_bytes(change.size_bytes)})"


class JsonRepairReport:
    """The JSON output."""

    def begin(self) -> Iterator[str]:
        """Yield the schema line."""
        yield f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}'

    def partition(self, plan: PartitionPlan) -> Iterator[str]:
        """Yield the objects of one partition, also if it needs no repair."""
        yield from self._lines(plan.changes, plan.holes, plan.remarks)
        for path, alternative in plan.alternatives:
            batches = [{"position": position, "baseOffset": base_offset} for position, base_offset in alternative.batches]
            fields: dict[str, object] = {"batches": batches, "message": alternative.message}
            yield f'{{"type":"alternative",{path_member(path)},{dump(fields)[1:]}'
        yield from self.left(plan.left)
        fields = {
            "changes": len(plan.changes),
            "logStartOffset": plan.log_start_offset,
            "logEndOffset": plan.log_end_offset,
            "losesRecords": plan.loses_records,
        }
        yield f'{{"type":"partition",{path_member(plan.directory)},{dump(fields)[1:]}'

    def _lines(self, changes: list[Change], holes: list[Hole], remarks: list[Remark]) -> Iterator[str]:
        for change in changes:
            fields = {
                "kind": "replace" if change.replaces else change.kind,
                "target": change.target or None,
                "sizeInBytes": change.size_bytes,
                "dropped": [list(part) for part in change.dropped],
                "why": change.why,
            }
            yield f'{{"type":"change",{path_member(change.path)},{dump(fields)[1:]}'
        for hole in holes:
            fields = {"firstOffset": hole.first_offset, "endOffset": hole.end_offset, "why": hole.why}
            yield f'{{"type":"hole",{path_member(hole.path)},{dump(fields)[1:]}'
        for remark in remarks:
            yield f'{{"type":"remark",{path_member(remark.path)},"message":{json_string(remark.message)}}}'

    def root(self, plan: RootPlan, quarantine: str) -> Iterator[str]:
        """Yield the changes of the log directory's own files, and how it counts afterwards."""
        yield from self._lines(plan.changes, [], plan.remarks)
        yield from self.left(plan.left)
        yield (
            f'{{"type":"directory",{path_member(plan.directory)},"shutdown":"{plan.shutdown}",'
            f'"quarantine":{dump(quarantine or None)}}}'
        )

    def left(self, findings: Iterable[Finding]) -> Iterator[str]:
        """Yield the findings that a repair leaves."""
        for finding in findings:
            yield (
                f'{{"type":"left","code":"{finding.code}","severity":"{finding.severity}",{path_member(finding.file)},'
                f'"position":{dump(finding.position)},"offset":{dump(finding.offset)},"message":{json_string(finding.message)},'
                f'"repairDoes":{json_string(finding.repair_does)}}}'
            )

    def problem(self, path: str, message: str) -> Iterator[str]:
        """Yield something that could not be planned or done."""
        yield f'{{"type":"problem",{path_member(path)},"message":{json_string(message)}}}'

    def cannot_run(self, message: str, summary: RepairSummary) -> Iterator[str]:
        """Yield the reason why nothing was done, and the summary."""
        yield f'{{"type":"problem","path":null,"message":{json_string(message)}}}'
        yield from self.end(summary)

    def end(self, summary: RepairSummary) -> Iterator[str]:
        """Yield the summary."""
        yield dump(
            {
                "type": "summary",
                "applied": summary.is_applied,
                "partitions": summary.partitions,
                "changes": summary.changes,
                "holes": summary.holes,
                "problems": summary.problems,
                "left": summary.left,
            }
        )
