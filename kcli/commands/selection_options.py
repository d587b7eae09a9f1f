"""The options that select records, as dump-log, consume and replay have them; kcli.selecting.selection parses them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcli.commands.output import CannotRun

if TYPE_CHECKING:
    from kcli.selecting.selection import Selection

# As in kcli.selecting.selection, whose import would cost `kcli dump-log` 3 ms.
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
# The options that a command may have or not: those that need the batches of a log, which a consumer does not see.
BATCH_OPTIONS = {
    "producer-id": "batches of this producer; may be repeated: any of the producers",
    "transactional": "batches of transactions",
    "control": "control batches",
    "aborted": "records of aborted transactions",
}


def add_selection_options(
    group: argparse._ArgumentGroup,
    *,
    batch_options: Sequence[str] = (),
    default_isolation: str | None = None,
    isolation_help: str,
    limit_aliases: Sequence[str] = (),
    tail_unit: str = "records",
) -> None:
    """Add the options; `batch_options` are names of BATCH_OPTIONS, `tail_unit` is what --tail counts."""
    group.add_argument("--offset", metavar="A..B", help="offsets from A to B, without B; A or B may be left out")
    group.add_argument(
        "--time",
        metavar="A..B",
        help="timestamps from A to B, without B: ISO 8601 (UTC without a zone) or ms; also one day, week or month",
    )
    group.add_argument(
        "--key", metavar="KEY", action="append", default=[], help="records with this key; may be repeated: any of the keys"
    )
    group.add_argument(
        "--header",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="records with this header; may be repeated: all of the headers",
    )
    for name in batch_options:
        if name == "producer-id":
            group.add_argument(f"--{name}", metavar="ID", action="append", default=[], help=BATCH_OPTIONS[name])
        else:
            group.add_argument(f"--{name}", action="store_true", help=BATCH_OPTIONS[name])
    group.add_argument(
        "--isolation", choices=[READ_UNCOMMITTED, READ_COMMITTED], default=default_isolation, help=isolation_help
    )
    group.add_argument("--limit", *limit_aliases, metavar="N", help="at most N records")
    group.add_argument("--tail", metavar="N", help=f"the last N {tail_unit} of each partition")


def selection_of(args: argparse.Namespace, isolation: str | None) -> Selection:
    """Return what the options select, with this isolation level. Raises CannotRun."""
    from kcli.selecting.selection import SelectionError, parse_selection

    given = vars(args)
    try:
        return parse_selection(
            offset=args.offset,
            time=args.time,
            keys=args.key,
            headers=args.header,
            producer_ids=given.get("producer_id", ()),
            transactional=given.get("transactional", False),
            control=given.get("control", False),
            aborted=given.get("aborted", False),
            isolation=isolation,
            limit=args.limit,
            tail=args.tail,
        )
    except SelectionError as error:
        raise CannotRun(str(error)) from None
