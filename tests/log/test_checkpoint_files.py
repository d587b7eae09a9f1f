"""Protects checkpoints at a stop: what is written last is what the file has, whatever an earlier write was about to do."""

from __future__ import annotations

from pathlib import Path

from kcli.format.file_names import FileKind
from kcli.log.disk.flush_request import begin_flushes, replace_files
from kcli.log.disk.os_disk import OsDisk
from kcli.log.managing.log_dir import OffsetCheckpointFile


def no_line(line: str) -> None:
    raise AssertionError(line)


def test_a_write_that_is_overtaken_by_the_last_one_ends_without_effect(tmp_path: Path) -> None:
    """Its temporary file is gone by then: that is no failure of the disk, and the log directory stays online."""
    errors: list[OSError] = []
    for is_flushed in (True, False):
        file = OffsetCheckpointFile(OsDisk(), str(tmp_path), FileKind.RECOVERY_POINT_CHECKPOINT)
        request = file.write({("t", 0): 5}, errors.append)
        assert request is not None
        file.write_now({("t", 0): 7})
        error = None if is_flushed else FileNotFoundError(2, "No such file or directory")
        assert request.done(error) is None
        assert errors == [] and file.read(no_line) == {("t", 0): 7}
        following = file.write({("t", 0): 9}, errors.append)
        while following is not None:
            following = following.done(None)
        assert file.read(no_line) == {("t", 0): 9} and not list(tmp_path.glob("*.tmp"))


def test_the_bytes_of_a_stop_overtake_a_write_that_is_in_progress(tmp_path: Path) -> None:
    """Both have the same temporary file, which the stop renames itself when it is flushed."""
    errors: list[OSError] = []
    file = OffsetCheckpointFile(OsDisk(), str(tmp_path), FileKind.RECOVERY_POINT_CHECKPOINT)
    request = file.write({("t", 0): 5}, errors.append)
    data = file.last_bytes({("t", 0): 5})
    assert request is not None and data is not None, "the first write has not ended"
    following = begin_flushes(replace_files(OsDisk(), {file.path: data}))
    assert following is not None and request.done(None) is None
    assert not Path(file.path).exists()
    while following is not None:
        following = following.done(None)
    assert file.read(no_line) == {("t", 0): 5} and not list(tmp_path.glob("*.tmp")) and errors == []
    assert file.last_bytes({("t", 0): 5}) is None
