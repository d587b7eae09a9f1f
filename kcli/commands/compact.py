"""`kcli compact`: cleans compacted topics as a broker's cleaner does, with no broker running, or gives batches another codec.

exit code  when
---------  ----------------------------------------------------------------------------------------------------
0          all is done (with --apply or --to), or there is nothing to do
1          the plan has something to do, which --apply carries out; or a partition was not changed (damage, a full disk,
           no high watermark) or was refused, the others are done; or no topic matches a --topic
2          could not run or continue: a locked or unclean directory, wrong options, nothing to compact, a disk that fails;
           or a named path is missing or is not a directory of Kafka's (the other paths are done)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from kcli.commands.node_configuration import node_defaults
from kcli.commands.output import (
    EXIT_CANNOT_RUN,
    EXIT_FINDINGS,
    EXIT_OK,
    CannotRun,
    ReaderGone,
    exit_code,
    print_message,
    print_text,
)
from kcli.commands.paths import distinct_paths
from kcli.commands.progress import ProgressBar, progress_bar
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.compacting.compaction import Compaction, RunOptions
    from kcli.inspect.compacting.jobs import CompactionPlan, PartitionOutcome, Recompression
    from kcli.inspect.compacting.partition_selection import Asked, LeftOut
    from kcli.inspect.renderers.compact_report import JsonCompactReport, TextCompactReport

ARGUMENTS = "PATH..."
DESCRIPTION = """\
Cleans compacted topics as a broker's log cleaner does, with no broker running: the last record of each key is kept.
Prints the plan, and carries it out with --apply. With --compression it changes the codec of the batches of any
topic instead."""
EPILOG = """\
Paths are log directories, partition directories and globs. A directory on which a broker runs, or that was not
stopped cleanly, is refused. If kcli is killed, each partition is either as before or completely done. Exit codes:
0 done or nothing to do, 1 something to do without --apply, a partition was not changed or no topic has the name,
2 could not run. docs/compact.md has the details and the schema of --output json."""

# option -> the topic setting that it overrides
_OVERRIDES = {
    "min_compaction_lag_ms": "min.compaction.lag.ms",
    "max_compaction_lag_ms": "max.compaction.lag.ms",
    "delete_retention_ms": "delete.retention.ms",
    "segment_bytes": "segment.bytes",
}
_TOPICS_PER_LINE = 10
# The options that --compression does not allow.
_CLEANING = (
    *("min_compaction_lag_ms", "max_compaction_lag_ms", "delete_retention_ms", "memory", "active", "from_start"),
    "assume_committed",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `kcli compact`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="log directories, partition directories or globs")
    parser.add_argument("--topic", metavar="GLOB", action="append", default=[], help="only topics whose names match")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="print the plan, and change no file (this is the default)")
    how.add_argument("--apply", action="store_true", help="carry the plan out in place")
    how.add_argument("--to", metavar="DIR", help="create DIR with the result without --apply, and do not change the source")
    parser.add_argument(
        "--compression",
        metavar="CODEC[:LEVEL]",
        help="do not clean; give data batches the codec zstd, lz4, snappy, gzip or none",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="the broker's server.properties, for its settings of all topics and of the cleaner"
    )
    parser.add_argument(
        "--any-policy",
        action="store_true",
        help="compact the named partitions even if their cleanup.policy is not compact or not known",
    )
    parser.add_argument(
        "--unclean", action="store_true", help="accept a directory without the mark of a clean stop, for example after a repair"
    )
    cleaning = parser.add_argument_group("cleaning")
    cleaning.add_argument("--active", action="store_true", help="roll the active segments, and clean them too")
    cleaning.add_argument("--from-start", action="store_true", help="clean again what was cleaned before")
    cleaning.add_argument(
        "--assume-committed",
        action="store_true",
        help="clean up to the log end, whatever the high watermark is: you confirm that every record is committed",
    )
    cleaning.add_argument(
        "--min-compaction-lag-ms",
        type=int,
        metavar="MS",
        help="do not clean younger records (the topic's min.compaction.lag.ms)",
    )
    cleaning.add_argument(
        "--max-compaction-lag-ms",
        type=int,
        metavar="MS",
        help="roll and clean active segments with older records (the topic's max.compaction.lag.ms)",
    )
    cleaning.add_argument(
        "--delete-retention-ms", type=int, metavar="MS", help="how long tombstones are kept (the topic's delete.retention.ms)"
    )
    cleaning.add_argument(
        "--segment-bytes", type=int, metavar="BYTES", help="the largest size of new segments (the topic's segment.bytes)"
    )
    cleaning.add_argument(
        "--memory",
        type=int,
        metavar="BYTES",
        help="memory for the keys of a partition, 24 bytes per key (the broker's log.cleaner.dedupe.buffer.size); more keys "
        "take more rounds",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="number of cores to use (default: all)")
    parser.add_argument("--output", choices=["text", "json"], default="text", help="a table, or one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Compact the named partitions and return the exit code. Raises CannotRun."""
    from kcli.inspect.compacting.compaction import Compaction, RefusedError
    from kcli.inspect.compacting.partition_selection import asked_for
    from kcli.inspect.process_pool import WorkerLostError
    from kcli.inspect.renderers.compact_report import JsonCompactReport, TextCompactReport
    from kcli.log.files.log_directory import resolve_paths

    if not args.paths:
        raise CannotRun("name what to compact: kcli compact PATH...")
    args.dry_run = not (args.apply or args.to)
    disk = OsDisk()
    report = JsonCompactReport() if args.output == "json" else TextCompactReport()
    work = _Run(args, report)
    targets, problems = resolve_paths(disk, distinct_paths(args.paths))
    asked, sentences = asked_for(targets, tuple(args.topic))
    _check_outside(args.to, asked)
    with tempfile.TemporaryDirectory(prefix="kcli-compact-") if args.dry_run else nullcontext("") as scratch:
        options = _options(args, scratch)
        try:
            compaction = Compaction(disk, asked, options)
            work.print(report.begin())
            for problem in problems:
                work.problem(problem.path, problem.message)
            for path, sentence in sentences:
                work.problem(path, sentence)
            for path, sentence in compaction.mismatches:
                work.problem(path, sentence)
            work.take_left_out(compaction.left_out)
            for path, why in compaction.unreadable:
                work.problem(path, f"the partition's directory cannot be read: {why}")
            if not targets:
                return EXIT_CANNOT_RUN
            if args.topic and not any(one.partitions for one in asked):
                return work.end_without_topic(all_opened=not problems and all(one.file is None for one in targets))
            if not compaction.jobs:
                work.print_left_alone()
                raise CannotRun(_why_nothing(compaction))
            try:
                with compaction:
                    is_sound = work.run(compaction) == EXIT_OK
                    return exit_code(is_sound=is_sound, all_opened=not problems and all(one.file is None for one in targets))
            except (OSError, KeyboardInterrupt) as error:
                raise work.interrupted(compaction, error) from None
        except (RefusedError, WorkerLostError) as error:
            raise CannotRun(str(error)) from None


