"""What describe has to say besides its tables: problems with what lies there, and what cannot be known from it.

    kind        example                                                    exit code
    ----------  ---------------------------------------------------------  ---------
    a problem   a file that is damaged, missing in the middle, unreadable  1
    an unknown  no metadata log among the directories: no configs          0

Random bytes can make any number of problems: of one path only the first few are kept, and that there are more.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_OF_A_PATH = 8


class Problem(NamedTuple):
    """What is wrong with one file or directory, in one sentence."""

    path: str
    message: str


class Remarks:
    """Collects problems and unknowns, each once."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self._counts: dict[str, int] = {}
        self._unknowns: dict[str, None] = {}

    def problem(self, path: str, message: str) -> None:
        """Add what is wrong with `path`."""
        found = Problem(path, message)
        if found in self._problems:
            return
        count = self._counts[path] = self._counts.get(path, 0) + 1
        if count <= MOST_OF_A_PATH:
            self._problems[found] = None

    def unreadable(self, path: str, error: OSError) -> None:
        """Add that `path` cannot be read."""
        self.problem(path, f"cannot be read: {error.strerror or error}")

    def unknown(self, sentence: str) -> None:
        """Add what is not known, and where it could be learnt."""
        self._unknowns[sentence] = None

    @property
    def problems(self) -> list[Problem]:
        """All problems, in the order in which they were met; one more for a path that has more."""
        left_out = (
            Problem(path, "there are more problems; kcli verify lists them")
            for path, count in self._counts.items()
            if count > MOST_OF_A_PATH
        )
        return [*self._problems, *left_out]

    @property
    def unknowns(self) -> list[str]:
        """The sentences on what is not known."""
        return list(self._unknowns)
