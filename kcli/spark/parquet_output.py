"""The output of an export: which outputs are refused, and how a directory is replaced.

    refused in every mode                                 why
    ----------------------------------------------------  ---------------------------------------------------------------
    OUT is an input, is in one or contains one, by any    writing or replacing OUT would change or delete Kafka's files
      path: symbolic links, bind mounts, `..`
    OUT contains files with names of Kafka's files        the same, for a log that is not an input
    OUT is written by incremental runs, and this run is   its state would be lost or would not include the new rows; mode
      not one of them                                     ignore is allowed, since it changes nothing

The same rules apply to OUT.corrupt and OUT.undecoded.
An output that is not on this machine's file system (s3a://, hdfs://) cannot be an input.

    mode overwrite                           OUT                     OUT.kcli-new      OUT.kcli-old
    ---------------------------------------  ----------------------  ----------------  ----------------------------------
    while the job runs                       as before               written           -
    the job fails                            as before               removed           -
    the job succeeds                         renamed: OUT.kcli-old   renamed: OUT      removed
    a crash between the two renames          missing                 complete          renamed to OUT by the next run

A job fails with its first failed task. Tasks that run at that time are killed, which takes a moment, and may make OUT anew
after Spark has cleaned it: what a failed job leaves is removed when they have ended.

If OUT is a symbolic link, this is done to the directory that it names, and the link stays.
With spark.sql.sources.partitionOverwriteMode=dynamic Spark itself stages the partitions that it replaces, and writes to OUT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kcli.format.file_names import FileKind, parse_file_name
from kcli.log.disk.os_disk import OsDisk
from kcli.spark.run_commit import STATE_DIRECTORY, has_state
from kcli.spark.session import await_tasks

CORRUPT_SUFFIX, UNDECODED_SUFFIX = ".corrupt", ".undecoded"
NEW_SUFFIX, OLD_SUFFIX = ".kcli-new", ".kcli-old"
# Where Spark's tasks write until their job succeeds (Hadoop: FileOutputCommitter).
_UNFINISHED = "/_temporary"
_WRITTEN = tuple(first + second for first in ("", CORRUPT_SUFFIX, UNDECODED_SUFFIX) for second in ("", NEW_SUFFIX, OLD_SUFFIX))


class OutputError(ValueError):
    """An output that must not be written to; the message is one sentence."""


def check_output(out: str, mode: str, inputs: Iterable[str], *, incremental: bool = False) -> None:
    """Check that writing to `out` changes none of the input paths, and that `mode` allows what exists at `out`.

    Raises OutputError, OSError as the file system does.
    """
    read = [(given, _identity(given), _ancestors(given)) for given in inputs]
    named = out.rstrip("/") or out
    for path in (place + suffix for place in dict.fromkeys((named, _target(named))) for suffix in _WRITTEN):
        local = local_path(path)
        if local is None:
            continue
        written, above = _identity(local), _ancestors(local)
        for given, identity, ancestors in read:
            relation = None
            if identity is not None and written == identity:
                relation = "is"
            elif identity in above:
                relation = "is in"
            elif written in ancestors:
                relation = "contains"
            if relation is not None:
                raise OutputError(
                    f"the output {path} {relation} the input {given}: Kafka's files would be changed or deleted; "
                    "choose another directory"
                )
        found = kafka_file(local)
        if found is not None:
            raise OutputError(f"the output {path} contains a file of Kafka, {found}; choose another directory")
    local = local_path(out)
    if local is None or incremental:
        return
    if mode != "ignore" and has_state(OsDisk(), local):
        raise OutputError(
            f"the output {out} is written by incremental runs, whose state is in {Path(local, STATE_DIRECTORY)}; "
            "add --incremental, or write to another directory"
        )
    if mode == "error" and Path(local).exists():
        raise already_exists(out)


def holds_data(out: str) -> bool:
    """Return True if an output on this machine's file system has files that Spark would read."""
    local = local_path(out)
    if local is None or not Path(local).is_dir():
        return False
    return any(not path.name.startswith((".", "_")) for path in Path(local).iterdir())


