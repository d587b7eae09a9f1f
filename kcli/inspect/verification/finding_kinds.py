"""The columns of the tables of findings: what can be wrong in a log directory, each kind with a code that does not change.

    severity  meaning                                                                           exit code of verify
    --------  --------------------------------------------------------------------------------  -------------------
    error     records, offsets or transactions are lost, hidden or wrong, or no broker starts   1; 3 for HOLES alone
    warning   a broker repairs it or can work with it; something was lost or left               1
    info      good to know; a sound directory may have it                                       0

"At start" is how Apache Kafka 4.3 loads a log. "After a crash" is a start without .kafka_cleanshutdown: the broker recovers the
segments from the recovery point on. "After a clean stop" is a start with that file. What a repair does is what
`kcli verify --repair` does without --like-kafka; "left for you" is what it does not change.

docs/findings.md is generated from the two tables, LOG_KINDS and FILE_KINDS.
"""

from __future__ import annotations

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (ERROR, WARNING, INFO)
# The errors that report missing offsets and no damage: a repair cannot restore the records.
HOLES = ("segment-gap", "offset-hole")


class FindingKind(NamedTuple):
    """One kind: code, severity, meaning, what a Kafka broker does at start, what a repair does or leaves."""

    code: str
    severity: str
    meaning: str
    broker_does: str
    repair_does: str

    @property
    def to_do(self) -> str:
        """What is left for the operator, as sentences: the part of `repair_does` after "left for you:"."""
        _, found, after = self.repair_does.partition("eft for you: ")
        return after[:1].upper() + after[1:] if found else self.repair_does


# --- findings in batches, offsets, leader epochs and producers

_UNREAD = "Nothing after a clean stop: a broker does not read the batches. "
_CUT = _UNREAD + "After a crash it cuts the log there and removes all later batches and segments."
_NEVER = "Nothing: a broker does not check this at start."
_FAILS = _NEVER + " Consumers fail at the batch."
_CLEANER_FAILS = _NEVER + " Consumers and the log cleaner fail at the batch."

_REMOVES = "It removes the batch, keeps the sound batches before and after it, and names the lost offsets."
_CORRECTS = "It corrects a header field whose value follows from the rest of the log. Otherwise it removes the batch "
_CORRECTS += "and names the lost offsets."
_SOUND_CRC = "Left for you: the batches have right CRCs. If another replica differs, remove this one and let Kafka copy it."
_HOLE = "Left for you: the records cannot be restored from this directory. If another replica has them, remove this one and "
_HOLE += "let Kafka copy it."

