"""The columns of the tables of findings: what can be wrong in a log directory, each kind with a code that does not change.

    severity  meaning                                                                           exit code of verify
    --------  --------------------------------------------------------------------------------  -------------------
    error     records, offsets or transactions are lost, hidden or wrong, or no broker starts   1; 3 for HOLES alone
    warning   a broker repairs it or can work with it; something was lost or left               1
    info      good to know; a sound directory may have it                                       0

"At start" is how Apache Kafka 4.3 loads a log. "After a crash" is a start without .kafka_cleanshutdown: the broker recovers the
segments from the recovery point on. "After a clean stop" is a start with that file. What a repair does is what
`kcli verify --repair` does without --like-kafka; "left for you" is what it does not change.

The kinds are in log_findings and file_findings. docs/findings.md is generated from them.
"""

from __future__ import annotations

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (ERROR, WARNING, INFO)
# The errors that report missing offsets and no damage: a repair cannot restore the records.
HOLES = ("segment-gap", "offset-hole")


class FindingKind(NamedTuple):
    """One kind: code, severity, meaning, what a Kafka broker does at start, what a repair does or leaves."""

    code: str
    severity: str
    meaning: str
    broker_does: str
    repair_does: str

    @property
    def to_do(self) -> str:
        """What is left for the operator, as sentences: the part of `repair_does` after "left for you:"."""
        _, found, after = self.repair_does.partition("eft for you: ")
        return after[:1].upper() + after[1:] if found else self.repair_does