def check_saved_file(option: str, path: str, out: str, inputs: Iterable[str]) -> None:
    """Check that the file of an option (--save-schema, --report) can be written and is not in an input or the output.

    Raises OutputError, OSError as the file system does.
    """
    if _has_name_of_kafka(Path(path).resolve()):
        raise OutputError(f"{option} {path} has the name of a file of Kafka; choose another name")
    if not Path(path).parent.is_dir() or Path(path).is_dir():
        raise OutputError(f"{option} {path} is a directory or in a directory that does not exist; choose another path")
    for directory in (*inputs, *filter(None, [local_path(out)])):
        identity = _identity(directory)
        if identity is not None and identity in {*_ancestors(path), _identity(path)}:
            raise OutputError(f"{option} {path} is in {directory}, which must not change; choose another path")


def already_exists(out: str) -> OutputError:
    """Return the error for an output that exists, with the modes that accept it."""
    return OutputError(
        f"the output {out} already exists; --mode overwrite replaces it, append adds to it, ignore leaves it as it is"
    )


def local_path(path: str) -> str | None:
    """Return the path of an output on this machine's file system, `file:` removed; None for an output elsewhere."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):(//[^/]*)?", path)
    if found is None:
        return path
    return path[found.end() :] if found[1].lower() == "file" else None


def _target(path: str) -> str:
    """Return the path that a symbolic link of this machine names, so that the link stays and its target is replaced."""
    local = local_path(path)
    return str(Path(local).resolve()) if local is not None and Path(local).is_symlink() else path


def kafka_file(directory: str) -> str | None:
    """Return the first file in or below a directory that has the name of a file of Kafka, or None."""
    for path in Path(directory).rglob("*"):
        if _has_name_of_kafka(path):
            return str(path)
    return None


def _has_name_of_kafka(path: Path) -> bool:
    parsed = parse_file_name(path.name)
    return parsed.kind is not FileKind.UNKNOWN and (parsed.base_offset is not None or path.name == parsed.kind.value)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode at a path, by which directories are compared; None if nothing exists there."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _ancestors(path: str) -> set[tuple[int, int]]:
    """Return the identities of the directories above a path, with symbolic links followed."""
    return {identity for parent in Path(path).resolve().parents if (identity := _identity(str(parent))) is not None}


# ------------------------------------------------------------------------------------------------------------ replacing


class OutputDirectory:
    """One output directory on any file system that Spark can write to."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self.path = _target(path.rstrip("/") or path)
        self._spark = spark
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(self.path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self._recover()

    def exists(self, suffix: str = "") -> bool:
        """Return True if the directory, or its name with a suffix, exists."""
        return bool(self._files.exists(self._path(self.path + suffix)))

    def remove(self, suffix: str = "") -> None:
        """Remove the directory, or its name with a suffix, with its content."""
        self._files.delete(self._path(self.path + suffix), True)

    def write(self, mode: str, write: Callable[[str, str], None]) -> bool:
        """Call `write(path, mode)`; a failure leaves the old output. Return False if that exists and the mode is ignore."""
        existed = self.exists()
        if existed and mode == "ignore":
            return False
        if existed and mode == "error":
            raise already_exists(self.path)
        if existed and mode == "overwrite" and not self._replaces_partitions():
            self._replace(write)
            return True
        was_written = self.exists(_UNFINISHED)
        try:
            write(self.path, mode)
        except BaseException:
            with suppress(Py4JError):  # the JVM may be what has failed
                await_tasks(self._spark)
                if not was_written:
                    self.remove(_UNFINISHED)
                if not existed and self.exists() and not len(self._files.listStatus(self._path(self.path))):
                    self.remove()
            raise
        return True

    def _replaces_partitions(self) -> bool:
        return str(self._spark.conf.get("spark.sql.sources.partitionOverwriteMode", "static")).lower() == "dynamic"

    def _replace(self, write: Callable[[str, str], None]) -> None:
        self.remove(NEW_SUFFIX)
        try:
            write(self.path + NEW_SUFFIX, "error")
        except BaseException:
            with suppress(Py4JError):
                await_tasks(self._spark)
                self.remove(NEW_SUFFIX)
            raise
        self.remove(OLD_SUFFIX)
        self._rename("", OLD_SUFFIX)
        self._rename(NEW_SUFFIX, "")
        self.remove(OLD_SUFFIX)

    def _recover(self) -> None:
        """Restore the old output after a crash between the two renames."""
        if not self.exists() and self.exists(OLD_SUFFIX):
            self._rename(OLD_SUFFIX, "")

    def _rename(self, source: str, target: str) -> None:
        if not self._files.rename(self._path(self.path + source), self._path(self.path + target)):
            raise OSError(f"cannot rename {self.path}{source} to {self.path}{target}")
