"""Findings: one thing that is wrong at one place, of a kind in the table of finding_kinds; and their collector.

A finding is a row of a report, so its place is plain: a path, a byte of that file, a record's offset, each None where there
is none. Collectors bound what a random file can make: of one kind in one file a fixed number is kept, the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.inspect.verification.finding_kinds import INFO, KINDS


class Finding(NamedTuple):
    """One thing found: `file` is a path, `position` a byte in it, `offset` a record's offset; None where it has none."""

    code: str
    file: str
    position: int | None
    offset: int | None
    message: str

    @property
    def severity(self) -> str:
        """ERROR, WARNING or INFO, as the table says."""
        return KINDS[self.code].severity

    @property
    def broker_does(self) -> str:
        """What a Kafka broker does about it at start."""
        return KINDS[self.code].broker_does

    @property
    def repair_does(self) -> str:
        """What a repair does about it, or leaves to the operator."""
        return KINDS[self.code].repair_does


def serious(findings: Iterable[Finding]) -> list[Finding]:
    """Return the errors and warnings."""
    return [finding for finding in findings if finding.severity != INFO]


# How many findings of one kind a file may have before the rest is only counted.
MOST_OF_A_KIND = 50


class FindingList:
    """Collects findings; of one kind in one file only the first MOST_OF_A_KIND are kept, the rest is counted.

    Where a broker is at work (`is_live`), files come and go, and one that is gone is none.
    """

    def __init__(self, *, is_live: bool = False) -> None:
        self.is_live = is_live
        self.vanished = False  # a file was gone that had been there
        self.findings: list[Finding] = []
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, code: str, file: str, message: str, *, position: int | None = None, offset: int | None = None) -> None:
        """Add a finding. Raises KeyError for a code that is not in the table."""
        KINDS[code]
        count = self._counts[code, file] = self._counts.get((code, file), 0) + 1
        if count <= MOST_OF_A_KIND:
            self.findings.append(Finding(code, file, position, offset, message))

    def add_unreadable(self, path: str, error: OSError) -> None:
        """Add a finding for a file that cannot be read."""
        if isinstance(error, FileNotFoundError):
            self.vanished = True
            if not self.is_live:
                self.add("file-shrank", path, "the file vanished while its directory was read")
        else:
            self.add("file-unreadable", path, f"the file cannot be read: {error.strerror or error}")

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings that another list has collected."""
        for finding in findings:
            self.add(finding.code, finding.file, finding.message, position=finding.position, offset=finding.offset)

    def finish(self) -> list[Finding]:
        """All findings in a fixed order (file, byte, offset, code), with one finding for what was only counted."""
        for (code, file), count in self._counts.items():
            if count > MOST_OF_A_KIND:
                message = f"{count - MOST_OF_A_KIND} more findings {code}"
                self.findings.append(Finding("findings-cut", file, None, None, message))
        self._counts.clear()
        self.findings.sort(key=_place)
        return self.findings


def _place(finding: Finding) -> tuple[str, int, int, str, str]:
    position = -1 if finding.position is None else finding.position
    offset = -1 if finding.offset is None else finding.offset
    return finding.file, position, offset, finding.code, finding.message
