"""The commit of an incremental run: its files and the state of its output become visible together, in spite of crashes.

    OUT/_kcli_state/   content
    -----------------  ----------------------------------------------------------------------------------------------
    lock               a run holds a POSIX record lock on this file, which is never removed
    state.json         the state after all runs so far (kcli.spark.run_state)
    pending.json       the state after the run whose files are being moved
    staging/FOLDER/    the files of the current run; those of a side table are in OUT.corrupt/_kcli_state/staging/FOLDER/

The state is inside of OUT, so that both are moved, copied, linked to and deleted together, and that a staged file is on the
file system of its target even if OUT is a mount point. Readers ignore names that begin with `_`. kcli refuses to replace such
an output (kcli.spark.parquet_output).

    step                                                          after a crash following it, the next run
    ------------------------------------------------------------  ---------------------------------------------------
    1  Spark writes files to staging/                             removes staging/
    2  they are flushed to the device                             removes staging/
    3  pending.json is written, atomically                        continues with step 4
    4  each file is renamed into OUT, with the run's number at    continues with step 4
       the start of its name
    5  pending.json is renamed to state.json                      continues with step 6
    6  staging/ is removed                                        removes staging/

Step 3 is the commit. Step 4 may be repeated, since a file that was renamed is no longer in staging/. A reader may see some of a
run's files before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from kcli.log.disk.port import Disk, join_path, parent_path
from kcli.spark.run_state import ROWS, RunFile, RunState, RunStateError, decode_state, encode_state

STATE_DIRECTORY = "_kcli_state"
STATE_FILE, PENDING_FILE, LOCK_FILE, STAGING = "state.json", "pending.json", "lock", "staging"
MAX_STATE_BYTES = 256 * 1024 * 1024


class RunError(ValueError):
    """A run cannot write to its output; the message says what to do."""


class Recovery(NamedTuple):
    """The recovery from an interrupted run: the number of the run that was completed, or whether staged files were removed."""

    completed_run: int | None
    removed_staging: bool


def has_state(disk: Disk, out: str) -> bool:
    """Return True if a directory is the output of incremental runs."""
    folder = join_path(out, STATE_DIRECTORY)
    return any(disk.exists(join_path(folder, name)) for name in (STATE_FILE, PENDING_FILE))


def state_of(disk: Disk, out: str, suffixes: tuple[str, ...]) -> RunState | None:
    """Return the state of an output that is not locked, also that of a run whose commit was interrupted; None if it has none.

    Raises RunError, OSError.
    """
    paths = (join_path(join_path(out, STATE_DIRECTORY), name) for name in (PENDING_FILE, STATE_FILE))
    return next((found for path in paths if (found := _read_state(disk, path, suffixes)) is not None), None)


def _read_state(disk: Disk, path: str, suffixes: tuple[str, ...]) -> RunState | None:
    if not disk.exists(path):
        return None
    try:
        return decode_state(disk.read_file(path, MAX_STATE_BYTES), suffixes)
    except RunStateError as error:
        raise RunError(f"cannot read {path}: {error}; restore it, or write to a new directory") from None


class RunOutput:
    """An output directory and its side tables, locked for one run; `suffixes` are those of all tables, ROWS among them."""

    def __init__(self, disk: Disk, out: str, suffixes: tuple[str, ...]) -> None:
        """Take the lock. Raises RunError if another run has it, OSError as the disk does."""
        self._disk = disk
        self._out = out
        self._suffixes = suffixes
        self._state_path = join_path(self._folder(ROWS), STATE_FILE)
        self._pending_path = join_path(self._folder(ROWS), PENDING_FILE)
        for suffix in suffixes:
            self._check_directory(self.directory(suffix))
        disk.make_directory(self._folder(ROWS))
        self._check_device(ROWS, self._folder(ROWS))
        lock = join_path(self._folder(ROWS), LOCK_FILE)
        release = disk.lock(lock)
        if release is None:
            raise RunError(f"another run writes to {out} and holds the lock {lock}; wait until it ends")
        self._release: Callable[[], None] = release

    def close(self) -> None:
        """Release the lock."""
        self._release()

    def directory(self, suffix: str) -> str:
        """Return the path of a table's directory."""
        return self._out + suffix

    def staging(self, suffix: str) -> str:
        """Return the path of the directory of a table's staged files."""
        return join_path(self._folder(suffix), STAGING)

    def _folder(self, suffix: str) -> str:
        return join_path(self.directory(suffix), STATE_DIRECTORY)

    # ------------------------------------------------------------------------------------------------------- beginning

    def read_state(self) -> RunState | None:
        """Return the state, None before the first run. Raises RunError if it cannot be read, OSError."""
        return self._read(self._state_path)

    def recover(self) -> Recovery:
        """Complete a run that was interrupted after its commit, or remove staged files. Raises RunError, OSError."""
        pending = self._read(self._pending_path)
        if pending is not None:
            state = self.read_state()
            if pending.run != (1 if state is None else state.run + 1):
                raise RunError(
                    f"{self._pending_path} is of run {pending.run}, but {self._state_path} of run {state.run if state else 0}: "
                    f"they do not belong together; restore {self._folder(ROWS)}, or write to a new directory"
                )
            self._complete(pending)
            return Recovery(pending.run, removed_staging=False)
        return Recovery(None, self._remove_staging())

    def check_is_new(self) -> None:
        """Check that the output of a first run has no files. Raises RunError, OSError."""
        for suffix in self._suffixes:
            directory = self.directory(suffix)
            names = self._disk.list_directory(directory) if self._disk.exists(directory) else []
            if any(name != STATE_DIRECTORY for name in names):
                raise RunError(
                    f"the output {directory} is not empty and has no state of incremental runs, so it is not known which "
                    "records it has; choose a directory that is empty or does not exist, or remove this one"
                )

    def _check_directory(self, path: str) -> None:
        if self._disk.exists(path) and not self._disk.is_directory(path):
            raise RunError(f"the output {path} exists and is not a directory; choose another path")

    def _read(self, path: str) -> RunState | None:
        return _read_state(self._disk, path, self._suffixes)

    # ---------------------------------------------------------------------------------------------------------- commit

    def staged_files(self, suffix: str) -> list[str]:
        """Return the paths of a table's staged files of data, relative to the table's directory. Raises OSError."""
        staging = self.staging(suffix)
        return sorted(self._data_files(staging, f"{STATE_DIRECTORY}/{STAGING}")) if self._disk.exists(staging) else []

    def _data_files(self, directory: str, relative: str) -> Iterable[str]:
        for name in self._disk.list_directory(directory):
            # As in Spark, the directory of a partition column whose name begins with _ is data.
            if name.startswith((".", "_")) and "=" not in name:
                continue
            path = join_path(directory, name)
            if self._disk.is_directory(path):
                yield from self._data_files(path, f"{relative}/{name}")
            else:
                yield f"{relative}/{name}"

    @staticmethod
    def target(suffix: str, staged: str, run: int) -> RunFile:
        """Return the target of a staged file: its path below staging/FOLDER/, with the run's number before its name."""
        below = staged.removeprefix(f"{STATE_DIRECTORY}/{STAGING}/").partition("/")[2]
        folder, slash, name = below.rpartition("/")
        return RunFile(suffix, staged, f"{folder}{slash}run-{run:08d}-{name}")

    def commit(self, state: RunState) -> None:
        """Make the files of `state` and the state itself visible: steps 2 to 6. Raises RunError, OSError."""
        for file in state.files:
            self._check_device(file.suffix, self._path(file.suffix, file.file))
        for file in state.files:
            self._disk.flush(self._path(file.suffix, file.staged))
        self._flush_directories((file.suffix, file.staged) for file in state.files)
        self._disk.write_file(self._pending_path, encode_state(state))
        self._complete(state)

    def _complete(self, pending: RunState) -> None:
        for file in pending.files:
            staged, target = self._path(file.suffix, file.staged), self._path(file.suffix, file.file)
            if self._disk.exists(staged):
                self._disk.make_directory(parent_path(target))
                self._disk.rename(staged, target)
            elif not self._disk.exists(target):
                raise RunError(
                    f"the file {target} of the interrupted run {pending.run} is missing, and so is the staged file {staged}; "
                    f"restore one of them, or remove {self._pending_path} and all files run-{pending.run:08d}-*, and run the "
                    "command again"
                )
        self._flush_directories((file.suffix, file.file) for file in pending.files)
        self._disk.rename(self._pending_path, self._state_path)
        self._disk.flush_directory(self._folder(ROWS))
        self._remove_staging()

    def _path(self, suffix: str, relative: str) -> str:
        return join_path(self.directory(suffix), relative)

    def _flush_directories(self, files: Iterable[tuple[str, str]]) -> None:
        """Flush the directories of the files and those above, up to the one that contains the table's directory."""
        directories: set[str] = set()
        for suffix, file in files:
            path, top = self._path(suffix, file), parent_path(self.directory(suffix))
            while path not in (top, "/", "."):
                path = parent_path(path)
                directories.add(path)
        for directory in sorted(directories, reverse=True):
            self._disk.flush_directory(directory)

    def _check_device(self, suffix: str, path: str) -> None:
        """Check that a staged file can be renamed to `path`. Raises RunError, OSError."""
        while not self._disk.exists(path):
            path = parent_path(path)
        if self._disk.device(path) != self._disk.device(self.directory(suffix)):
            raise RunError(
                f"{path} is on another file system than {self.directory(suffix)}, so files cannot be renamed from one to the "
                "other; remove the link or the mount, or choose another output"
            )

    # --------------------------------------------------------------------------------------------------------- removing

    def _remove_staging(self) -> bool:
        """Remove all staged files; return True if there were any."""
        found = False
        for suffix in self._suffixes:
            if self._disk.exists(self.staging(suffix)):
                self._remove(self.staging(suffix))
                found = True
        return found

    def _remove(self, path: str) -> None:
        """Remove a directory with its content, or a file; of a symbolic link the link itself."""
        try:
            self._disk.remove(path)
        except (IsADirectoryError, PermissionError):
            for name in self._disk.list_directory(path):
                self._remove(join_path(path, name))
            self._disk.remove_directory(path)

    def discard(self) -> None:
        """Remove the staged files of a run that failed before its commit. Raises OSError."""
        if not self._disk.exists(self._pending_path):
            self._remove_staging()
