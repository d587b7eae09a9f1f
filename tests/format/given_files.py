"""The given files by name pattern, and Kafka's dump of each: what the tests of the small formats walk over."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import every_log_set


def given_files(pattern: str) -> list[Path]:
    """Every given file whose name matches, in both directories; fails where there is none."""
    found = [file for given_set in every_log_set() for file in sorted(given_set.data.rglob(pattern)) if file.is_file()]
    assert found, f"no given file is named {pattern}"
    return found


def dump_lines(file: Path) -> list[str]:
    """The lines that Kafka's tool printed of a given file, behind the one that names it."""
    given_set = next(given_set for given_set in every_log_set() if file.is_relative_to(given_set.data))
    return given_set.golden(str(file.relative_to(given_set.data))).decode().split("\n")[1:-1]
