"""Severities of findings; kcli.inspect.verification.finding_kinds says what each means and which exit code it has."""

from __future__ import annotations

ERROR = "error"
WARNING = "warning"
INFO = "info"
