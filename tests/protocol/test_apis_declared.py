"""Protects messages/apis.txt against the given list of Kafka's declarations, field by field, where that list is there."""

from __future__ import annotations

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


def test_every_declaration_is_the_given_one(shared: Path) -> None:
    given, ours = blocks((shared / "protocol-schemas.txt").read_text()), blocks(DECLARED.read_text())
    assert set(ours) == set(given)
    for name, lines in ours.items():
        assert lines == given[name], name


def test_api_keys_are_the_given_ones(shared: Path) -> None:
    given = blocks((shared / "protocol-schemas.txt").read_text())
    keys = {int(word.removeprefix("key=")) for lines in given.values() for word in lines[0][1] if word.startswith("key=")}
    assert set(API_KEYS) == keys


@pytest.mark.parametrize("api", API_KEYS.values(), ids=lambda api: api.name)
def test_request_and_response_have_the_same_versions(api: object) -> None:
    request, response = api.request.schema, api.response.schema  # type: ignore[attr-defined]
    assert (request.key, request.versions, request.flexible) == (response.key, response.versions, response.flexible)


def test_error_codes_are_the_given_ones(shared: Path) -> None:
    errors = (shared / "kafka-tables.txt").read_text().split("## Errors", 1)[1].split("\n## ", 1)[0]
    rows = [[word.strip() for word in line.split("|")] for line in errors.splitlines() if line.count("|") == 3][1:]
    assert {int(row[0]): row[1] for row in rows} == error_codes.NAMES
    assert {int(row[0]) for row in rows if row[2] == "true"} == error_codes.RETRIABLE
