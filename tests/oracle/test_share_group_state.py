"""Protects the sum of a share group's state batches against Kafka's share coordinator, on random old and new batches."""

from __future__ import annotations

import random

import pytest

from kcli.state.share_group_state import StateBatch, combine_batches
from tests.oracle.peer import Peer

pytestmark = pytest.mark.oracle


def apart(dice: random.Random) -> list[StateBatch]:
    """Batches in order and apart, as a record holds them."""
    out, offset = [], 0
    for _ in range(dice.randrange(6)):
        first_offset = offset + dice.randrange(3)
        offset = first_offset + 1 + dice.randrange(8)
        out.append(StateBatch(first_offset, offset - 1, dice.choice([0, 2, 4]), dice.randrange(1, 4)))
    return out


def words(batches: list[StateBatch]) -> str:
    return ",".join(":".join(map(str, batch)) for batch in batches) or "-"


def read(text: str) -> list[StateBatch]:
    return [] if text == "-" else [StateBatch(*map(int, batch.split(":"))) for batch in text.split(",")]


def test_state_batches_add_up_as_kafkas_coordinator_adds_them(kafka_peer: Peer) -> None:
    dice = random.Random(7)
    cases = [(dice.randrange(-1, 12), combine_batches(apart(dice), -1), apart(dice)) for _ in range(3000)]
    lines = [f"combine {start} {words(before)} {words(added)}\n" for start, before, added in cases]
    ran = kafka_peer.run_java("DescribeRecords", stdin="".join(lines).encode())
    answers = ran.stdout.decode().split("\n")[:-1]
    for (start, before, added), answer in zip(cases, answers, strict=True):
        # Kafka 4.3.1 does not always join neighbours that are alike; ours does, as later ones do.
        expected = combine_batches(read(answer), -1)
        assert (start, before, added, combine_batches([*before, *added], start)) == (start, before, added, expected)
