"""Files that a recovery would write anew though they are sound: a repair leaves them as they are.

Kafka's recovery rebuilds every index and snapshot from what is in the log now. What a running broker wrote knows more: index
entries where it looked (not where a recovery counts), aborted transactions whose records the cleaner has taken since,
producers whose batches it has. So each such file is put back, the outcome is verified, and only the files about which the
verifier finds something are taken from the recovery after all.
"""

from __future__ import annotations

from kcli.format.file_names import FileKind, FileState, parse_file_name
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.findings import Finding
from kcli.inspect.verification.partitions import verify_partition
from kcli.log.log_directory import base_name, read_partition
from kcli.log.planned_disk import REMOVE, TRUNCATE, WRITE, Change, PlannedDisk
from kcli.log.planned_file import Content

_FOLLOW_FROM_THE_LOG = (
    FileKind.INDEX,
    FileKind.TIME_INDEX,
    FileKind.TXN_INDEX,
    FileKind.PRODUCER_SNAPSHOT,
    FileKind.LEADER_EPOCH_CHECKPOINT,
)
_LOG_SUFFIX = ".log"
_INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")


def keep_sound_files(planned: PlannedDisk, directory: str, log_start_offset: int) -> None:
    """Take the changes of files that are sound out of the plan for a partition's directory. Raises OSError."""
    rebuilt: dict[str, Content | None] = {}
    for change in planned.changes():
        if _is_of_interest(change):
            rebuilt[change.path] = planned.content(change.path) if planned.exists(change.path) else None
    if not rebuilt:
        return
    for path in rebuilt:
        planned.restore(path)
    # Clean: zeros that a broker had allocated ahead are no entries for it then.
    options = PartitionOptions(is_clean=True, log_start_offset=log_start_offset)
    result = verify_partition(planned, read_partition(planned, directory), options)
    unsound = {_file_of(finding) for finding in result.findings if finding.severity != INFO}
    for path in unsound.intersection(rebuilt):
        content = rebuilt[path]
        if content is None:
            planned.remove(path)
        else:
            planned.put(path, content)


def _file_of(finding: Finding) -> str:
    """The file that is at fault; an entry that an index lacks is found at its place in the segment."""
    suffix = "." + finding.code.partition("-")[0]
    if suffix in _INDEX_SUFFIXES and finding.file.endswith(_LOG_SUFFIX):
        return finding.file.removesuffix(_LOG_SUFFIX) + suffix
    return finding.file


def _is_of_interest(change: Change) -> bool:
    name = parse_file_name(base_name(change.path))
    replaces = change.kind in (REMOVE, TRUNCATE) or (change.kind == WRITE and change.replaces)
    return replaces and name.kind in _FOLLOW_FROM_THE_LOG and name.state is FileState.CURRENT and name.is_regular
