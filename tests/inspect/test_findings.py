"""Protects the table of findings: stable codes, and docs/findings.md that says what the program says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kcli.inspect.verification.finding_kinds import ERROR, INFO, KINDS, SEVERITIES, WARNING
from kcli.inspect.verification.findings import MOST_OF_A_KIND, FindingList

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "findings.md"

HEAD = """\
# Findings of kcli verify

This page lists every kind of finding. The codes do not change.

- "A Kafka broker at start" is how Apache Kafka 4.3 loads a log. "After a crash" is a start without `.kafka_cleanshutdown`: the
  broker recovers the segments from the recovery point on. "After a clean stop" is a start with that file.
- "kcli verify --repair" is what a repair does without `--like-kafka`. "Left for you" is what it does not change. What it
  removes or replaces is kept in the quarantine.

[verify.md](verify.md) explains severities, exit codes and outputs, [repair.md](repair.md) the repair. The table is written from
kcli/inspect/verification/finding_kinds.py.
"""
COLUMNS = ["| code | meaning | a Kafka broker at start | kcli verify --repair |", "|---|---|---|---|"]
TABLE = "finding_kinds.py"
TITLES = {ERROR: "Errors", WARNING: "Warnings", INFO: "Notes"}


def page() -> str:
    lines = [HEAD]
    for severity in SEVERITIES:
        lines += [
            f"## {TITLES[severity]}",
            "",
            "| code | meaning | a Kafka broker at start | kcli verify --repair |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{kind.code}` | {kind.meaning} | {kind.broker_does} | {kind.repair_does} |"
            for kind in KINDS.values()
            if kind.severity == severity
        ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def test_the_page_lists_every_finding() -> None:
    """docs/findings.md is written from the table; KCLI_WRITE_DOCS=1 writes it anew."""
    if os.environ.get("KCLI_WRITE_DOCS") == "1":
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


def test_codes_are_words_and_rows_are_sentences() -> None:
    """A code is grepped for, a sentence is read."""
    assert len(KINDS) > 60
    for code, kind in KINDS.items():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", code) and code == kind.code
        assert kind.severity in SEVERITIES
        for sentence in (kind.meaning, kind.broker_does, kind.repair_does):
            assert re.match(r"[A-Z]|[a-z-]*(\.\w+|-checkpoint) ", sentence) and sentence.endswith("."), sentence
            assert "|" not in sentence


# Words that plain English does not need, and what stands for them.
AVOIDED = re.compile(
    r"\b(of which|is none|are none|stands?|lies|tells?|told|beside|behind it|has not|goes by|mends?)\b", re.IGNORECASE
)


def test_sentences_are_plain() -> None:
    """A reader whose English is a second language understands each sentence at once, and a repair says what to do."""
    for kind in KINDS.values():
        for sentence in (kind.meaning, kind.broker_does, kind.repair_does):
            assert not AVOIDED.search(sentence), sentence
        assert re.match(r"It |Nothing[:,] |Left for you: ", kind.repair_does), kind.repair_does
        assert len(kind.repair_does) <= 200, kind.repair_does


def test_every_code_is_used_and_no_other() -> None:
    """The checks and the table agree: no row that nothing finds, no code that no row explains."""
    sources = (ROOT / "kcli" / "inspect").glob("verifi*/*.py"), (ROOT / "kcli" / "inspect").glob("*.py")
    text = "".join(path.read_text() for paths in sources for path in paths if path.name != TABLE)
    said = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', text))
    # The codes of the two indexes are put together: index-size, timeindex-size.
    said |= {f"{index}-{what}" for index in ("index", "timeindex") for what in re.findall(r'\.add\(\s*"([a-z-]+)"', text)}
    said |= {f"{index}-order" for index in ("index", "timeindex")}
    assert set(KINDS) - said == set()


def test_a_flood_is_counted() -> None:
    """A random file must not make millions of findings; what is left out is told, once."""
    findings = FindingList()
    for position in range(MOST_OF_A_KIND + 3):
        findings.add("batch-crc", "a.log", "wrong", position=position)
    findings.add("batch-crc", "b.log", "wrong", position=0)
    found = findings.finish()
    assert len(found) == MOST_OF_A_KIND + 2
    assert [finding.message for finding in found if finding.code == "findings-cut"] == ["3 more findings batch-crc"]
    assert found == sorted(found, key=lambda finding: (finding.file, -1 if finding.position is None else finding.position))
