"""Findings: what can be wrong in a log directory, each kind with a stable code; the one table of them all.

    severity  meaning                                                                           exit code of verify
    --------  --------------------------------------------------------------------------------  -------------------
    error     records, offsets or transactions are lost, hidden or wrong, or no broker starts   1, for HOLES alone 3
    warning   a broker repairs it or can work with it; something was lost or left               1
    info      good to know; a sound directory may have it                                       0

What a broker does "at start" is how Apache Kafka 4.3 loads a log. "After a crash" is a start without .kafka_cleanshutdown:
the broker recovers the segments from the recovery point on. "After a clean stop" is a start with that file.
What a repair does is what `kcli verify --repair` does without --like-kafka; "left for you" is what it does not change.
The rows are in log_findings and file_findings. docs/findings.md is written from them.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.inspect.verification import file_findings, log_findings
from kcli.inspect.verification.severities import ERROR, INFO, WARNING

__all__ = ["ERROR", "HOLES", "INFO", "KINDS", "SEVERITIES", "WARNING", "FindingKind"]

SEVERITIES = (ERROR, WARNING, INFO)
# The kinds of errors that say that offsets are missing and that nothing is damaged: a repair cannot restore records.
HOLES = ("segment-gap", "offset-hole")


class FindingKind(NamedTuple):
    """One row of the table: code, severity, meaning, what a Kafka broker does at start, what a repair does or leaves."""

    code: str
    severity: str
    meaning: str
    broker_does: str
    repair_does: str

    @property
    def to_do(self) -> str:
        """What is left for people, as sentences of their own: what `repair_does` says after "left for you:"."""
        _, found, after = self.repair_does.partition("eft for you: ")
        return after[:1].upper() + after[1:] if found else self.repair_does


# code -> FindingKind, in the order of the tables.
KINDS: dict[str, FindingKind] = {row[0]: FindingKind(*row) for row in (*log_findings.ROWS, *file_findings.ROWS)}
