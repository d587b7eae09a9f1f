"""Damages copies of partition directories in every way that a disk, a crash or a person can.

`DAMAGES` maps the name of a kind to a function (partition_dir, rng) that changes the directory in place; its docstring
says in a sentence what it does. What it does depends on the directory and the state of `rng` alone. A kind that the
partition offers nothing for raises NotApplicableError and may have changed nothing.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.damage import leftovers, log_bytes, side_files
from tests.damage.layout import DAMAGES, Damage, NotApplicableError

__all__ = ["DAMAGES", "Damage", "NotApplicableError", "copy_partition", "damaged_copy"]

# Imported for the kinds that they enter into DAMAGES.
_KINDS = (log_bytes, side_files, leftovers)


def copy_partition(partition_dir: Path, parent: Path) -> Path:
    """Copy a partition directory into `parent`, writable whatever the original is; the copy's path."""
    copy = parent / partition_dir.name
    copy.mkdir(parents=True)
    for path in sorted(partition_dir.iterdir()):
        shutil.copyfile(path, copy / path.name)
    return copy


def damaged_copy(name: str, partition_dir: Path, parent: Path, seed: int = 1) -> Path:
    """Copy a partition directory into `parent` and do the damage `name` to the copy; the copy's path.

    Raises NotApplicableError, and leaves no copy, where the partition offers nothing for it.
    """
    copy = copy_partition(partition_dir, parent)
    try:
        DAMAGES[name](copy, random.Random(f"{seed} {name}"))
    except NotApplicableError:
        shutil.rmtree(copy)
        raise
    return copy
