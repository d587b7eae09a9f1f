"""Runs `kcli verify --repair`: prints what a repair would do, or applies it.

exit code  of the plan (--dry-run)                     of --apply
---------  ------------------------------------------  ------------------------------------------------------------
0          there is nothing to repair                  everything is repaired, and no offset is missing
1          there is something to repair or left for    something is left for you, or a part could not be repaired
           you, or a part cannot be read
2          could not run: a broker holds the lock of a directory, or the quarantine is inside a log directory (no directory is
           changed then); or a named path does not exist (the other paths are done)
3          there is nothing to repair, but offsets     repaired, but offsets are missing
           are missing; at most .kafka_cleanshutdown
           is removed
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from kcli.commands.output import (
    EXIT_HOLES,
    EXIT_OK,
    CannotRun,
    exit_code,
    print_text,
    use_colour,
)
from kcli.commands.progress import ProgressBar, progress_bar
from kcli.format.file_names import FileKind
from kcli.inspect.renderers.repair_report import JsonRepairReport, RepairSummary, TextRepairReport
from kcli.inspect.repairing.planned_partition import RepairError
from kcli.inspect.repairing.repair import (
    NO_LONGER_CLEAN,
    DirectoryLockedError,
    LogDirectoryRepair,
    is_whole,
    left_across,
    repair_targets,
)
from kcli.inspect.verification.directories import Root, read_root, with_sibling_topics
from kcli.inspect.verification.finding_kinds import HOLES
from kcli.inspect.verification.findings import Finding, FindingList
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import LogDirectory, PartitionDirectory, ResolvedPath, log_bytes
from kcli.log.files.quarantine import Quarantine, default_folder


def run_repair(disk: OsDisk, args: argparse.Namespace, targets: list[ResolvedPath], *, all_opened: bool) -> int:
    """Plan or apply the repair of the targets and return the exit code. Raises CannotRun."""
    found = repair_targets(disk, targets)
    if not any(partitions for _, partitions in found):
        raise CannotRun("there is no partition to repair: name a log directory, a partition's directory or a file in one")
    report = JsonRepairReport() if args.output == "json" else TextRepairReport(colour=use_colour(), is_applied=args.apply)
    run = _RepairRun(disk, args, report)
    run.print(report.begin())
    for target in targets:
        for path, why in target.log_directory.unreadable if target.log_directory is not None else ():
            run.problem(path, f"the partition's directory cannot be read: {why}")
    with progress_bar(sum(log_bytes(disk, partition) for _, partitions in found for partition in partitions)) as run.bar:
        run.repair([(directory, partitions, is_whole(directory, targets)) for directory, partitions in found])
    run.check_across([target.log_directory for target in targets if target.log_directory is not None])
    return run.finish(all_opened=all_opened)


class _RepairRun:
    """One run over one or more log directories, and its counts."""

    def __init__(self, disk: OsDisk, args: argparse.Namespace, report: TextRepairReport | JsonRepairReport) -> None:
        self.disk = disk
        self.args = args
        self.report = report
        self.bar: ProgressBar | None = None
        self.partitions = self.changes = self.holes = self.problems = 0
        self.left: list[Finding] = []
        self.loses_records = False
        self.removed_marks = 0  # changes that remove .kafka_cleanshutdown because offsets are missing

    def repair(self, found: list[tuple[str, list[PartitionDirectory], bool]]) -> None:
        """Repair partitions of log directories, each (path, partitions, whether the whole directory is repaired).

        Raises CannotRun before any change if one is locked, named twice, or would contain the quarantine.
        """
        releases: list[Callable[[], None]] = []
        try:
            try:
                quarantines = [Quarantine(self.disk, self._quarantine_folder(path), path) for path, _, _ in found]
                roots = [
                    read_root(self.disk, path, FindingList(), quarantine=quarantine.folder)
                    for quarantine, (path, _, _) in zip(quarantines, found, strict=True)
                ]
                roots = with_sibling_topics(roots)
                sessions = [self._open(root, is_whole=is_whole) for root, (_, _, is_whole) in zip(roots, found, strict=True)]
                self._check_named_once([directory for directory, _, _ in found])
                self._lock(sessions, releases)
            except CannotRun as error:
                self.problems += 1
                self.print(self.report.cannot_run(str(error), self._summary([])))
                raise
            for session, quarantine, (_, partitions, _) in zip(sessions, quarantines, found, strict=True):
                self._repair(session, partitions, quarantine)
        finally:
            for release in releases:
                release()

    def _open(self, root: Root, *, is_whole: bool) -> LogDirectoryRepair:
        return LogDirectoryRepair(
            self.disk, root.path, like_kafka=self.args.like_kafka, is_whole=is_whole, take_inner=self.args.take_inner, root=root
        )

    def _lock(self, sessions: list[LogDirectoryRepair], releases: list[Callable[[], None]]) -> None:
        """Check that no log directory is locked, then lock them for --apply. Raises CannotRun.

        A check closes the lock file, which would release a lock of this process, so all checks are done first.
        """
        try:
            for session in sessions:
                session.check_unlocked()
            for session in sessions if self.args.apply else ():
                releases.append(session.lock())
        except DirectoryLockedError as error:
            raise CannotRun(str(error)) from None
        except OSError as error:
            raise CannotRun(f"{error.filename}: {error.strerror or error}") from None

    def _check_named_once(self, directories: list[str]) -> None:
        """Raise CannotRun if a directory is named twice: the first lock that is released would release both."""
        seen: dict[str, str] = {}
        for directory in directories:
            other = seen.setdefault(os.path.realpath(directory), directory)
            if other != directory:
                raise CannotRun(f"{other} and {directory} are the same log directory: name it once")

    def _quarantine_folder(self, log_directory: str) -> str:
        if not self.args.quarantine:
            return default_folder(os.path.realpath(log_directory))
        folder = Path(os.path.realpath(self.args.quarantine))
        for above in (folder, *folder.parents):
            if str(above) == os.path.realpath(log_directory) or (above / FileKind.META_PROPERTIES.value).exists():
                message = "a broker does not start with a directory there that is not a partition"
                raise CannotRun(f"--quarantine {self.args.quarantine} is in the log directory {above}: {message}")
        return str(folder)

    def _repair(self, session: LogDirectoryRepair, partitions: list[PartitionDirectory], quarantine: Quarantine) -> None:
        sizes = {partition.path: log_bytes(self.disk, partition) for partition in partitions}  # before the repair
        for partition in partitions:
            self.partitions += 1
            try:
                plan = session.apply(partition, quarantine) if self.args.apply else session.plan(partition)
            except RepairError as error:
                session.note_failure()
                self.problem(partition.path, str(error))
            except OSError as error:
                session.note_failure()
                self.problem(error.filename or partition.path, error.strerror or str(error))
            else:
                self.changes += len(plan.changes)
                self.holes += len(plan.holes)
                self.left += plan.left
                self.loses_records |= plan.loses_records
                self.print(self.report.partition(plan))
            if self.bar is not None:
                self.bar.advance(sizes[partition.path])
        try:
            root = session.apply_root(quarantine) if self.args.apply else session.plan_root()
        except OSError as error:
            self.problem(error.filename or session.directory, error.strerror or str(error))
            return
        self.changes += len(root.changes)
        self.removed_marks += root.shutdown == NO_LONGER_CLEAN
        self.left += root.left
        self.print(self.report.root(root, quarantine.path))

    def check_across(self, directories: list[LogDirectory]) -> None:
        """Check several log directories against each other, as `kcli verify` does; a repair does not change the result."""
        left = left_across(self.disk, directories)
        self.left += left
        self.print(self.report.left(left))

    def print(self, lines: Iterable[str]) -> None:
        """Print lines on stdout, if there are any."""
        text = "\n".join(lines)
        if text:
            if self.bar is not None:
                self.bar.hide()
            print_text(text)

    def problem(self, path: str, message: str) -> None:
        """Print and count something that cannot be read or repaired."""
        self.problems += 1
        self.print(self.report.problem(path, message))

    def _summary(self, left: list[Finding]) -> RepairSummary:
        return RepairSummary(self.args.apply, self.partitions, self.changes, self.holes, self.problems, len(left))

    def finish(self, *, all_opened: bool) -> int:
        """Print the closing lines and return the exit code."""
        left = [finding for finding in self.left if finding.code not in HOLES]
        self.print(self.report.end(self._summary(left)))
        # A plan that only removes .kafka_cleanshutdown repairs no damage: kcli verify finds no damage either.
        is_sound = not (self.problems or left or (self.changes > self.removed_marks and not self.args.apply))
        code = exit_code(is_sound=is_sound, all_opened=all_opened)
        return EXIT_HOLES if code == EXIT_OK and (self.holes or self.left or self.loses_records) else code
