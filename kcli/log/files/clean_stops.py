"""Whether a log directory is as a clean stop left it, though a repair has put its .kafka_cleanshutdown aside.

After a clean stop one checkpoint that is ahead of its log is wrong; after a crash it is the trace of lost records
(kcli.inspect.verification.evidence). The mark of the stop does not come back where a repair lost records, or died, or where
only some partitions were repaired. The manifest of the quarantine therefore has the digests of the offset checkpoints, as they
were at the stop and as the repair leaves them. As long as each checkpoint has one of these, it is no trace of a crash: a broker
that has run since has moved none of them, though it writes recovery points every minute and high watermarks every five seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.quarantine import CheckpointDigests, read_clean_stops

_CHECKPOINTS = (
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)
_MISSING = ""


def is_as_stopped(disk: Disk, folder: str, log_directory: str) -> bool:
    """True where a quarantine at `folder` says of the checkpoints as they are now that the directory was stopped cleanly."""
    stops = read_clean_stops(disk, folder, log_directory)
    if not stops:
        return False
    try:
        now = checkpoint_digests([disk], log_directory)
    except OSError:
        return False
    return any(all(digests[0] in stop.get(name, ()) for name, digests in now.items()) for stop in stops)


def checkpoint_digests(disks: Sequence[Disk], log_directory: str) -> CheckpointDigests:
    """Return the digests of the offset checkpoints by name, one as each of the disks shows it. Raises OSError."""
    return {kind.value: [_digest(disk, join_path(log_directory, kind.value)) for disk in disks] for kind in _CHECKPOINTS}


def _digest(disk: Disk, path: str) -> str:
    if not disk.exists(path):
        return _MISSING
    return hashlib.sha256(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).hexdigest()
