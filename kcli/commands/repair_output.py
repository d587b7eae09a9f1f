"""`kcli verify --repair`: shows what a repair would do, or does it.

exit code  of the plan (--dry-run)                     of --apply
---------  ------------------------------------------  ------------------------------------------------------------
0          there is nothing to repair                  all that was found is repaired, and no offset is missing
1          there is, something is left for you, or a   something is left for you, or a part could not be repaired
           part could not be read
2          could not run: a directory is locked by a broker, a quarantine in a wrong place (no directory is touched then);
           or a path that was named is missing (the others are done all the same)
3          nothing to repair, but offsets are missing  repaired, but offsets are missing
           (at most .kafka_cleanshutdown is removed)
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kcli.commands.output import (
    EXIT_CANNOT_RUN,
    EXIT_HOLES,
    EXIT_OK,
    CannotRun,
    exit_code,
    print_message,
    print_text,
    use_colour,
)
from kcli.commands.progress import ProgressBar, progress_bar
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.renderers.repair_report import JsonReport, Summary, TextReport
    from kcli.inspect.repairing.repair import LogDirectoryRepair
    from kcli.inspect.verification.findings import Finding
    from kcli.log.files.log_directory import LogDirectory, PartitionDirectory
    from kcli.log.files.quarantine import Quarantine


def add_repair_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kcli verify --repair`."""
    group = parser.add_argument_group("repairing (instead of verifying)")
    group.add_argument("--repair", action="store_true", help="show what a repair would do; with --apply do it")
    how = group.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="touch nothing (this is the default)")
    how.add_argument("--apply", "--no-dry-run", dest="apply", action="store_true", help="carry the plan out")
    group.add_argument(
        "--like-kafka", action="store_true", help="cut the log at the first bad batch, as a broker does after a crash"
    )
    group.add_argument(
        "--take-inner",
        action="store_true",
        help="keep what looks like sound batches inside of damaged ones: they may be the payload of a record",
    )
    group.add_argument(
        "--quarantine", metavar="DIR", help="where to keep what is removed (LOGDIR.quarantine, next to the log directory)"
    )


def check_repair_arguments(args: argparse.Namespace) -> None:
    """Raises CannotRun for options of a repair without --repair."""
    if not args.repair and (args.apply or args.like_kafka or args.quarantine or args.dry_run or args.take_inner):
        raise CannotRun("--apply, --dry-run, --like-kafka, --take-inner and --quarantine belong to a repair: add --repair")
    if args.like_kafka and args.take_inner:
        raise CannotRun("--take-inner has no meaning with --like-kafka, which cuts the log at the first bad batch")


def run_repair(args: argparse.Namespace, output: str) -> int:
    """Plan, or carry out, the repair of `args.paths`, told on stdout as `output` ("text" or "json") -> exit code.

    Raises CannotRun.
    """
    from kcli.inspect.renderers.repair_report import JsonReport, TextReport
    from kcli.inspect.repairing.repair import is_whole, repair_targets
    from kcli.log.files.log_directory import log_bytes, resolve_paths

    if not args.paths:
        raise CannotRun("name what to repair: kcli verify --repair PATH...")
    disk = OsDisk()
    targets, problems = resolve_paths(disk, args.paths)
    for problem in problems:
        print_message(problem.message)
    if not targets:
        return EXIT_CANNOT_RUN
    found = repair_targets(disk, targets)
    if not any(partitions for _, partitions in found):
        raise CannotRun("there is no partition to repair: name a log directory, a partition's directory or a file in one")
    report = JsonReport() if output == "json" else TextReport(colour=use_colour(), is_applied=args.apply)
    run = _RepairRun(disk, args, report)
    run.print(report.begin())
    for target in targets:
        for path, why in target.log_directory.unreadable if target.log_directory is not None else ():
            run.problem(path, f"the partition's directory cannot be read: {why}")
    with progress_bar(sum(log_bytes(disk, partition) for _, partitions in found for partition in partitions)) as run.bar:
        run.repair([(directory, partitions, is_whole(directory, targets)) for directory, partitions in found])
    run.check_across([target.log_directory for target in targets if target.log_directory is not None])
    return run.finish(all_opened=not problems)


