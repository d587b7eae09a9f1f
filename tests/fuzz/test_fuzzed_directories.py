"""Protects repair, verify and the readers from damage that no other test foresees: the properties hold for every case.

A case is named by its seed: `python -m tests.fuzz --seeds N` runs it again and says what was damaged. The Hypothesis test draws
the same cases from choices that it can make simpler, so that a failure that it finds is a small one.

    tier  seeds   cases of Hypothesis
    ----  ------  -------------------
    fast  24      -
    ci    250     50
    slow  4,500   500
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.damage import NotApplicableError
from tests.fuzz import outputs
from tests.fuzz.__main__ import fast_directory, run_seed
from tests.fuzz.cases import draw_kind, make_case, seeded_case
from tests.fuzz.damages import BATCH, KINDS, flip_last_base_offset
from tests.fuzz.directories import DUPLICATE, write_scene
from tests.fuzz.properties import Before, Checker, tree

FAST_SEEDS, CI_SEEDS, SLOW_SEEDS = 24, 300, 4500
BLOCK = 50  # seeds a test


def blocks() -> list[ParameterSet]:
    """The seeds in blocks, each marked with the first tier that runs it."""
    fast = [pytest.param(range(first, first + 8), id=f"{first}-{first + 7}") for first in range(0, FAST_SEEDS, 8)]
    rest: list[tuple[range, pytest.MarkDecorator]] = []
    for first in range(FAST_SEEDS, SLOW_SEEDS, BLOCK):
        last = min(first + BLOCK, SLOW_SEEDS if first >= CI_SEEDS else CI_SEEDS)
        if first < CI_SEEDS < first + BLOCK:
            rest.append((range(CI_SEEDS, first + BLOCK), pytest.mark.slow))
        rest.append((range(first, last), pytest.mark.ci if first < CI_SEEDS else pytest.mark.slow))
    return fast + [pytest.param(seeds, id=f"{seeds[0]}-{seeds[-1]}", marks=mark) for seeds, mark in rest]


@pytest.mark.parametrize("seeds", blocks())
def test_every_property_holds(seeds: range) -> None:
    """The properties of tests/fuzz/properties.py, for each seed."""
    failures = [result for seed in seeds if (result := run_seed(seed)).violations]
    assert not failures, "\n".join(
        f"seed {result.seed}: {' | '.join(result.damages)}\n"
        + "\n".join(f"    {one.property}: {one.message}" for one in result.violations)
        for result in failures
    )


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(6)),
        pytest.param(range(6, 90), marks=pytest.mark.ci),
        pytest.param(range(90, 900), marks=pytest.mark.slow),
    ],
)
def test_a_wrong_base_offset_of_the_last_batch_costs_no_other_batch(seeds: range) -> None:
    """No other batch is hidden or removed. An offset that the segment may have is believed, no other is."""
    failures = []
    for seed in seeds:
        with TemporaryDirectory(dir=fast_directory()) as parent:
            rng = random.Random(seed)
            scene = write_scene(Path(parent), rng)
            before = Before.of(scene)
            try:
                sentence, is_possible = flip_last_base_offset(scene, rng)
            except NotApplicableError:
                continue
            believed = {"misplaced", "end-too-high"} if is_possible else set()
            violations = [one for one in Checker(scene, before, [BATCH]).check().violations if one.property not in believed]
            failures += [f"seed {seed}: {sentence}: {violations}"] if violations else []
    assert not failures, "\n".join(failures)


def check_drawn(rng: random.Random) -> None:
    """Draw a case from `rng` and check it."""
    with TemporaryDirectory(dir=fast_directory()) as parent:
        case = make_case(Path(parent), rng)
        violations = case.check().violations
        assert not violations, f"{case.damages}: {violations}"


WHOLE_DIRECTORIES = list(HealthCheck)  # a case takes many draws, and time


@pytest.mark.slow
@settings(max_examples=500, suppress_health_check=WHOLE_DIRECTORIES, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_property_holds_for_drawn_cases(rng: random.Random) -> None:
    """The same for cases that Hypothesis draws and makes simpler; what it draws depends on the modules that are loaded."""
    check_drawn(rng)


# ------------------------------------------------------------------------------------------------------ the fuzzer itself


@pytest.mark.parametrize("seed", range(12))
def test_an_undamaged_scene_has_every_property(seed: int, tmp_path: Path) -> None:
    """What the properties find is the damage's doing: without damage every reader shows what was appended, exactly."""
    scene = write_scene(tmp_path, random.Random(seed))
    before = Before.of(scene)
    appended = sorted((str(partition.path), record) for partition in scene.partitions for record in partition.records.values())
    paths = [directory.path for directory in scene.directories]
    assert sorted(outputs.dumped_json(*paths)) == appended
    assert sorted(row for partition in scene.partitions for row in outputs.spark_rows(partition.path)) == appended
    violations = Checker(scene, before, []).check().violations
    assert [one for one in violations if scene.kind != DUPLICATE] == []


def test_a_seed_is_the_same_case_every_time(tmp_path: Path) -> None:
    """A failure that a seed shows can be shown again; leaving one damage out leaves the others as they are."""
    for seed in range(6):
        first, second = seeded_case(tmp_path / f"{seed}" / "1", seed), seeded_case(tmp_path / f"{seed}" / "2", seed)
        assert first.damages == second.damages
        contents = [
            [digest for _, digest in sorted(tree([case.scene.directories[0].path]).items())] for case in (first, second)
        ]
        assert contents[0] == contents[1]
        if len(first.damages) > 1:
            number = int(first.damages[0].partition(":")[0])
            assert seeded_case(tmp_path / f"{seed}" / "3", seed, {number}).damages == first.damages[:1]


@pytest.mark.ci
@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_damage_changes_something(name: str) -> None:
    """No kind is a name only: some scene offers something for it, and its files are others afterwards."""
    for seed in range(60):
        with TemporaryDirectory(dir=fast_directory()) as parent:
            scene = write_scene(Path(parent), random.Random(seed))
            before = tree([Path(parent)])
            try:
                KINDS[name].damage(scene, random.Random(seed))
            except NotApplicableError:
                assert tree([Path(parent)]) == before
                continue
            if tree([Path(parent)]) != before:
                return
    pytest.fail(f"{name} changed nothing in 60 scenes")


def test_every_kind_of_damage_is_drawn() -> None:
    """None is forgotten."""
    assert {draw_kind(random.Random(seed)).name for seed in range(12_000)} == set(KINDS)
