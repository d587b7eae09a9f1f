"""Protects the language of code and docs: words that readers had to read twice do not come back.

Kafka's documentation, Python's and PostgreSQL's error messages are the model. The words are those that stood for another word
(told for logged, dice for random numbers, pace for a throttle), so that a reader who searched for the usual one found nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = re.compile(
    r"\b(tell|tells|told|telling|whoever|nobody|goes by|go by|so many|dice|pace|seams?|mend|mends|mended|mending|beside"
    r"|meanwhile|gives? up|given up|let go|looks? at|looked at|looks? through|at rest|as may be|what of|stands|lies)\b",
    re.IGNORECASE,
)
# Text of Kafka's, and a seed that would give other runs of the simulator under another name.
ALLOWED = {"kcli/simulator/runner.py": ('self._rng("pace")',)}


def pages() -> Iterator[Path]:
    for folder, patterns in (("kcli", ("*.py", "*.pxd")), ("docs", ("*.md",))):
        for pattern in patterns:
            yield from (ROOT / folder).rglob(pattern)
    yield from (ROOT / name for name in ("README.md", "ARCHITECTURE.md", "setup.py", "tasks.py"))


def faults_of_words(path: Path) -> Iterator[str]:
    name = str(path.relative_to(ROOT))
    text = path.read_text("utf-8")
    for allowed in ALLOWED.get(name, ()):
        if allowed not in text:
            yield f"{name}: the exception {allowed} is not needed any more"
        text = text.replace(allowed, "")
    yield from (f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in WORDS.finditer(text))


def test_words_that_do_not_come_back() -> None:
    """Each word of the list has a plainer one: log, return, the caller, no client, uses, N, rng, throttle, repair ..."""
    found = [fault for path in sorted(pages()) for fault in faults_of_words(path)]
    assert not found, "\n".join(["", *found])
