"""`python -m tests.fuzz --seeds A-B`: run the directory fuzzer by hand.

--seeds A-B       the cases to run; one number runs one case
--only N,N        of a single case: only these damages, by the numbers that it prints
--property P      report this property only
--keep DIR        leave the directories of a single case there, damaged and not repaired
--processes N     how many processes share the seeds
--first           of each property and kind of damage only the first case
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.fuzz.cases import seeded_case
from tests.fuzz.properties import Violation


class Result:
    """What a seed came to."""

    def __init__(self, seed: int, damages: list[str], violations: list[Violation], seconds: float) -> None:
        self.seed = seed
        self.damages = damages
        self.violations = violations
        self.seconds = seconds


def fast_directory() -> str | None:
    """Where directories cost the least: in memory, if the system has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_seed(seed: int, only: set[int] | None = None) -> Result:
    """Run one case in a directory that is removed at the end."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{seed}-", dir=fast_directory()) as parent:
        case = seeded_case(Path(parent), seed, only)
        outcome = case.check()
        violations = [Violation(one.property, one.message.replace(parent, "")) for one in outcome.violations]
    return Result(seed, case.damages, violations, time.perf_counter() - begin)


def minimise(seed: int, wanted: str) -> Result:
    """Leave out damages as long as the property stays violated."""
    result = run_seed(seed)
    numbers = {int(one.partition(":")[0]) for one in result.damages}
    for number in sorted(numbers):
        smaller = run_seed(seed, numbers - {number})
        if smaller.damages and any(one.property == wanted for one in smaller.violations):
            numbers, result = numbers - {number}, smaller
    return result


def main() -> int:
    """Run what was asked for -> 1 where a property is violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", required=True)
    parser.add_argument("--only")
    parser.add_argument("--property")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first", action="store_true")
    arguments = parser.parse_args()
    first, _, last = arguments.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    only = {int(number) for number in arguments.only.split(",")} if arguments.only else None
    if arguments.keep:
        shutil.rmtree(arguments.keep, ignore_errors=True)
        seeded_case(arguments.keep, seeds[0], only)
    counts: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    seconds = 0.0
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = (
            pool.map(run_seed, seeds, [only] * len(seeds), chunksize=8) if len(seeds) > 1 else iter([run_seed(seeds[0], only)])
        )
        for result in results:
            seconds += result.seconds
            shown = [one for one in result.violations if arguments.property in (None, one.property)]
            counts.update({one.property for one in shown})
            kinds = tuple(damage.split(": ")[1] for damage in result.damages)
            new = [one for one in shown if (one.property, *kinds) not in seen]
            seen |= {(one.property, *kinds) for one in shown}
            if new if arguments.first else (shown or len(seeds) == 1):
                print(f"seed {result.seed}: {' | '.join(result.damages)}")
                for one in new if arguments.first else shown:
                    print(f"    {one.property}: {one.message}")
    print(f"{len(seeds)} cases, {1000 * seconds / len(seeds):.0f} ms each; {dict(counts.most_common())}", file=sys.stderr)
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
