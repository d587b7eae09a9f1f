"""The paths of a command line, without duplicates."""

from __future__ import annotations

from pathlib import Path


def distinct_paths(paths: list[str]) -> list[str]:
    """Return the paths as they were typed, each file or directory once.

    A path that ends with "." or ".." is made absolute, because the name of a partition directory is needed. An empty path (a
    variable of the shell that is not set) stays empty: it is not the working directory.
    """
    found: dict[Path, str] = {}
    for path in paths:
        place = Path(path).resolve() if path else Path()
        found.setdefault(place, str(place) if path and Path(path).name in ("", "..") else path)
    return list(found.values())
