"""Protects a repair from damage that its own fuzzer does not know: no record that was whole is lost without a word, none is
invented, and a second repair has nothing to do.

tests/fuzz/score.py has the damages and the script for thousands of seeds; here are some of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.fuzz.score import DAMAGES, FAULTS, main, score_seed

FAST, CI = range(16), range(31, 200)
# Bytes are missing or doubled within a batch, whose last record has a batch for its value: that is taken for the log's. Seeds,
# and seeds with codecs.
INVENTING = {114}, {50, 327}
# Once wrong. A sector is there twice, and a value in it has messages of format 0 with the next offsets: they were taken for the
# log's. A sector ends in a header: with the length the offset was wrong, and the sound batch behind it was removed for it. The
# first batch of the last segment has an offset that its name does not allow: it was believed.
WRONG_ONCE = 854, 3473, 3581


def check(seeds: Iterable[int], *, keeps_codecs: bool = False) -> None:
    results = [score_seed(seed, keeps_codecs=keeps_codecs) for seed in seeds]
    assert all(one["damages"] or one["restored"] for one in results)
    faults = {one["seed"]: [name for name in FAULTS if one.get(name)] for one in results}
    known = INVENTING[keeps_codecs]
    assert {seed: found for seed, found in faults.items() if found and not (seed in known and found == ["invented"])} == {}


def test_a_repair_has_no_fault() -> None:
    check(FAST)
    check(WRONG_ONCE)


@pytest.mark.ci
def test_a_repair_of_more_cases_has_no_fault() -> None:
    check(CI)


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 20), marks=pytest.mark.ci), pytest.param(range(20, 400), marks=pytest.mark.slow)]
)
def test_a_repair_between_gaps_has_no_fault(seeds: range) -> None:
    """Compacted logs whose batches are compressed: nothing but a chain of batches says where the log continues after damage."""
    check(seeds, keeps_codecs=True)


def test_a_run_goes_on_where_one_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same cases and the same score; what is in the file is not run again."""
    state = tmp_path / "state"
    main(["--seeds", "0-3", "--state", str(state)])
    lines = state.read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2, 3]
    main(["--seeds", "2-5", "--state", str(state)])
    assert state.read_text().splitlines()[:4] == lines
    assert [json.loads(line)["seed"] for line in state.read_text().splitlines()] == [0, 1, 2, 3, 4, 5]
    last = capfd.readouterr().out.splitlines()[-1]
    assert "seeds 2-5, 4 cases" in last and all(name in last for name in FAULTS)


def test_each_damage_is_drawn() -> None:
    """None is a name only."""
    drawn = {one.partition(":")[0] for seed in range(60) for one in score_seed(seed)["damages"]}
    assert drawn == {damage.__name__ for damage in DAMAGES}
