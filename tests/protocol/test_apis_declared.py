"""Protects messages/apis.txt against the given list of Kafka's declarations, field by field, where that list is there.

The list is of Kafka 4.3.1; what 4.4.0 changes in it is given as a diff.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS
from tests.conftest import ROOT

KINDS = ("request", "response", "header")
DECLARED = ROOT / "kcli" / "protocol" / "messages" / "apis.txt"


def blocks(text: str) -> dict[str, list[tuple[int, list[str]]]]:
    """Every request, response and header of a list: its lines as (depth, words), by its name; gone ones are left out."""
    found: dict[str, list[tuple[int, list[str]]]] = {}
    lines: list[tuple[int, list[str]]] = []
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            lines = []
            if words[0] in KINDS and "versions=none" not in words:
                found[words[1]] = lines
        lines.append((depth, words))
    return found


def given_text(shared: Path) -> str:
    """The requests and responses of Kafka 4.4.0: the list of 4.3.1 with the diff applied."""
    lines = (shared / "protocol-schemas.txt").read_text().split("\n## Data inside messages", 1)[0].splitlines()
    hunks = re.split(
        r"^(\d+)(?:,\d+)?[acd](\d+)(?:,\d+)?\n", (shared / "protocol-schemas-4.4.diff.txt").read_text(), flags=re.M
    )
    shift = 0  # between the numbers of the diff's right side and the lines of the list, which has a longer head
    for left_number, right_number, hunk in zip(hunks[1::3], hunks[2::3], hunks[3::3], strict=True):
        left = [line[2:] for line in hunk.splitlines() if line.startswith("<")]
        right = [line[2:] for line in hunk.splitlines() if line.startswith(">")]
        if int(left_number) + shift > len(lines):
            break  # records of the internal topics
        at = int(right_number) - 1 + shift
        if left and lines[at : at + len(left)] != left:
            found = next(i for i in range(at, len(lines)) if lines[i : i + len(left)] == left)
            shift, at = shift + found - at, found
        lines[at : at + len(left)] = right
    return "\n".join(lines)


def test_every_declaration_is_the_given_one(shared: Path) -> None:
    given, ours = blocks(given_text(shared)), blocks(DECLARED.read_text())
    assert set(ours) == set(given)
    for name, lines in ours.items():
        assert lines == given[name], name


def test_api_keys_are_the_given_ones(shared: Path) -> None:
    given = blocks(given_text(shared))
    keys = {int(word.removeprefix("key=")) for lines in given.values() for word in lines[0][1] if word.startswith("key=")}
    assert set(API_KEYS) == keys


@pytest.mark.parametrize("api", API_KEYS.values(), ids=lambda api: api.name)
def test_request_and_response_have_the_same_versions(api: object) -> None:
    request, response = api.request.schema, api.response.schema  # type: ignore[attr-defined]
    assert (request.key, request.versions, request.flexible) == (response.key, response.versions, response.flexible)


def test_error_codes_are_the_given_ones(shared: Path) -> None:
    errors = (shared / "kafka-tables.txt").read_text().split("## Errors", 1)[1].split("\n## ", 1)[0]
    rows = [[word.strip() for word in line.split("|")] for line in errors.splitlines() if line.count("|") == 3][1:]
    assert {int(row[0]): row[1] for row in rows} == {code: name for code, name in error_codes.NAMES.items() if code < 134}
    # Since 4.4.
    assert sorted(error_codes.NAMES)[-3:] == [134, 135, 136]
    assert {int(row[0]) for row in rows if row[2] == "true"} == error_codes.RETRIABLE
