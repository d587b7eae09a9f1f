"""Paths as the user typed them, each thing once."""

from __future__ import annotations

from pathlib import Path


def distinct_paths(paths: list[str]) -> list[str]:
    """The paths, each directory once; one whose last part is no name ("." or "..") as an absolute path.

    What a partition's directory holds is told by its name.
    """
    found: dict[Path, str] = {}
    for path in paths:
        place = Path(path).resolve()
        found.setdefault(place, str(place) if Path(path).name in ("", "..") else path)
    return list(found.values())
