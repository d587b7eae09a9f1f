"""Protects the third column of docs/findings.md: what a repair is said to do about a finding is what it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.inspect.verification.finding_kinds import HOLES, INFO, KINDS
from tests.inspect.test_verifier_findings import CASES, Case


@pytest.mark.parametrize(("make", "expected"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_what_is_left_is_what_the_table_says(
    make: Case, expected: frozenset[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each finding of each case: it stays if the table leaves it to the operator, and only then."""
    root = tmp_path / "logs"
    root.mkdir()
    paths = [str(path) for path in make(root) or [root]]
    main(["verify", "--repair", "--apply", "--output", "json", *paths])
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    left = {row["code"]: row["repairDoes"] for row in rows if row["type"] == "left"}
    for code, said in left.items():
        assert said == KINDS[code].repair_does
        assert "eft for you" in said, code
    # Offsets that are missing before an empty segment which nothing confirms are named as lost instead.
    named = HOLES if any(row["type"] == "hole" for row in rows) else ()
    for code in expected - {*left, *named}:
        assert KINDS[code].severity == INFO or not KINDS[code].repair_does.startswith("Left for you"), code
    main(["verify", "--output", "json", *paths])
    found = {row["code"] for row in map(json.loads, capfd.readouterr().out.splitlines()) if row["type"] == "finding"}
    assert {code for code in found if KINDS[code].severity != INFO} == set(left)