LOG_KINDS = (
    # ------------------------------------------------------------------------------------------------ batches
    FindingKind(
        "log-torn-tail",
        ERROR,
        "A segment ends with too few bytes for a batch.",
        "After a clean stop it appends after these bytes, or treats the last segment as empty if the index points at them. "
        "After a crash it cuts them off.",
        "It cuts the bytes off and names the lost offsets, as far as they are known.",
    ),
    FindingKind(
        "log-zero-tail",
        ERROR,
        "A segment ends with zeros: the space was preallocated, or the data never reached the disk.",
        "After a clean stop it appends after up to 16 zeros, and does not start if there are more. After a crash it cuts them "
        "off.",
        "It cuts the zeros off. If the log once had batches there, it names the lost offsets.",
    ),
    FindingKind(
        "batch-size", ERROR, "A batch has an impossible size, or one that goes beyond the end of the file.", _CUT, _CORRECTS
    ),
    FindingKind(
        "batch-magic",
        ERROR,
        "A batch has a message format that does not exist: only 0, 1 and 2 do.",
        "Nothing if the format is 3 or above: a broker reads the batch as format 2. If it is below 0, a broker cuts the log "
        "there after a crash.",
        _CORRECTS,
    ),
    FindingKind(
        "batch-crc",
        ERROR,
        "The CRC of a batch does not match its bytes.",
        _CUT,
        _REMOVES + " It corrects a CRC with one wrong bit.",
    ),
    FindingKind(
        "batch-header",
        ERROR,
        "A batch has an impossible header: a negative offset, delta or number of records, more records than offsets, or "
        "the last offset 2^63-1.",
        _FAILS,
        _CORRECTS,
    ),
    FindingKind(
        "batch-attributes",
        WARNING,
        "A batch has attribute bits without a meaning.",
        _NEVER,
        "Left for you: nothing needs to be done, because brokers and consumers ignore these bits.",
    ),
    FindingKind("batch-codec", ERROR, "A batch is compressed with a codec that does not exist.", _FAILS, _REMOVES),
    FindingKind("batch-inflate", ERROR, "The compressed records of a batch cannot be decompressed.", _CLEANER_FAILS, _REMOVES),
    FindingKind(
        "batch-inflate-limit",
        ERROR,
        "The compressed records of a batch decompress to more bytes than a broker or consumer can hold.",
        _CLEANER_FAILS,
        _REMOVES,
    ),
    FindingKind(
        "batch-records",
        ERROR,
        "The records of a batch cannot be parsed, or they do not end at the end of the batch.",
        _CLEANER_FAILS,
        _REMOVES,
    ),
    FindingKind(
        "record-offset",
        ERROR,
        "The offsets of the records in a batch do not ascend, or are outside of the batch's own range.",
        _NEVER + " Consumers skip or repeat records.",
        _REMOVES,
    ),
    FindingKind(
        "record-crc",
        ERROR,
        "A message inside of a compressed set of format 0 or 1 has a wrong CRC.",
        _NEVER + " Consumers that check the CRC fail at the message.",
        "Left for you: the set around the message has a right CRC. If another replica differs, remove this one and let Kafka "
        "copy it.",
    ),
    FindingKind(
        "batch-max-timestamp",
        WARNING,
        "The header of a batch has another largest timestamp than its records.",
        "After a crash it builds the time index from the wrong timestamp. Retention and searches by time are then wrong.",
        "Left for you: the CRC of the batch is right. Nothing needs to be done unless retention or searches by time go wrong.",
    ),
    FindingKind(
        "control-record",
        ERROR,
        "A control record cannot be read, or has a type that does not belong there.",
        "After a crash, or if the newest snapshot is older than the record, it cuts the log there or does not start.",
        "It removes a producer's control batch that cannot be read. Otherwise left for you: take the partition from another "
        "replica.",
    ),
    # ------------------------------------------------------------------------------------------------ offsets
    FindingKind(
        "offset-back",
        ERROR,
        "A batch begins at an offset that the log has already passed.",
        _UNREAD + "After a crash it empties the whole segment if it meets the batch at an index entry; otherwise nothing.",
        "It keeps the largest number of batches that agree with each other and removes the others. It corrects a base offset "
        "whose value follows from the rest of the log.",
    ),
    FindingKind(
        "offset-before-segment",
        ERROR,
        "A segment has an offset below the one in its name.",
        _UNREAD + "After a crash it does not start.",
        "It removes a copy of another segment and renames a segment whose batches belong elsewhere. It removes batches that "
        "contradict the rest of the log.",
    ),
    FindingKind(
        "offset-mismatch",
        ERROR,
        "The last batch begins after a gap, and its base offset contradicts the checkpoints and snapshots that have the end of "
        "the log. With another value, which one wrong field explains, they agree.",
        _NEVER + " Consumers read the records at wrong offsets.",
        "It corrects the base offset.",
    ),
    FindingKind(
        "offset-overflow",
        ERROR,
        "A segment has an offset that is more than 2147483647 above the one in its name.",
        "After a crash it splits the segment if this is the last batch; otherwise it does not start.",
        _CORRECTS,
    ),
    FindingKind(
        "offset-gap",
        INFO,
        "Offsets are missing inside a segment. The log cleaner may have removed them, because nothing shows the topic's "
        "cleanup.policy.",
        _NEVER,
        "Nothing: the records are not in the directory.",
    ),
    FindingKind(
        "offset-hole",
        ERROR,
        "Offsets are missing inside a segment, and the log cleaner did not remove them: records were lost, or a repair removed "
        "them.",
        _NEVER + " Consumers skip the gap.",
        _HOLE,
    ),
    FindingKind(
        "segment-gap",
        ERROR,
        "Offsets are missing before a segment, and nothing shows that the log was compacted. A segment may be lost. Or the "
        ".log of a segment is empty while its .timeindex is not.",
        "It accepts the gap. Consumers skip it.",
        _HOLE,
    ),
    FindingKind(
        "records-missing",
        ERROR,
        "The log ends before an offset that it once reached: records are lost, or a segment is missing.",
        "It starts, lowers its checkpoints, and gives the missing offsets to new records.",
        "It names the lost offsets. An empty segment begins at the old end of the log, so that no offset is given out twice. "
        "If another replica is in sync, the broker fetches the rest instead.",
    ),
    FindingKind(
        "segment-overlap",
        ERROR,
        "A segment begins at an offset that the segment before it still contains.",
        _NEVER,
        "It removes a copy of another segment. Otherwise it keeps the largest number of batches that agree with each other.",
    ),
    # ------------------------------------------------------------------------------------------------ leader epochs
    FindingKind(
        "leader-epoch-back",
        ERROR,
        "A batch has a lower leader epoch than a batch before it.",
        "Nothing. Followers may cut their logs at the wrong offset.",
        "It corrects a leader epoch that follows from the neighbouring batches. Otherwise left for you: take the partition "
        "from another replica.",
    ),
    FindingKind(
        "leader-epoch-mismatch",
        ERROR,
        "leader-epoch-checkpoint has another leader epoch for an offset than the batch there.",
        "It trusts the file. Followers may cut their logs at the wrong offset.",
        "It rebuilds the file from the batches.",
    ),
    FindingKind(
        "log-start-behind",
        INFO,
        "The log starts before the first leader epoch: the log start offset was lost from its checkpoint.",
        "It starts the log at its first segment. Records that were deleted can be read again.",
        "Nothing: it keeps the file. To delete the records again, use kafka-delete-records.sh.",
    ),
    FindingKind(
        "leader-epoch-missing",
        WARNING,
        "leader-epoch-checkpoint is missing, and the batches have leader epochs.",
        "After a clean stop it continues without leader epochs. After a crash it takes those of the recovered segments.",
        "It rebuilds the file from the batches.",
    ),
    FindingKind(
        "leader-epoch-order",
        WARNING,
        "The entries of leader-epoch-checkpoint do not ascend.",
        "It drops the entries that a later one contradicts.",
        "It rebuilds the file from the batches.",
    ),
    FindingKind(
        "leader-epoch-beyond-end",
        WARNING,
        "leader-epoch-checkpoint has an epoch that starts after the end of the log.",
        "It drops the entry.",
        "It rebuilds the file from the batches. It keeps the entry if the log once reached that offset.",
    ),
    # ------------------------------------------------------------------------------------------------ producers
    FindingKind(
        "producer-fields",
        ERROR,
        "The producer id, producer epoch, sequence and transaction flag of a batch contradict each other.",
        _NEVER,
        _SOUND_CRC,
    ),
    FindingKind(
        "producer-sequence-gap",
        WARNING,
        "The sequence of a producer jumps forward although no offset is missing.",
        _NEVER,
        "Left for you: nothing needs to be done if records of the producer before it are a known loss.",
    ),
    FindingKind("producer-sequence-back", WARNING, "The sequence of a producer goes back or repeats.", _NEVER, _SOUND_CRC),
    FindingKind(
        "producer-epoch-back",
        WARNING,
        "A batch has a lower producer epoch than a batch before it.",
        "It logs a warning.",
        _SOUND_CRC,
    ),
    FindingKind(
        "coordinator-epoch-back",
        WARNING,
        "A transaction marker has a lower coordinator epoch than one before it.",
        "It logs a message.",
        _SOUND_CRC,
    ),
    FindingKind(
        "transaction-mixed",
        ERROR,
        "A producer wrote a batch outside of a transaction while one was open.",
        "It does not start if it reads the batch: after a crash, or if the newest snapshot is older than the batch.",
        _REMOVES,
    ),
    FindingKind(
        "transaction-open",
        INFO,
        "A transaction has no end in the log.",
        "It keeps the last stable offset at the first record of the transaction until the coordinator ends it.",
        "Nothing: the transaction coordinator ends the transaction once the broker runs.",
    ),
)


# --- findings in all files other than the logs

_TRUSTED = "After a clean stop it trusts the file. After a crash it rebuilds the file from the log."
_LAST_SEGMENT = " With a wrong last entry it treats the last segment as empty."
_PREALLOCATED = "After a clean stop it reads the zeros as entries. After a crash it rebuilds the file of the active segment."
_NO_START = "It does not start."
_OFFLINE = "It takes the whole log directory offline, and does not start if it has no other."
_STRAY = "It renames the partition to *-stray and creates an empty one."

_REBUILDS = "It rebuilds the file from the log."
_REMOVES_FILE = "It removes the file."
_NOTHING = "Nothing: the file does no harm."

FILE_KINDS = (
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
    FindingKind("index-orphan", WARNING, "An index file has no .log file.", "It removes the file.", _REMOVES_FILE),
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

# By code, in the order of the tables.
KINDS: dict[str, FindingKind] = {kind.code: kind for kind in (*LOG_KINDS, *FILE_KINDS)}
