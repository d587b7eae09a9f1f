"""Findings, and the list that collects them.

A FindingList limits its size: of one kind in one file it keeps MOST_OF_A_KIND findings and counts the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.inspect.verification.finding_kinds import INFO, KINDS

MOST_OF_A_KIND = 50


class Finding(NamedTuple):
    """One thing that is wrong: `file` is a path, `position` a byte in it, `offset` a record's offset; None: it has none."""

    code: str
    file: str
    position: int | None
    offset: int | None
    message: str

    @property
    def severity(self) -> str:
        """ERROR, WARNING or INFO."""
        return KINDS[self.code].severity

    @property
    def broker_does(self) -> str:
        """What a Kafka broker does about it at start."""
        return KINDS[self.code].broker_does

    @property
    def repair_does(self) -> str:
        """What a repair does about it, or leaves for the operator."""
        return KINDS[self.code].repair_does


def serious(findings: Iterable[Finding]) -> list[Finding]:
    """Return the errors and warnings."""
    return [finding for finding in findings if finding.severity != INFO]


class FindingList:
    """The findings of one run. With `is_live` a running broker creates and deletes files: a missing file is not a finding."""

    def __init__(self, *, is_live: bool = False) -> None:
        self.is_live = is_live
        self.vanished = False  # a file that was listed did not exist any more
        self.findings: list[Finding] = []
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, code: str, file: str, message: str, *, position: int | None = None, offset: int | None = None) -> None:
        """Add a finding. Raises KeyError for an unknown code."""
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
        """Add the findings of another list."""
        for finding in findings:
            self.add(finding.code, finding.file, finding.message, position=finding.position, offset=finding.offset)

    def finish(self) -> list[Finding]:
        """Return all findings by file, byte, offset and code, with a findings-cut for those that were only counted."""
        for (code, file), count in self._counts.items():
            if count > MOST_OF_A_KIND:
                message = f"{count - MOST_OF_A_KIND} more findings {code}"
                self.findings.append(Finding("findings-cut", file, None, None, message))
        self._counts.clear()
        self.findings.sort(key=_sort_key)
        return self.findings


def _sort_key(finding: Finding) -> tuple[str, int, int, str, str]:
    position = -1 if finding.position is None else finding.position
    offset = -1 if finding.offset is None else finding.offset
    return finding.file, position, offset, finding.code, finding.message