def _check_outside(target: str | None, asked: list[Asked]) -> None:
    """Raise CannotRun for a --to inside of a log directory."""
    for one in asked if target else ():
        if Path(os.path.realpath(target or "")).is_relative_to(os.path.realpath(one.log_directory)):
            raise CannotRun(f"--to {target} is in the log directory {one.log_directory}: a broker would not start on it")


def _options(args: argparse.Namespace, scratch: str) -> RunOptions:
    from kcli.inspect.compacting.compaction import RunOptions
    from kcli.inspect.compacting.jobs import CompactOptions

    for name in (*_OVERRIDES, "memory", "processes"):
        value, lowest = getattr(args, name), 0 if name.endswith("_ms") else 1
        if value is not None and value < lowest:
            raise CannotRun(f"--{name.replace('_', '-')} takes a number, {lowest} or more")
    recompression = _recompression(args)
    compact = CompactOptions(
        now_ms=time.time_ns() // 1_000_000,
        random_bytes=os.urandom,
        memory_bytes=args.memory or 0,
        with_active=args.active,
        from_start=args.from_start,
        recompression=recompression,
        assume_committed=args.assume_committed,
    )
    given = {key: getattr(args, name) for name, key in _OVERRIDES.items()}
    overrides = {key: str(value) for key, value in given.items() if value is not None}
    target = args.to.rstrip("/") if args.to else None
    return RunOptions(
        compact,
        overrides,
        args.any_policy,
        args.unclean,
        args.dry_run,
        target,
        scratch,
        defaults_of=node_defaults(args.config),
        is_one_node=args.config is not None,
    )


def _recompression(args: argparse.Namespace) -> Recompression | None:
    from kcli.inspect.compacting.recompressing import parse_recompression

    if args.compression is None:
        return None
    for name in _CLEANING:
        if getattr(args, name) not in (None, False):
            raise CannotRun(f"--compression does not clean: leave --{name.replace('_', '-')} out, or run kcli twice")
    try:
        return parse_recompression(args.compression)
    except ValueError as error:
        raise CannotRun(f"--compression: {error}") from None


def _why_nothing(compaction: Compaction) -> str:
    """Return the sentence for a run without partitions: why none is compacted."""
    from kcli.inspect.compacting.partition_selection import LeftOutReason

    reasons = {left.reason for left in compaction.left_out}
    if compaction.mismatches or any(left.is_refused for left in compaction.left_out):
        return "nothing to compact: all named partitions are refused"
    if LeftOutReason.POLICY_UNKNOWN in reasons:
        return "nothing to compact: no topic is known to be compacted"
    if LeftOutReason.NOT_COMPACTED in reasons:
        return "nothing to compact: no topic has the cleanup.policy compact"
    return "nothing to compact: no partition that may be compacted was named"


