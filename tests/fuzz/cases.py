"""One case of the fuzzer: a scene is drawn, damaged in one to three ways, and checked. A seed names a case for good.

Each damage has a generator of its own, so that leaving one out (`only`) leaves the others as they are.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from tests.damage.layout import NotApplicableError
from tests.fuzz import side_damages
from tests.fuzz.damages import BATCH, BLIND, KINDS, LOG, SIDE, Kind
from tests.fuzz.directories import Scene, write_scene
from tests.fuzz.properties import Before, Checker, Outcome

# Imported for the kinds that it enters into KINDS.
_SIDE = side_damages
_REACHES = (BATCH, BATCH, BATCH, BATCH, LOG, LOG, LOG, SIDE, SIDE)


class Case(NamedTuple):
    """A damaged scene; `damages` are sentences, `reaches` those of their kinds."""

    scene: Scene
    before: Before
    damages: list[str]
    reaches: list[str]
    with_like_kafka: bool

    def check(self) -> Outcome:
        """Check every property; the directories are repaired in place."""
        return Checker(self.scene, self.before, self.reaches).check(with_like_kafka=self.with_like_kafka)


def draw_kind(rng: random.Random) -> Kind:
    """Draw a kind of damage: first how far it reaches, then which."""
    reach = rng.choice(_REACHES)
    kinds = [one for one in KINDS.values() if reach in (one.reach, BATCH if one.reach == BLIND else None)]
    return rng.choice([one for one in kinds for _ in range(one.weight)])


def make_case(parent: Path, rng: random.Random, only: set[int] | None = None) -> Case:
    """Draw a case and write it below `parent`; `only` are the numbers of the damages to do (all of them)."""
    scene = write_scene(parent, rng)
    before = Before.of(scene)
    case = Case(scene, before, [], [], False)
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        kind, seed = draw_kind(rng), rng.getrandbits(32)
        if only is not None and number not in only:
            continue
        try:
            sentence = kind.damage(scene, random.Random(seed))
        except NotApplicableError:
            continue
        case.damages.append(f"{number}: {kind.name}: {sentence}")
        case.reaches.append(kind.reach)
    return case._replace(with_like_kafka=rng.random() < 0.25)


def seeded_case(parent: Path, seed: int, only: set[int] | None = None) -> Case:
    """The case of a seed."""
    return make_case(parent, random.Random(seed), only)
