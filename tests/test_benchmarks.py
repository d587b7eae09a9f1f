"""Protects the figures of benchmarks/RESULTS.md: what is short of what is asked is marked, a run that missed records fails."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bench_against import interval
from benchmarks.bench_holds import errors_in
from benchmarks.bench_load import Cell, Found, parsed, range_table, ratio_table
from benchmarks.brokers import Broker
from benchmarks.held_server import Holds, callback_name, event_name
from benchmarks.load_generator import Load, LoadError, LoadGenerator
from kcli.protocol.apis import API_KEYS, DELETE_TOPICS, FETCH
from kcli.server.events import Connection, Flushed, RequestReceived


class Running(Broker):
    """This process in place of a broker's."""

    def __init__(self) -> None:
        super().__init__("kcli", Path())

    @property
    def pid(self) -> int:
        return os.getpid()


def generator(directory: Path, answer: str) -> LoadGenerator:
    """One that answers so, whatever it is to do."""
    program = directory / "rdload"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    return LoadGenerator(program, can_be_idempotent=True)


@pytest.mark.parametrize(
    ("records", "size", "errors"),
    [
        pytest.param(999, 99_900, 0, id="short"),
        pytest.param(1001, 100_100, 0, id="over"),
        (1000, 99_999, 0),
        (1000, 100_000, 1),
    ],
)
def test_a_consume_cell_that_was_not_read_whole_is_an_error(tmp_path: Path, records: int, size: int, errors: int) -> None:
    answer = f'{{"records": {records}, "bytes": {size}, "seconds": 1.5, "errors": {errors}, "error": "x"}}'
    with pytest.raises(LoadError, match="1,000 records were produced"):
        generator(tmp_path, answer).consume(Running(), "t", 1, 100, 1000, 1)


def test_a_consume_cell_that_was_read_whole(tmp_path: Path) -> None:
    answer = '{"records": 1000, "bytes": 100000, "seconds": 0.5, "errors": 0, "error": ""}'
    load = generator(tmp_path, answer).consume(Running(), "t", 1, 100, 1000, 1)
    assert (load.records, load.megabytes, load.mb_s) == (1000, 0.1, 0.2)


@pytest.mark.parametrize(("sent", "acked", "failed"), [(10, 9, 0), (10, 9, 1), (0, 0, 0)])
def test_a_produce_cell_with_records_that_were_not_acknowledged_is_an_error(
    tmp_path: Path, sent: int, acked: int, failed: int
) -> None:
    answer = f'{{"sent": {sent}, "acked": {acked}, "failed": {failed}, "seconds": 1, "error": "x"}}'
    with pytest.raises(LoadError, match="were acknowledged"):
        generator(tmp_path, answer).produce(Running(), "t", 1, 100, "all", 1, 10)


def test_the_table_marks_what_is_short_and_leaves_out_what_was_not_measured() -> None:
    cell, other = Cell("produce", 1024, 16, "all"), Cell("produce", 100, 1, "idempotent")
    found: Found = {
        (cell, "kcli"): [Load(1, 600.0, 1.0, 1.0), Load(1, 500.0, 1.0, 1.0), Load(1, 100.0, 1.0, 1.0)],
        (cell, "kafka"): [Load(1, 250.0, 0.5, 1.0)],
        (cell, "bare"): [Load(1, 1000.0, 1.0, 1.0)],
        (other, "kcli"): [Load(1, 300.0, 1.0, 0.5)],
        (other, "kafka"): [Load(1, 200.0, 1.0, 1.0)],
    }
    brokers = ["kcli", "kafka", "bare"]
    assert ratio_table([cell, other], brokers, found).splitlines()[2:] == [
        "| produce 1 KB, acks=all, 16 partitions | 500 / 500 | 500 / 250 | 1,000 / 1,000 "
        "| 2.00, **short** | 3 | 1.00, **short** | 1.3 | 50%, **short** | 65% |",
        "| produce 100 B, idempotent, 1 partition | 300 / 600 | 200 / 200 | - | 3.00 | 3 | 1.50 | - | - | 65% |",
    ]
    assert range_table([cell], brokers, found).splitlines()[-1].split(" | ")[1:3] == ["100 to 600", "250 to 250"]


def test_each_consume_cell_has_enough_to_read_for_many_segments(capsys: pytest.CaptureFixture[str]) -> None:
    _, cells = parsed(["--cells", "consume-*"])
    assert len(cells) == 8
    with pytest.raises(SystemExit):
        parsed(["--cells", "consume-*", "--max-mb", "160"])
    assert "10 segments a partition need 168" in capsys.readouterr().err
    assert [cell.name for cell in parsed(["--cells", "*-100-16-idem*", "--max-mb", "5"])[1]] == ["produce-100-16-idempotent"]


def test_holds_are_the_longest_since_the_last_report() -> None:
    holds = Holds()
    for ms, cpu_ms in ((3.0, 1.0), (7.0, 2.0), (5.0, 5.0)):
        holds.note_call(ms, cpu_ms)
        holds.note_part("Fetch", ms)
    assert holds.take() == {"longest_ms": 7.0, "longest_cpu_ms": 2.0, "parts": {"Fetch": 7.0}}
    assert holds.take() == {"longest_ms": 0.0, "longest_cpu_ms": 0.0, "parts": {}}


def test_what_held_the_loop_is_called_by_what_it_did() -> None:
    def slices() -> Any:
        yield

    def step_of(work: Any) -> Any:
        return lambda now_ms: next(work)

    frame = memoryview(FETCH.to_bytes(2, "big"))
    assert event_name(RequestReceived(Connection(1, "internal", "127.0.0.1", is_internal=True), frame)) == "Fetch*"
    assert event_name(RequestReceived(Connection(1, "PLAINTEXT", "127.0.0.1"), frame)) == "Fetch"
    assert event_name(Flushed(1)) == "Flushed"
    assert callback_name(step_of(slices())).endswith("slices")
    assert callback_name(partial(print, slices())).endswith("slices")
    assert callback_name(partial(print, 1)) == "print"


def test_an_error_deep_in_an_answer_is_found() -> None:
    response = API_KEYS[DELETE_TOPICS].response
    results = [response.classes["DeletableTopicResult"](name="t", error_code=code) for code in (0, 3, 0)]
    assert list(errors_in(response.new(responses=results))) == [3]


def test_the_interval_of_a_median_covers_it() -> None:
    """Six pairs are the least with 95 %; of eleven the second and the last but one bound the median (97.9 and 98.8 %)."""
    assert interval([1.0] * 5) is None
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)
    assert interval([float(number) for number in range(11)]) == (1.0, 9.0)
