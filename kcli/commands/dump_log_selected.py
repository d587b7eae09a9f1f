"""`kcli dump-log` with the outputs text, JSON and CSV, which have selections, statistics and following.

`follow_until_stopped` waits between the polls of --follow, until Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from kcli.commands.output import exit_code, is_terminal, print_message, use_colour, write_out
from kcli.commands.selection_options import selection_of
from kcli.format.primitives import INT32_MAX
from kcli.inspect.dumping.dump import DumpOptions, dump
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.dumping.dump import DumpOptions
    from kcli.inspect.dumping.kafka_text import ContentParser
    from kcli.inspect.dumping.renderer import DumpResult, Renderer
    from kcli.selecting.selection import Selection


def run_selected(args: argparse.Namespace, paths: list[str], output: str, parser: ContentParser | None) -> int:
    """Show the selected records and return the exit code. Raises CannotRun for invalid options."""
    selection = selection_of(args, args.isolation)
    options = DumpOptions(
        batches=output != "csv" and not args.skip_record_metadata,
        statistics=args.stats,
        max_bytes=args.max_bytes if args.max_bytes < INT32_MAX else None,
        parser=parser,
    )
    renderer = _renderer(args, output)
    if args.follow:
        result = follow_until_stopped(paths, selection, renderer, options)
    else:
        result = dump(paths, selection, renderer, options, OsDisk(), report=print_message, absolute=os.path.abspath)
    return exit_code(is_sound=result.is_sound, all_opened=not result.unopened)


def _renderer(args: argparse.Namespace, output: str) -> Renderer:
    if output == "json":
        from kcli.inspect.renderers.json_lines import JsonLines

        return JsonLines(write_out)
    if output == "csv":
        from kcli.inspect.renderers.csv_rows import CsvRows

        return CsvRows(write_out, iso_timestamps=args.timestamps != "ms", statistics=args.stats)
    from kcli.inspect.renderers.human_text import HumanText

    columns = shutil.get_terminal_size().columns if is_terminal() else None
    return HumanText(write_out, colour=use_colour(), columns=columns)


# How long to wait if there is nothing new.
POLL_INTERVAL_S = 0.2


def follow_until_stopped(paths: list[str], selection: Selection, renderer: Renderer, options: DumpOptions) -> DumpResult:
    """Follow the paths until SIGINT, SIGTERM, the limit, or the deletion of all logs; return counts of what was shown."""
    import signal
    import threading

    from kcli.inspect.dumping.follow import dump_followed

    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    def wait() -> bool:
        return not stopped.wait(POLL_INTERVAL_S)

    return dump_followed(paths, selection, renderer, options, OsDisk(), wait, report=print_message, absolute=os.path.abspath)
