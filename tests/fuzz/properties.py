"""The properties that every case must have, whatever was damaged.

    property         says
    ---------------  -----------------------------------------------------------------------------------------------------
    invented         nothing that was never at log level appears as a record: in dump-log's outputs and in the Spark
                     source's rows (onCorrupt=skip), of the damaged directory and of the repaired one; but for payload
                     that nothing distinguishes from batches (payload_like_log)
    unmarked         a record of a batch with a wrong CRC appears only in an output that says so of its batch
    misplaced        no record is given at an offset that is not its own; dump-log shows a damaged log as it is
    hidden           readers of a directory with one damaged batch show every record of all the others
    lost             every record that is proven to have existed is there after the repair, or a hole names its offset
    thrown-away      of a directory with one damaged batch, a repair takes away no other batch; with damage next to the logs
                     only, it takes away none
    false-hole       no hole names an offset whose record is there after the repair
    end-too-high     the log end after the repair is not above the evidence
    end-too-low      the log end after the repair is not below an offset that was given out, as far as there is evidence
    start-moved      records below the log start offset do not come back, records above it do not go without a hole
    verify-disagrees verify finds nothing in a repaired directory but known holes, and what the repair said it leaves;
                     verify reports a directory in which records are missing, and one that the repair would change
    repair-again     a second repair has nothing to do and changes nothing
    mark             .kafka_cleanshutdown is there only where it was there before and nothing is missing
    plan-differs     the dry run touches nothing; it and the apply state the same changes, holes and counts
    traceback        no command ends with a traceback or an undocumented exit code

The properties invented, lost, false-hole, mark and plan-differs hold for --like-kafka as well. What Kafka itself makes of
the repaired directory is judged in tests/oracle/test_fuzzed_repair.py.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kcli.inspect.verification.finding_kinds import INFO, KINDS
from tests.fuzz import outputs
from tests.fuzz.batches import FORGED, LogRecord
from tests.fuzz.damages import BATCH, BLIND, SIDE
from tests.fuzz.directories import PartitionModel, Scene
from tests.fuzz.evidence import WITH_EVIDENCE, Evidence, read_evidence
from tests.fuzz.outputs import Printed, ShownRecord
from tests.fuzz.payload_like_log import find_payload_like_log

# What verify may find in a repaired directory: offsets that are missing, as the repair said.
KNOWN_HOLES = {"segment-gap", "offset-hole"}
# Exit codes of verify, of a plan and of a repair; HOLES: nothing is damaged, but offsets are missing.
SOUND, DAMAGED, HOLES = 0, 1, 3
# What no repair of a log can put right: it must say so, and end with exit code 1.
LEFT_FOR_THE_OPERATOR = {
    "directory-name",
    "meta-properties-missing",
    "meta-properties-corrupt",
    "directory-id-twice",
    "partition-duplicate",
    "partition-missing",
    "partition-metadata-missing",
    "partition-metadata-corrupt",
    "topic-id-mismatch",
    "producer-sequence-gap",
    "producer-sequence-back",
    "producer-epoch-back",
}
END_OF_TIME = 2**63 - 1
# What a path ends with that is a file of a partition, not its directory.
FILE_NAME = re.compile(r"/([^/]*\.[^/]*|leader-epoch-checkpoint)$")


class Violation(NamedTuple):
    """A property that a case does not have, and one sentence of proof."""

    property: str
    message: str


class PartitionOutcome(NamedTuple):
    """What the repair said of a partition: holes as [first, end), the log's offsets afterwards."""

    holes: list[tuple[int, int]]
    log_start: int
    log_end: int
    loses_records: bool

    def names(self, offset: int) -> bool:
        """Whether a hole names the offset."""
        return any(first <= offset < end for first, end in self.holes)


class Outcome(NamedTuple):
    """What became of a case; `partitions` by the path of the directory, as far as the repair gave a plan for them."""

    violations: list[Violation]
    partitions: dict[str, PartitionOutcome]
    exit_code: int


class Before(NamedTuple):
    """What was there before the damage: the contents of producer snapshots and indexes, by partition directory and name."""

    files: dict[str, dict[str, bytes]]

    @classmethod
    def of(cls, scene: Scene) -> Before:
        """Read it from an undamaged scene."""
        return cls(
            {
                str(partition.path): {
                    path.name: path.read_bytes() for path in partition.path.iterdir() if path.suffix in WITH_EVIDENCE
                }
                for partition in scene.partitions
            }
        )


