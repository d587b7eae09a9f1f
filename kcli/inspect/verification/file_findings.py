"""Findings in all files other than the logs; finding_kinds explains the columns."""

from __future__ import annotations

from kcli.inspect.verification.finding_kinds import ERROR, INFO, WARNING, FindingKind

_NEVER = "Nothing: a broker does not check this at start."
_TRUSTED = "After a clean stop it trusts the file. After a crash it rebuilds the file from the log."
_LAST_SEGMENT = " With a wrong last entry it treats the last segment as empty."
_PREALLOCATED = "After a clean stop it reads the zeros as entries. After a crash it rebuilds the file of the active segment."
_NO_START = "It does not start."
_OFFLINE = "It takes the whole log directory offline, and does not start if it has no other."
_STRAY = "It renames the partition to *-stray and creates an empty one."

_REBUILDS = "It rebuilds the file from the log."
_REMOVES = "It removes the file."
_NOTHING = "Nothing: the file does no harm."

KINDS = (
    # ------------------------------------------------------------------------------------------------ reading
    FindingKind(
        "file-unreadable",
        ERROR,
        "A file or directory cannot be read: there is no permission, the disk fails, or a directory has the name of a file.",
        _OFFLINE,
        "It rebuilds an index that is a pipe or a device. The rest is left for you: correct the permissions, replace the disk, "
        "or move away a directory that has the name of a file, then repair.",
    ),
    FindingKind(
        "file-shrank",
        WARNING,
        "A file became shorter or vanished while it was read.",
        _NEVER,
        "Left for you: stop the broker, or what else writes to the directory, and verify again.",
    ),
    FindingKind(
        "findings-cut",
        INFO,
        "A file has more findings of one kind than are listed.",
        _NEVER,
        "It treats all of them, also those that are not listed.",
    ),
    # ------------------------------------------------------------------------------------------------ indexes
    FindingKind(
        "index-missing",
        WARNING,
        "A segment has no .index file.",
        "It recovers the segment: it reads all of it, cuts it at the first bad batch, and rebuilds its indexes.",
        _REBUILDS,
    ),
    FindingKind(
        "index-size", WARNING, "An .index file ends inside an entry, or is larger than a segment needs.", _TRUSTED, _REBUILDS
    ),
    FindingKind("index-order", ERROR, "The entries of an .index file do not ascend.", _TRUSTED + _LAST_SEGMENT, _REBUILDS),
    FindingKind(
        "index-mismatch",
        ERROR,
        "An entry of an .index file does not point at the batch that contains its offset.",
        _TRUSTED + _LAST_SEGMENT,
        _REBUILDS,
    ),
    FindingKind(
        "index-zero-tail",
        WARNING,
        "An .index file still has its preallocated size although its segment is no longer active.",
        _PREALLOCATED,
        _REBUILDS,
    ),
    FindingKind(
        "index-empty",
        INFO,
        "An .index file has no entry although its segment is large.",
        "Nothing after a clean stop: to find an offset, a broker reads the segment from its start.",
        _NOTHING,
    ),
    FindingKind("index-orphan", WARNING, "An index file has no .log file.", "It removes the file.", _REMOVES),
    FindingKind(
        "timeindex-missing",
        WARNING,
        "A segment has no .timeindex file.",
        "It creates an empty one. Searches by time then read the log.",
        _REBUILDS,
    ),
    FindingKind(
        "timeindex-size",
        WARNING,
        "A .timeindex file ends inside an entry, or is larger than a segment needs.",
        _TRUSTED,
        _REBUILDS,
    ),
    FindingKind("timeindex-order", ERROR, "The entries of a .timeindex file do not ascend.", _TRUSTED, _REBUILDS),
    FindingKind(
        "timeindex-mismatch",
        ERROR,
        "An entry of a .timeindex file does not have the largest timestamp up to its offset.",
        _TRUSTED + " Searches by time and retention are wrong.",
        _REBUILDS,
    ),
    FindingKind(
        "timeindex-zero-tail",
        WARNING,
        "A .timeindex file still has its preallocated size although its segment is no longer active.",
        _PREALLOCATED,
        _REBUILDS,
    ),
    FindingKind(
        "timeindex-behind",
        INFO,
        "The .timeindex file of a closed segment does not have the segment's largest timestamp.",
        "To find that time, it reads the end of the segment.",
        _NOTHING,
    ),
    FindingKind(
        "txnindex-size",
        WARNING,
        "A .txnindex file ends inside an entry.",
        "It ignores the torn entry. After a crash it rebuilds the file.",
        _REBUILDS,
    ),
    FindingKind(
        "txnindex-version",
        ERROR,
        "An entry of a .txnindex file has a version that does not exist.",
        "It does not start if the first of the two version bytes is above 0. Otherwise it reads the entry as version 0.",
        _REBUILDS,
    ),
    FindingKind(
        "txnindex-mismatch",
        ERROR,
        "An entry of a .txnindex file is not a transaction that was aborted in its segment.",
        _TRUSTED + " Until then read_committed consumers lose records.",
        _REBUILDS,
    ),
    FindingKind(
        "txnindex-missing-entry",
        ERROR,
        "An aborted transaction is missing in the .txnindex file of its segment.",
        _TRUSTED + " Until then read_committed consumers receive aborted records.",
        _REBUILDS,
    ),
    # ------------------------------------------------------------------------------------------------ producer snapshots
    FindingKind(
        "snapshot-corrupt",
        WARNING,
        "A producer snapshot cannot be read.",
        "It removes the snapshot, takes the one before, and reads the log from there.",
        "It rebuilds a snapshot of a segment's start or of the log's end from the log, and removes any other.",
    ),
    FindingKind(
        "snapshot-mismatch",
        ERROR,
        "A producer snapshot contradicts the batches before its offset.",
        "After a clean stop it trusts the newest snapshot. After a crash it trusts those before the recovery point.",
        "It rebuilds a snapshot of a segment's start or of the log's end from the log, and removes any other.",
    ),
    FindingKind(
        "snapshot-missing",
        WARNING,
        "A log has batches of producers and no snapshot.",
        "After a clean stop it begins without producers and forgets open transactions. After a crash it reads the log.",
        "It writes a snapshot of the log's end.",
    ),
    FindingKind(
        "snapshot-behind",
        INFO,
        "After a clean stop there is no producer snapshot of the end of the log.",
        "It takes the newest snapshot and reads the log from there.",
        "Nothing: a broker reads the rest from the log.",
    ),
    FindingKind(
        "snapshot-beyond-end",
        WARNING,
        "A producer snapshot has an offset after the end of the log.",
        "It removes the snapshot.",
        "It removes the snapshot. If the log once reached its offset, it keeps that end and names the lost offsets.",
    ),
    # ------------------------------------------------------------------------------------------------ checkpoints
    FindingKind(
        "checkpoint-corrupt",
        ERROR,
        "A checkpoint or another small file cannot be read.",
        _OFFLINE + " With a word in place of a number it does not start at all.",
        "It removes a checkpoint of the log directory, which a broker writes again. It rebuilds leader-epoch-checkpoint.",
    ),
    FindingKind(
        "recovery-point-beyond-end",
        ERROR,
        "The recovery point is after the end of the log: flushed records are missing.",
        "It lowers the recovery point to the end of the log.",
        "It lowers the recovery point. If the log once reached it, it keeps that end and names the lost offsets.",
    ),
    FindingKind(
        "high-watermark-beyond-end",
        WARNING,
        "The high watermark is after the end of the log.",
        "It lowers the high watermark to the end of the log.",
        "It sets the high watermark to the log start offset: no record counts as committed until a broker has run. If the log "
        "once reached it, it keeps that end and names the lost offsets.",
    ),
    FindingKind(
        "high-watermark-missing",
        INFO,
        "A log directory with partitions has no replication-offset-checkpoint file, so no high watermark is known.",
        "It starts with the log start offset as high watermark, and raises it once the replicas in sync have the records.",
        "Nothing: a broker writes the file again. Until then kcli compact cleans nothing without --assume-committed.",
    ),
    FindingKind(
        "log-start-beyond-end",
        ERROR,
        "The log start offset is after the end of the log.",
        "It deletes all segments of the partition and starts an empty one.",
        "It drops the log start offset: the log starts at its first segment. If the log once reached the offset, it keeps it.",
    ),
    FindingKind(
        "cleaner-offset-beyond-end",
        WARNING,
        "The checkpoint of the log cleaner is after the end of the log.",
        "The cleaner starts again at the start of the log.",
        "It drops the entry. The cleaner starts again at the start of the log.",
    ),
    FindingKind(
        "partition-missing",
        WARNING,
        "A checkpoint names a partition that has no directory here.",
        "It creates an empty replica and fetches the records from another broker, if there is one.",
        "Left for you: put the directory back, or let the broker fetch the records. Nothing is lost if the topic was deleted.",
    ),
    # ------------------------------------------------------------------------------------------------ names, leftovers
    FindingKind(
        "name-irregular",
        ERROR,
        "A file has the suffix of a segment file, but its name does not begin with 20 digits.",
        "It does not start if the name does not begin with a number. Otherwise it uses the number as base offset of a segment.",
        "It renames a log whose batches no other segment has. It removes any other.",
    ),
    FindingKind("file-unknown", INFO, "A file is not one that Kafka writes.", "It ignores the file.", _NOTHING),
    FindingKind(
        "leftover-deleted",
        INFO,
        "A file or directory is marked as deleted and still exists.",
        "It removes the file or directory.",
        "It removes the file if the partition needs a repair. A broker removes the rest.",
    ),
    FindingKind(
        "leftover-cleaned",
        WARNING,
        "The log cleaner, or the split of a segment, was interrupted and its output still exists.",
        "It removes the files.",
        "It removes the files. One that alone has its batches becomes the segment.",
    ),
    FindingKind(
        "leftover-swap",
        WARNING,
        "A cleaned or split segment was about to replace other segments.",
        "It removes the segments whose offsets the new one covers, and puts the new one in their place.",
        "It finishes the replacement if it was complete and the new segment is sound. Otherwise it removes the new segment if "
        "the old ones exist, or else repairs it.",
    ),
    FindingKind(
        "leftover-temporary",
        WARNING,
        "A temporary file exists: it was being written when the broker stopped.",
        "It ignores the file.",
        "It removes the file from a partition. With --like-kafka, and in the log directory itself, it is left for you.",
    ),
    FindingKind(
        "directory-name",
        ERROR,
        "A directory in a log directory does not have the name of a partition.",
        _NO_START,
        "Left for you: move the directory out of the log directory, or rename it to TOPIC-PARTITION.",
    ),
    FindingKind(
        "directory-stray",
        INFO,
        "A broker renamed the partition to *-stray, because the metadata did not place it here.",
        "It keeps the directory.",
        "Nothing: remove the directory when its records are no longer needed.",
    ),
    FindingKind(
        "partition-empty",
        INFO,
        "The directory of a partition has no segment.",
        "It starts an empty segment at the log start offset.",
        "Nothing, unless records-missing is found too.",
    ),
    # ------------------------------------------------------------------------------------------------ log directories
    FindingKind(
        "partition-duplicate",
        ERROR,
        "A partition exists twice in the log directories of one broker.",
        _NO_START,
        "Left for you: compare both with kcli describe, and move the older copy out of its log directory.",
    ),
    FindingKind(
        "partition-metadata-missing",
        ERROR,
        "A partition of a KRaft cluster has no partition.metadata file, and so no topic id.",
        _STRAY,
        "It restores the file if the metadata log is in the same log directory. Otherwise left for you: copy the file from "
        "another replica.",
    ),
    FindingKind(
        "partition-metadata-corrupt",
        ERROR,
        "A partition.metadata file cannot be read.",
        _OFFLINE + " With an empty file it fails at start.",
        "It restores the file if the metadata log is in the same log directory. Otherwise it removes the file, and "
        "partition-metadata-missing is left for you.",
    ),
    FindingKind(
        "topic-id-mismatch",
        ERROR,
        "partition.metadata has another topic id than the metadata of the cluster.",
        _STRAY,
        "Left for you: the records may be those of a deleted topic of the same name. Export what you need, then move the "
        "directory away.",
    ),
    FindingKind(
        "topic-unknown",
        WARNING,
        "The metadata of the cluster do not have the topic, or do not place the partition on this node.",
        "It renames the partition to *-stray.",
        "Left for you: export what you need, then move the directory away.",
    ),
    FindingKind(
        "meta-properties-missing",
        ERROR,
        "A log directory has no meta.properties file.",
        _NO_START + " The same is true if the other log directories of the node have the file.",
        "Left for you: write version=1, the cluster.id and node.id of the node's other log directories, and the directory.id "
        "that kcli describe --show brokers reads from the metadata log.",
    ),
    FindingKind(
        "meta-properties-corrupt",
        ERROR,
        "meta.properties cannot be read.",
        _NO_START,
        "Left for you: correct the line that the message names.",
    ),
    FindingKind(
        "meta-properties-differ",
        INFO,
        "The given log directories belong to different clusters or nodes.",
        "It does not start with both. Each of them may be sound.",
        "Nothing: it repairs each log directory by itself.",
    ),
    FindingKind(
        "directory-id-twice",
        ERROR,
        "Two log directories have the same directory id: one is a copy of the other.",
        _NO_START,
        "Left for you: remove the copy from log.dirs.",
    ),
    FindingKind(
        "metadata-snapshot-incomplete",
        ERROR,
        "A KRaft snapshot has no header or no footer.",
        "It reads the snapshot as far as possible. The metadata are wrong, or the broker does not start.",
        "Left for you: copy the snapshot from another controller.",
    ),
    FindingKind(
        "clean-shutdown-corrupt",
        INFO,
        ".kafka_cleanshutdown has no readable broker epoch.",
        "It treats the stop as a clean one.",
        _NOTHING,
    ),
    FindingKind(
        "clean-shutdown-untrue",
        WARNING,
        "Records are missing, and with .kafka_cleanshutdown a broker reports that its replicas have all records.",
        "It does not recover the log, and reports to the controller that no record is missing.",
        "It removes the file, and keeps it in the quarantine.",
    ),
    FindingKind(
        "clean-shutdown-with-holes",
        INFO,
        ".kafka_cleanshutdown exists, and offsets are missing inside of a log. A broker that ran and stopped on a repaired log "
        "leaves both; a segment that was deleted after the stop looks the same.",
        "It does not recover the log, and reports to the controller that no record is missing.",
        "It removes the file, and keeps it in the quarantine.",
    ),
    FindingKind(
        "unclean-shutdown",
        INFO,
        "The log directory has no .kafka_cleanshutdown: the broker was not stopped cleanly, or a repair removed the file.",
        "It recovers all segments from the recovery point on.",
        "Nothing: a repair never makes a directory count as cleanly shut down.",
    ),
    FindingKind(
        "directory-live",
        INFO,
        "A running broker uses the log directory. Its active segments and preallocated indexes are not checked.",
        "It is running.",
        "It refuses to run: stop the broker first.",
    ),
)