class _Run:
    """One run: prints the report, and counts the problems."""

    def __init__(self, args: argparse.Namespace, report: TextCompactReport | JsonCompactReport) -> None:
        self.args = args
        self.report = report
        self.bar: ProgressBar | None = None
        self.problems = self.unproven = 0
        self.left_out: list[LeftOut] = []
        self.plans: list[CompactionPlan] = []

    def print(self, lines: Iterable[str]) -> None:
        """Print lines on stdout, if there are any."""
        text = "\n".join(lines)
        if text:
            if self.bar is not None:
                self.bar.hide()
            try:
                print_text(text)
            except ReaderGone:
                # The reader of stdout has gone, but the compaction is finished all the same.
                if self.args.dry_run:
                    raise

    def problem(self, path: str, message: str) -> None:
        """Report what cannot be done."""
        self.problems += 1
        print_message(message if message.startswith(path) else f"{path}: {message}")
        self.print(self.report.problem(path, message))

    def take_left_out(self, left_out: list[LeftOut]) -> None:
        """Report the partitions that are refused, and keep the others for the end."""
        self.left_out = left_out
        for left in left_out:
            self.print(self.report.left_out(left))
            if left.is_refused:
                self.problems += 1
                print_message(f"{left.path}: {left.message}")

    def print_left_alone(self) -> None:
        """Report the topics that were left alone, one line per reason."""
        topics: dict[str, dict[str, None]] = {}
        for left in self.left_out:
            if not left.is_refused:
                topics.setdefault(left.message, {})[left.topic] = None
        for message, names in topics.items():
            more = len(names) - _TOPICS_PER_LINE
            shown = ", ".join(list(names)[:_TOPICS_PER_LINE]) + (f" and {more:,} more" if more > 0 else "")
            print_message(f"left alone: {shown}: {message}")

    def run(self, compaction: Compaction) -> int:
        """Print the plan, carry it out and return the exit code."""
        processes = self.args.processes or len(os.sched_getaffinity(0))
        holds_all = compaction.holds_all
        waiting: list[PartitionOutcome] = []
        with progress_bar(compaction.total_bytes) as self.bar:
            for outcome in compaction.outcomes(processes, self.bar.advance if self.bar is not None else None):
                if outcome.problem is not None:
                    self.problem(outcome.job.path, outcome.problem)
                else:
                    self.plans.append(outcome.plan)
                    self._count_unproven(outcome)
                waiting.append(outcome)
                if not holds_all:
                    self._finish(compaction, waiting)
                    waiting = []
        self.bar = None
        self._finish(compaction, waiting)
        compaction.finish_target()
        self._end()
        is_left = self.args.dry_run and any(not plan.is_nothing for plan in self.plans)
        return EXIT_FINDINGS if self.problems or is_left else EXIT_OK

    def end_without_topic(self, *, all_opened: bool) -> int:
        """Finish the report of a run whose --topic matches no topic, and return the exit code."""
        if self.args.output == "json":
            self._end()
        return exit_code(is_sound=False, all_opened=all_opened)

    def _count_unproven(self, outcome: PartitionOutcome) -> None:
        """Count and report a partition that is not cleaned because no high watermark is known."""
        from kcli.inspect.compacting.obstacles import sentence

        if outcome.lacks_high_watermark:
            self.problems += 1
            self.unproven += 1
            self.print(self.report.problem(outcome.job.path, sentence(outcome.obstacles)))

    def _finish(self, compaction: Compaction, outcomes: list[PartitionOutcome]) -> None:
        """Print the plan of some partitions, and put their new files in place."""
        self.print(self.report.plans(outcomes))
        if self.args.dry_run:
            return
        for outcome in outcomes:
            placed = compaction.place(outcome)
            if outcome.problem is None:
                self.print(self.report.placed(placed))

    def interrupted(self, compaction: Compaction, error: OSError | KeyboardInterrupt) -> BaseException:
        """Report what an interrupted run has done, and return the exception to raise."""
        from kcli.inspect.quantities import format_count

        left = f"{compaction.placed} of {format_count(len(compaction.jobs), 'partition')} done, the next run does the others"
        if self.args.to:
            left = "no directory was created"
        if self.args.to and Path(self.args.to).exists():
            left = f"--to {self.args.to} is incomplete: remove it"
        if isinstance(error, KeyboardInterrupt):
            if not self.args.dry_run:
                print_message(f"interrupted: {left}")
            return error
        where = error.filename or self.args.to or compaction.under_way or self.args.paths[0]
        return CannotRun(f"{where}: {error.strerror or error}; {left}")

    def _end(self) -> None:
        from kcli.inspect.quantities import format_count
        from kcli.inspect.renderers.compact_report import RunSummary

        if self.unproven:
            print_message(
                f"no high watermark is known of {format_count(self.unproven, 'partition')}: not cleaned, see the plan"
            )
        summary = RunSummary(
            not self.args.dry_run, self.args.compression is not None, tuple(self.plans), len(self.left_out), self.problems
        )
        self.print(self.report.end(summary))
        self.print_left_alone()