class Checker:
    """Checks one damaged scene, which it repairs in place. `reaches` are those of the kinds of damage that were done."""

    def __init__(self, scene: Scene, before: Before, reaches: list[str]) -> None:
        self.scene = scene
        self.reaches = reaches
        self.violations: list[Violation] = []
        self.paths = [directory.path for directory in scene.directories]
        self.evidence: dict[str, Evidence] = {
            str(partition.path): read_evidence(directory, partition, before.files[str(partition.path)])
            for directory in scene.directories
            for partition in directory.partitions
        }
        self.payloads = {str(partition.path): find_payload_like_log(partition) for partition in scene.partitions}
        self.had_mark = {directory.path: (directory.path / ".kafka_cleanshutdown").exists() for directory in scene.directories}

    def check(self, *, with_like_kafka: bool = False) -> Outcome:
        """Run every command over the scene -> Outcome; `with_like_kafka` repairs a copy with --like-kafka and runs
        describe, too."""
        if with_like_kafka:
            self._check_like_kafka()
            for path in self.paths:
                self._run("describe of the damaged directory", "describe", "--output", "json", path)
            self._run("dump-log --output kafka of the damaged directory", "dump-log", "--output", "kafka", *self.paths)
        self._check_readers("the damaged directory", is_repaired=False)
        verified = self._verify("verify of the damaged directory")
        before = tree(self.paths)
        plan = self._run("the plan", "verify", "--repair", "--output", "json", *self.paths)
        if tree(self.paths) != before:
            self._violated("plan-differs", "the dry run changed files")
        applied = self._run("the repair", "verify", "--repair", "--apply", "--output", "json", *self.paths)
        self._compare_plans(plan, applied)
        partitions = self._partition_outcomes(applied)
        self._check_contradiction("the damaged directory", verified, plan)
        self._check_repair_again(self._check_verified(applied))
        shown = self._check_readers("the repaired directory", is_repaired=True)
        missing = self._check_partitions(partitions, shown, verified)
        self._check_marks(partitions, missing)
        return Outcome(self.violations, partitions, applied.exit_code)

    def _violated(self, name: str, message: str) -> None:
        violation = Violation(name, message)
        if violation not in self.violations:
            self.violations.append(violation)

    def _run(self, what: str, *words: str | Path) -> Printed:
        try:
            printed = outputs.run(*words)
        except Exception as error:
            self._violated("traceback", f"{what}: {type(error).__name__}: {error}")
            return Printed(2, b"", "")
        if printed.exit_code not in (SOUND, DAMAGED, HOLES):
            self._violated("traceback", f"{what}: exit code {printed.exit_code}: {printed.stderr.strip()[:300]}")
        return printed

    # ------------------------------------------------------------------------------------------------------- readers

    def _check_readers(self, what: str, *, is_repaired: bool) -> dict[str, set[int]]:
        """Hold what the readers show against the model -> the offsets that dump-log shows, by partition directory."""
        shown = self._guarded(f"dump-log of {what}", lambda: outputs.dumped_json(*self.paths))
        self._check_shown(f"dump-log --output json of {what}", shown, is_repaired=is_repaired)
        rows: list[ShownRecord] = []
        for partition in self.scene.partitions:
            if any(partition.path.glob("*.log")):
                rows += self._guarded(f"the Spark source on {what}", lambda at=partition.path: outputs.spark_rows(at))
        self._check_shown(f"the Spark source, onCorrupt=skip, on {what}", rows, is_repaired=is_repaired)
        self._check_csv(what, is_repaired=is_repaired)
        if is_repaired:
            self._compare_outputs(shown)
        offsets: dict[str, set[int]] = {str(partition.path): set() for partition in self.scene.partitions}
        for directory, record in shown:
            offsets.setdefault(directory, set()).add(record.offset)
        return offsets

    def _guarded(self, what: str, read: Any) -> list[ShownRecord]:
        try:
            found: list[ShownRecord] = read()
        except Exception as error:
            self._violated("traceback", f"{what}: {type(error).__name__}: {error}")
            return []
        return found

    def _check_shown(self, what: str, shown: list[ShownRecord], *, is_repaired: bool) -> None:
        by_directory: dict[str, list[ShownRecord]] = {}
        for one in shown:
            by_directory.setdefault(one.directory, []).append(one)
        for partition in self.scene.partitions:
            records = partition.records
            here = by_directory.pop(str(partition.path), [])
            if "csv" in what:
                records = {offset: _as_csv(record) for offset, record in records.items()}
                here = [one._replace(record=_as_csv(one.record)) for one in here]
            contents = {record[1:] for record in records.values()}
            wrong = [one.record for one in here if one.record != records.get(one.record.offset)]
            payload = self.payloads[str(partition.path)]
            invented = [record for record in wrong if record[1:] not in contents and not payload.has(record)]
            misplaced = [record for record in wrong if record[1:] in contents]
            if misplaced and (is_repaired or "dump-log" not in what):
                self._violated(
                    "misplaced",
                    f"{what}: {partition.name}: {len(misplaced)} records at offsets that are not theirs, the first at "
                    f"{misplaced[0].offset}: {(misplaced[0].value or b'')[:40]!r}",
                )
            if invented:
                at = invented[0]
                is_forged = any((record.value or b"").startswith(FORGED) for record in invented)
                self._violated(
                    "invented" if is_forged or "csv" not in what else "unmarked",
                    f"{what}: {partition.name}: {len(invented)} records that were never appended, the first at offset "
                    f"{at.offset}: {(at.value or b'')[:40]!r}",
                )
            if not is_repaired and self._is_one_batch_damaged():
                offsets = {one.record.offset for one in here}
                hidden = sorted(self._undamaged_offsets(partition) - offsets)
                if hidden:
                    self._violated(
                        "hidden", f"{what}: {partition.name}: offsets {spans(hidden)} of sound batches are not shown"
                    )
        for directory, others in by_directory.items():
            self._violated("invented", f"{what}: {len(others)} records in {directory}, which is no partition's")

    def _is_one_batch_damaged(self) -> bool:
        return self.reaches in ([BATCH], [BLIND])

    def _undamaged_offsets(self, partition: PartitionModel) -> set[int]:
        """The offsets in undamaged batches that can be distinguished from the content of a damaged one."""
        return {record.offset for batch in self.evidence[str(partition.path)].certain for record in batch.records}

    def _compare_outputs(self, shown: list[ShownRecord]) -> None:
        """After a repair all forms of dump-log show the same records."""
        logs = [log for partition in self.scene.partitions for log in sorted(partition.path.glob("*.log"))]
        if not logs:
            return
        expected = Counter((one.directory, one.record.offset) for one in shown)
        kafka = Counter(outputs.dumped_kafka_offsets(*logs))
        if kafka != expected:
            self._violated(
                "invented", f"--output kafka and json differ: {list(kafka - expected)[:3]} {list(expected - kafka)[:3]}"
            )
        text = Counter(outputs.dumped_text_offsets(*logs))
        if text != expected:
            self._violated(
                "invented", f"--output text and json differ: {list(text - expected)[:3]} {list(expected - text)[:3]}"
            )

    def _check_csv(self, what: str, *, is_repaired: bool) -> None:
        """The rows of --output csv, which cannot say that a batch's CRC is wrong."""
        rows: list[ShownRecord] = []
        for directory in self.scene.directories:
            paths = tuple(partition.path for partition in directory.partitions if any(partition.path.glob("*.log")))
            if paths:
                rows += self._guarded(f"dump-log --output csv of {what}", lambda at=paths: outputs.dumped_csv(*at))
        self._check_shown(f"dump-log --output csv of {what}", rows, is_repaired=is_repaired)

    # -------------------------------------------------------------------------------------------------- verify and repair

    def _verify(self, what: str) -> Printed:
        return self._run(what, "verify", "--output", "json", "--processes", "1", *self.paths)

    def _compare_plans(self, plan: Printed, applied: Printed) -> None:
        planned, done = ([_comparable(line) for line in printed.json_lines()] for printed in (plan, applied))
        planned, done = ([line for line in lines if line] for lines in (planned, done))
        if planned != done:
            only = [line for line in planned if line not in done][:2], [line for line in done if line not in planned][:2]
            self._violated("plan-differs", f"only in the plan: {only[0]}; only in the apply: {only[1]}")
        for printed in (plan, applied):
            lines = printed.json_lines()
            summary = lines[-1] if lines else {}
            for member, kind in (("changes", "change"), ("holes", "hole"), ("partitions", "partition")):
                count = sum(line["type"] == kind for line in lines)
                if summary.get(member, 0) != count:
                    self._violated("plan-differs", f"the summary counts {summary.get(member)} {member}, {count} are listed")

    def _partition_outcomes(self, applied: Printed) -> dict[str, PartitionOutcome]:
        found: dict[str, PartitionOutcome] = {}
        holes: dict[str, list[tuple[int, int]]] = {}
        for line in applied.json_lines():
            if line["type"] == "hole":
                path = line["path"]
                directory = str(Path(path).parent) if FILE_NAME.search(path) else path
                end = END_OF_TIME if line["endOffset"] is None else line["endOffset"]
                holes.setdefault(directory, []).append((line["firstOffset"], end))
            elif line["type"] == "partition":
                path = line["path"]
                found[path] = PartitionOutcome(
                    holes.pop(path, []), line["logStartOffset"], line["logEndOffset"], line["losesRecords"]
                )
        return found

    def _check_contradiction(self, what: str, verified: Printed, plan: Printed) -> None:
        """verify and the plan come to one judgement of a directory."""
        if verified.exit_code != plan.exit_code:
            lines = [line for line in plan.json_lines() if line["type"] in ("change", "hole", "left")]
            kinds = {
                " ".join((line["type"], line.get("kind", line.get("code", "")), Path(line["path"]).suffix)) for line in lines
            }
            self._violated(
                "verify-disagrees",
                f"{what}: verify ends with {verified.exit_code} and finds {_codes(verified) or 'nothing'}, the plan ends with "
                f"{plan.exit_code} and lists {sorted(kinds) or 'nothing'}",
            )

    def _check_verified(self, applied: Printed) -> Printed:
        """verify of the repaired directory: nothing but known holes, and what the repair listed as left."""
        verified = self._verify("verify of the repaired directory")
        left = _codes(verified) - KNOWN_HOLES
        for code in sorted(left - LEFT_FOR_THE_OPERATOR):
            self._violated("verify-disagrees", f"after the repair verify finds {code}")
        listed = {line["code"] for line in applied.json_lines() if line["type"] == "left"}
        if left - listed:
            self._violated("verify-disagrees", f"the repair does not list as left what verify finds: {sorted(left - listed)}")
        if left and applied.exit_code != DAMAGED:
            self._violated("verify-disagrees", f"the repair ends with {applied.exit_code}, though it leaves {sorted(left)}")
        return verified

    def _check_repair_again(self, verified: Printed) -> None:
        before = tree(self.paths)
        plan = self._run("the second plan", "verify", "--repair", "--output", "json", *self.paths)
        self._check_contradiction("the repaired directory", verified, plan)
        again = self._run("the second repair", "verify", "--repair", "--apply", "--output", "json", *self.paths)
        changes = [line for line in again.json_lines() if line["type"] == "change"]
        if changes:
            self._violated("repair-again", f"the second repair states {len(changes)} changes: {changes[0]}")
        if tree(self.paths) != before:
            self._violated("repair-again", "the second repair changed files")

    # ---------------------------------------------------------------------------------------------------------- offsets

    def _check_partitions(
        self, partitions: dict[str, PartitionOutcome], shown: dict[str, set[int]], verified: Printed
    ) -> dict[Path, set[str]]:
        """Hold each partition's outcome against the evidence -> for each directory the partitions that lost records."""
        missing: dict[Path, set[str]] = {directory.path: set() for directory in self.scene.directories}
        for directory in self.scene.directories:
            for partition in directory.partitions:
                if not partition.path.is_dir():
                    missing[directory.path].add(partition.name)
                    continue
                outcome = partitions.get(str(partition.path))
                if outcome is None:
                    self._violated("traceback", f"the repair gives no plan for {partition.name}")
                    continue
                if self._check_partition(partition, outcome, shown[str(partition.path)]):
                    missing[directory.path].add(partition.name)
        if any(missing.values()) and verified.exit_code == SOUND:
            self._violated("verify-disagrees", "records are missing, and verify finds nothing in the damaged directory")
        return missing

    def _check_partition(self, partition: PartitionModel, outcome: PartitionOutcome, shown: set[int]) -> bool:
        """Check one partition -> whether records that are proven to have existed are not there."""
        evidence = self.evidence[str(partition.path)]
        name = partition.name
        log_start = partition.log_start
        shown = {offset for offset in shown if offset >= outcome.log_start}
        gone = self._check_holes("", partition, outcome, shown)
        kept = self._undamaged_offsets(partition)
        if self._is_one_batch_damaged() or set(self.reaches) <= {SIDE}:
            thrown = sorted(offset for offset in kept - shown if offset >= log_start)
            if thrown:
                self._violated(
                    "thrown-away", f"{name}: offsets {spans(thrown)} of sound batches are gone; holes {outcome.holes}"
                )
        if outcome.log_end > max(evidence.upper, self.payloads[str(partition.path)].end_offset):
            self._violated("end-too-high", f"{name}: ends at {outcome.log_end}, the evidence goes to {evidence.upper}")
        if outcome.log_end < evidence.lower:
            self._violated("end-too-low", f"{name}: ends at {outcome.log_end}, offsets below {evidence.lower} were given out")
        reappearing = [offset for offset in partition.records if outcome.log_start <= offset < log_start]
        if evidence.is_log_start_known and reappearing and outcome.log_end > outcome.log_start:
            self._violated("start-moved", f"{name}: starts at {outcome.log_start}, records below {log_start} were deleted")
        return gone

    def _check_holes(self, how: str, partition: PartitionModel, outcome: PartitionOutcome, shown: set[int]) -> bool:
        """Hold the holes against the records that can be read -> whether records that are proven to have existed are gone."""
        gone = self.evidence[str(partition.path)].proven - shown
        where = f"{how}{partition.name}"
        silent = sorted(offset for offset in gone if not outcome.names(offset))
        if silent:
            self._violated("lost", f"{where}: offsets {spans(silent)} are gone and no hole names them; holes {outcome.holes}")
        false = sorted(offset for offset in shown if outcome.names(offset))
        if false:
            self._violated("false-hole", f"{where}: offsets {spans(false)} are there, and a hole names them: {outcome.holes}")
        return bool(gone)

    def _check_like_kafka(self) -> None:
        """--like-kafka on a copy: it cuts more, and must name what it cuts and invent nothing."""
        parent = self.paths[0].parent / "like-kafka"
        copies = [parent / path.name for path in self.paths]
        for path, copy in zip(self.paths, copies, strict=True):
            shutil.copytree(path, copy)
        words = ("verify", "--repair", "--like-kafka", "--output", "json")
        plan = self._run("the plan of --like-kafka", *words, *copies)
        applied = self._run("the repair of --like-kafka", *words, "--apply", *copies)
        self._compare_plans(plan, applied)
        outcomes = self._partition_outcomes(applied)
        shown = self._guarded("dump-log after --like-kafka", lambda: outputs.dumped_json(*copies))
        for directory, copy in zip(self.scene.directories, copies, strict=True):
            for partition in directory.partitions:
                outcome = outcomes.get(str(copy / partition.name))
                if outcome is None:
                    continue
                here = [one.record for one in shown if one.directory == str(copy / partition.name)]
                appended = {one[1:] for one in partition.records.values()}
                forged = [record for record in here if record[1:] not in appended]
                if forged:
                    self._violated("invented", f"--like-kafka: {partition.name}: {len(forged)} records, {forged[0]}")
                visible = {record.offset for record in here if record.offset >= outcome.log_start}
                gone = self._check_holes("--like-kafka: ", partition, outcome, visible)
                if gone and (copy / ".kafka_cleanshutdown").exists():
                    self._violated(
                        "mark", f"--like-kafka: {copy.name} counts as cleanly stopped, {partition.name} lost records"
                    )
        shutil.rmtree(parent)

    def _check_marks(self, partitions: dict[str, PartitionOutcome], missing: dict[Path, set[str]]) -> None:
        for directory in self.scene.directories:
            if not (directory.path / ".kafka_cleanshutdown").exists():
                continue
            if not self.had_mark[directory.path]:
                self._violated("mark", f"{directory.path.name}: the repair made a mark of a clean stop")
            holes = [one.name for one in directory.partitions if (found := partitions.get(str(one.path))) and found.holes]
            if holes:
                self._violated("mark", f"{directory.path.name}: counts as cleanly stopped, with holes in {holes}")
            if missing[directory.path]:
                names = sorted(missing[directory.path])
                self._violated("mark", f"{directory.path.name}: counts as cleanly stopped, records of {names} are missing")


def _as_csv(record: LogRecord) -> LogRecord:
    """A record without what csv does not show: its headers, and the bytes of a control record, of which it says the meaning."""
    return record._replace(headers=(), key=None, value=None) if record.is_control else record._replace(headers=())


def _codes(verified: Printed) -> set[str]:
    """The codes of the findings that are more than information."""
    found = {line["code"] for line in verified.json_lines() if line["type"] == "finding"}
    return {code for code in found if KINDS[code].severity != INFO}


def _comparable(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the plan or the apply, without what is meant to differ."""
    return {key: value for key, value in line.items() if key not in ("applied", "quarantine")}


def spans(offsets: Iterable[int]) -> str:
    """Offsets in words: 3-5, 9."""
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in _runs(offsets))


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for offset in offsets:
        if first is None or last is None:
            first = last = offset
        elif offset == last + 1:
            last = offset
        else:
            yield first, last
            first = last = offset
    if first is not None and last is not None:
        yield first, last


def tree(paths: Iterable[Path]) -> dict[str, str]:
    """Every file and directory below the paths and its digest, but for the lock."""
    found = {}
    for root in paths:
        for path in sorted(root.rglob("*")):
            if path.name != ".lock":
                found[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found
