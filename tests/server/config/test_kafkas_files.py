"""Protects the start: a server.properties that Kafka takes is taken, one that it refuses is refused, as its answers show.

Some 200 files, each with one thing that may be wrong; where kcli decides otherwise the case has its reason beside it.
"""

from __future__ import annotations

import json

import pytest

from kcli.server.config import ConfigError
from kcli.server.config.loading import configure
from tests.oracle.server_properties_cases import CASES, DIFFERENT, FIXTURE, text_of

KAFKAS = json.loads(FIXTURE.read_text())


def outcome(case: str) -> bool:
    """Whether kcli takes the file of a case."""
    try:
        configure(text_of(case).encode("latin-1"), "server.properties", serving=False)
    except ConfigError as error:
        assert all(fault.strip() for fault in error.faults)
        return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_a_file_is_judged_as_by_kafka(case: str) -> None:
    assert (outcome(case) == (KAFKAS[case] == "ok")) != (case in DIFFERENT)


def test_the_fixture_knows_every_case() -> None:
    assert KAFKAS.keys() == set(CASES) and DIFFERENT.keys() <= set(CASES), "run: python -m tests.oracle.server_properties_cases"
