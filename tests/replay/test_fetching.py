"""Protects what every reader of a cluster's whole batches shares: where it goes on, and which transactions are aborted."""

from __future__ import annotations

import random

from kcli.client.consumer.completed_fetch import FetchedTransactions
from kcli.replay.fetching import MOST_EMPTY_ANSWERS, Fetched, FetchPosition


def fetched(data: bytes = b"", end_offset: int = 0) -> Fetched:
    return Fetched(memoryview(data), end_offset, end_offset, [])


def test_answers_that_bring_nothing_end_the_read() -> None:
    """Also those with bytes of which no batch is whole: replay asked for them for ever."""
    for answer in (fetched(), fetched(b"\0" * 20, 100)):
        position = FetchPosition(5, 100)
        for _ in range(MOST_EMPTY_ANSWERS - 1):
            assert position.go_on(answer, 5)
        assert not position.go_on(answer, 5)
        assert (position.offset, position.is_at_end) == (5, False)


def test_a_batch_or_an_end_without_records_goes_on() -> None:
    position = FetchPosition(5, 100)
    for at in range(6, 6 + MOST_EMPTY_ANSWERS * 2):
        assert position.go_on(fetched(), at - 1)
        assert position.go_on(fetched(b"batches", 100), at)
    assert position.go_on(fetched(end_offset=120), position.offset)
    assert (position.offset, position.is_at_end) == (100, True)


def test_a_batch_is_aborted_from_the_first_offset_to_the_marker() -> None:
    """Random transactions of some producers, compared with the definition."""
    for seed in range(200):
        rng = random.Random(seed)
        batches, aborted, begun = [], list[tuple[int, int]](), dict[int, int]()
        for offset in range(60):
            producer_id = rng.randrange(4)
            kind = rng.choice(("data", "data", "abort", "commit"))
            if kind == "data":
                begun.setdefault(producer_id, offset)
            elif producer_id in begun:
                first = begun.pop(producer_id)
                if kind == "abort":
                    aborted.append((producer_id, first))
            batches.append((producer_id, kind))
        # What is still open counts as aborted: the markers are after the answer.
        aborted += begun.items()
        listed = FetchedTransactions(rng.sample(aborted, len(aborted)))
        expected, open_from = list[bool](), dict[int, int]()
        found = list[bool]()
        for offset, (producer_id, kind) in enumerate(batches):
            listed.begin(offset)
            if kind == "data":
                first = open_from.setdefault(producer_id, offset)
                expected.append((producer_id, first) in aborted)
                found.append(listed.is_aborted(producer_id))
            else:
                first = open_from.pop(producer_id, -1)
                if kind == "abort":
                    assert listed.end(producer_id) == first
        assert found == expected, seed
        assert sorted(listed.left()) == sorted(begun.items()), seed
