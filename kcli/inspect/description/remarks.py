"""The remarks of describe: problems with files and directories, and values that they do not contain.

    kind        example                                                    exit code
    ----------  ---------------------------------------------------------  ---------
    a problem   a file that is damaged, missing in the middle, unreadable  1
                a path of the command line that cannot be described        2
    an unknown  no metadata log among the directories: no configs          0

Random bytes can cause any number of problems: of a path only the first few are kept, and a remark that there are more.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import NamedTuple

MOST_OF_A_PATH = 8
MOST_NAMES = 8


class Problem(NamedTuple):
    """A fault of one file or directory; the message is one sentence."""

    path: str
    message: str


class Remarks:
    """Collects problems and unknowns, each once. `all_opened` is False if a path of the command line cannot be described."""

    def __init__(self) -> None:
        self.all_opened = True
        self._problems: dict[Problem, None] = {}
        self._counts: dict[str, int] = {}
        self._unknowns: dict[str, None] = {}

    def problem(self, path: str, message: str) -> None:
        """Add a problem with `path`."""
        found = Problem(path, message)
        if found in self._problems:
            return
        count = self._counts[path] = self._counts.get(path, 0) + 1
        if count <= MOST_OF_A_PATH:
            self._problems[found] = None

    def unopened(self, path: str, message: str) -> None:
        """Add why a path of the command line cannot be described."""
        self.all_opened = False
        self.problem(path, message)

    def unreadable(self, path: str, error: OSError) -> None:
        """Add that `path` cannot be read."""
        self.problem(path, f"cannot be read: {error.strerror or error}")

    def unknown(self, sentence: str) -> None:
        """Add a sentence on what is not known, and where it can be found."""
        self._unknowns[sentence] = None

    @property
    def problems(self) -> list[Problem]:
        """All problems in the order in which they were added, with one more for a path that has more."""
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


def missing_name(what: str, glob: str, names: Collection[str]) -> str | None:
    """Return a sentence on a `glob` that matches no name of a topic or group, with similar names; None if it matches."""
    if any(fnmatchcase(name, glob) for name in names):
        return None
    from kcli.inspect.suggestions import did_you_mean

    meant = did_you_mean(glob.strip("*?"), sorted(names))
    if not meant and names:
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        meant = f"; there are {', '.join(sorted(names)[:MOST_NAMES])}{more}"
    return f"no {what} here {'matches' if set(glob) & set('*?[') else 'is called'} {glob!r}{meant}"
