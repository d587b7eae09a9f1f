"""Protects the table of Kafka's cleaner tests from naming a counterpart that is not there."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TESTS = FOLDER.parent.parent


def test_each_of_kafkas_tests_has_its_counterpart_or_a_reason() -> None:
    named = reasons = 0
    modules = {path.stem: path for path in TESTS.rglob("test_*.py")}
    for line in (FOLDER / "kafka_names.txt").read_text().splitlines():
        if not line or line[0] in "#[":
            continue
        _, module, rest = line.split(maxsplit=2)
        if module == "-":
            reasons += 1
            assert len(rest.split()) > 1, line
        else:
            named += 1
            assert f"\ndef {rest}(" in modules[module].read_text(), line
    assert named + reasons == 113 and named >= 103
