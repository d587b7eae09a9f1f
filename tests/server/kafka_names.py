"""The lists of Kafka's tests by name, each with its counterpart here or a reason why there is none.

    TestClass
    testName = file::test_function, file::test_function
    testName - the reason

The first two lines of a list say where the names are from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LEAST_REASON = 10


class Counterparts(NamedTuple):
    """A name of Kafka's with its counterparts, none if there is a reason."""

    name: str
    tests: list[str]


def counterparts(path: Path, classes: Mapping[str, int], folders: Iterable[Path]) -> Iterator[Counterparts]:
    """Yield the rows of a list, and fail at the end: for counterparts that do not exist, and for other numbers of names."""
    existing = {
        f"{file.stem}::{name}"
        for folder in folders
        for file in folder.glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    counts: Counter[str] = Counter()
    class_name, wrong = "", []
    for line in path.read_text().splitlines()[2:]:
        if line in classes:
            class_name = line
        elif line:
            counts[class_name] += 1
            name, sign, rest = line.split(" ", 2)
            tests = rest.split(", ") if sign == "=" else []
            wrong += [f"{name}: {one}" for one in tests if one not in existing]
            if sign not in ("=", "-") or (sign == "-" and len(rest) < LEAST_REASON):
                wrong.append(line)
            yield Counterparts(name, tests)
    assert not wrong, "\n".join(["", *wrong])
    assert counts == classes
