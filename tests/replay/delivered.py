"""What a log holds, as dump-log shows it to a consumer with read_committed: the measure of a replay."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

Records = dict[tuple[str, int], list[tuple[Any, ...]]]


def delivered(*paths: Path, options: tuple[str, ...] = ("--isolation", "read_committed")) -> Records:
    """The records by partition: timestamp, key, value, headers, in order; without internal topics and control records."""
    command = [sys.executable, "-m", "kcli", "dump-log", "--output", "json", *options, *map(str, paths)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120).stdout.splitlines()
    found: Records = {}
    where: tuple[str, int] | None = None
    for line in lines:
        row = json.loads(line)
        if row.get("type") == "file":
            where = (row["topic"], row["partition"]) if row.get("topic") and not row["topic"].startswith("__") else None
        elif row.get("type") == "record" and where is not None and not row.get("isControl"):
            found.setdefault(where, []).append(record_of(row))
    return found


@cache
def delivered_of_given(data: Path) -> Records:
    """The same of a directory that no test changes, and of which several tests ask."""
    return delivered(data)


def record_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What of a record has to arrive."""
    return tuple(
        (name, json.dumps(value))
        for name, value in sorted(row.items())
        if name == "timestamp" or name.startswith(("key", "value", "headers"))
    )