class _RepairRun:
    """One run over one or more log directories, and what it came to."""

    def __init__(self, disk: OsDisk, args: argparse.Namespace, report: TextReport | JsonReport) -> None:
        self.disk = disk
        self.args = args
        self.report = report
        self.bar: ProgressBar | None = None
        self.partitions = self.changes = self.holes = self.problems = 0
        self.left: list[Finding] = []
        self.loses_records = False
        self.marks = 0  # of the changes those that remove .kafka_cleanshutdown because offsets are missing

    def repair(self, found: list[tuple[str, list[PartitionDirectory], bool]]) -> None:
        """Repair partitions of log directories, each (path, partitions, whether it is repaired as a whole).

        Raises CannotRun, before anything is touched, where one of them is locked, named twice, or would have the quarantine.
        """
        from kcli.inspect.verification.directories import with_sibling_topics

        releases: list[Callable[[], None]] = []
        try:
            try:
                opened = [self._open(directory, is_whole=is_whole) for directory, _, is_whole in found]
                self._check_named_once([directory for directory, _, _ in found])
                sessions = [session for session, _ in opened]
                self._lock(sessions, releases)
                for session, root in zip(sessions, with_sibling_topics([session.root for session in sessions]), strict=True):
                    session.root = root
            except CannotRun as error:
                self.problems += 1
                self.print(self.report.cannot_run(str(error), self._summary([])))
                raise
            for (session, quarantine), (_, partitions, _) in zip(opened, found, strict=True):
                self._repair(session, partitions, quarantine)
        finally:
            for release in releases:
                release()

    def _open(self, log_directory: str, *, is_whole: bool) -> tuple[LogDirectoryRepair, Quarantine]:
        from kcli.inspect.repairing.repair import LogDirectoryRepair
        from kcli.log.files.quarantine import Quarantine

        quarantine = Quarantine(self.disk, self._quarantine_folder(log_directory), log_directory)
        session = LogDirectoryRepair(
            self.disk,
            log_directory,
            like_kafka=self.args.like_kafka,
            is_whole=is_whole,
            take_inner=self.args.take_inner,
            quarantine=quarantine.folder,
        )
        return session, quarantine

    def _lock(self, sessions: list[LogDirectoryRepair], releases: list[Callable[[], None]]) -> None:
        """See that no log directory is locked, then lock them for a repair. Raises CannotRun.

        To ask for a lock closes the file, which gives back a lock of one's own, so all are asked for before one is taken.
        """
        from kcli.inspect.repairing.repair import DirectoryLockedError

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
        """A second lock on the same file would be given in vain: it is given back with the first that is closed."""
        seen: dict[str, str] = {}
        for directory in directories:
            other = seen.setdefault(os.path.realpath(directory), directory)
            if other != directory:
                raise CannotRun(f"{other} and {directory} are the same log directory: name it once")

    def _quarantine_folder(self, log_directory: str) -> str:
        from kcli.format.file_names import FileKind
        from kcli.log.files.quarantine import default_folder

        if not self.args.quarantine:
            return default_folder(os.path.realpath(log_directory))
        folder = Path(os.path.realpath(self.args.quarantine))
        for above in (folder, *folder.parents):
            if str(above) == os.path.realpath(log_directory) or (above / FileKind.META_PROPERTIES.value).exists():
                message = "a broker does not start with a directory there that is not a partition"
                raise CannotRun(f"--quarantine {self.args.quarantine} is in the log directory {above}: {message}")
        return str(folder)

    def _repair(self, session: LogDirectoryRepair, partitions: list[PartitionDirectory], quarantine: Quarantine) -> None:
        from kcli.inspect.repairing.repair import NO_LONGER_CLEAN
        from kcli.inspect.repairing.repair_plan import RepairError
        from kcli.log.files.log_directory import log_bytes

        # Before anything is cut.
        sizes = {partition.path: log_bytes(self.disk, partition) for partition in partitions}
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
        self.marks += root.shutdown == NO_LONGER_CLEAN
        self.left += root.left
        self.print(self.report.root(root, quarantine.path))

    def check_across(self, directories: list[LogDirectory]) -> None:
        """Check several log directories against each other, as `kcli verify` does; a repair changes nothing of it."""
        from kcli.inspect.repairing.repair import left_across

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
        """Tell of what cannot be read or repaired."""
        self.problems += 1
        self.print(self.report.problem(path, message))

    def _summary(self, left: list[Finding]) -> Summary:
        from kcli.inspect.renderers.repair_report import Summary

        return Summary(self.args.apply, self.partitions, self.changes, self.holes, self.problems, len(left))

    def finish(self, *, all_opened: bool) -> int:
        """The closing lines -> the exit code."""
        from kcli.inspect.verification.finding_kinds import HOLES

        left = [finding for finding in self.left if finding.code not in HOLES]
        self.print(self.report.end(self._summary(left)))
        # To remove the mark alone is no repair of damage: kcli verify calls such a directory sound with missing offsets, too.
        is_sound = not (self.problems or left or (self.changes > self.marks and not self.args.apply))
        code = exit_code(is_sound=is_sound, all_opened=all_opened)
        return EXIT_HOLES if code == EXIT_OK and (self.holes or self.left or self.loses_records) else code
