"""Findings: what can be wrong in a log directory, each kind with a stable code; the one table of them all.

    severity  says                                                                              exit code of verify
    --------  --------------------------------------------------------------------------------  -------------------
    error     records, offsets or transactions are lost, hidden or wrong, or no broker starts   1
    warning   a broker repairs it by itself or lives with it; something was lost or left        1
    info      good to know; a sound directory may have it                                       0

What a broker does "at start" is Apache Kafka 4.3's own loading of a log; "after a crash" is a start without
.kafka_cleanshutdown, in which the segments from the recovery point on are recovered, "after a clean stop" one with it.
docs/findings.md is written from this table.
"""

from __future__ import annotations

from typing import NamedTuple

ERROR = "error"
WARNING = "warning"
INFO = "info"
SEVERITIES = (ERROR, WARNING, INFO)


class FindingKind(NamedTuple):
    """One row of the table: the code, how bad it is, what it means, and what a Kafka broker does about it at start."""

    code: str
    severity: str
    meaning: str
    broker_does: str


_UNSEEN = "Nothing after a clean stop: batches are not read. "
_CUT = _UNSEEN + "After a crash it cuts the log there and drops every batch and segment behind it."
_NEVER = "Nothing: it does not look at this at start."
_RECOVERED = "It believes the file after a clean stop; after a crash it rebuilds it from the log."
_NO_START = "It does not start."
_OFFLINE = "It takes the whole log directory offline, and does not start where it has no other."

_TABLE = (
    # ------------------------------------------------------------------------------------------------ reading
    ("file-unreadable", ERROR, "A file or directory cannot be read: no permission, or the disk fails.", _OFFLINE),
    ("file-shrank", WARNING, "A file became shorter or vanished while it was read.", _NEVER),
    ("findings-cut", INFO, "A file has more findings of one kind than are listed.", _NEVER),
    # ------------------------------------------------------------------------------------------------ batches
    (
        "log-torn-tail",
        ERROR,
        "The last bytes of a segment are too few for a batch.",
        "After a clean stop it appends behind them, or loses sight of the last segment where the index points at them. "
        "After a crash it cuts them off.",
    ),
    (
        "log-zero-tail",
        ERROR,
        "A segment ends in zeros: preallocated, or bytes that never reached the disk.",
        "It does not start after a clean stop (17 zeros and more). After a crash it cuts them off.",
    ),
    ("batch-size", ERROR, "The size that a batch states is impossible or reaches behind the end of the file.", _CUT),
    (
        "batch-magic",
        ERROR,
        "A batch states a format that does not exist; 0, 1 and 2 do.",
        "Nothing where it is 3 or above: it reads the batch as format 2. Below 0 it cuts the log there after a crash.",
    ),
    ("batch-crc", ERROR, "The bytes of a batch are not those that its CRC was computed of.", _CUT),
    (
        "batch-header",
        ERROR,
        "A batch's header cannot be right: a negative offset, delta or number of records, or more records than offsets.",
        _NEVER + " Consumers fail at the batch.",
    ),
    ("batch-attributes", WARNING, "A batch has attribute bits that have no meaning.", _NEVER),
    ("batch-codec", ERROR, "A batch is compressed by a codec that does not exist.", _NEVER + " Consumers fail at the batch."),
    (
        "batch-inflate",
        ERROR,
        "The compressed records of a batch do not inflate.",
        _NEVER + " Consumers and the log cleaner fail at the batch.",
    ),
    (
        "batch-inflate-limit",
        ERROR,
        "The compressed records of a batch inflate beyond what any broker or consumer can hold.",
        _NEVER + " Consumers and the log cleaner fail at the batch.",
    ),
    (
        "batch-records",
        ERROR,
        "The records of a batch do not parse, or their bytes do not end where the batch does.",
        _NEVER + " Consumers and the log cleaner fail at the batch.",
    ),
    (
        "record-offset",
        ERROR,
        "The offsets of a batch's records do not go up, or lie outside of the batch's own range.",
        _NEVER + " Consumers skip or repeat records.",
    ),
    (
        "record-crc",
        ERROR,
        "The CRC of a message inside of a compressed set of format 0 or 1 is wrong.",
        _NEVER + " Consumers that check it fail at the message.",
    ),
    (
        "batch-max-timestamp",
        WARNING,
        "The largest timestamp that a batch states is not that of its records.",
        "It builds the time index from the wrong time after a crash; retention and searches by time go wrong.",
    ),
    (
        "control-record",
        ERROR,
        "A control record cannot be read, or is of a type that does not belong there.",
        "After a crash, or where the newest snapshot lies before it, it cuts the log there or does not start.",
    ),
    # ------------------------------------------------------------------------------------------------ offsets
    (
        "offset-back",
        ERROR,
        "A batch begins at an offset that the log had already passed.",
        _UNSEEN + "After a crash it empties the whole segment where it comes upon it at an index entry, else nothing.",
    ),
    (
        "offset-before-segment",
        ERROR,
        "A segment holds an offset below the one in its name.",
        _UNSEEN + "After a crash it does not start.",
    ),
    (
        "offset-overflow",
        ERROR,
        "A segment holds an offset more than 2147483647 above the one in its name.",
        "After a crash it splits the segment where that is the last batch, else it does not start.",
    ),
    ("offset-gap", INFO, "Offsets are missing inside a segment that shows no other sign of cleaning.", _NEVER),
    (
        "segment-gap",
        WARNING,
        "Offsets are missing between two segments of a log that shows no sign of cleaning: a segment may be lost.",
        "It accepts the gap; consumers skip it.",
    ),
    ("segment-overlap", ERROR, "A segment begins at an offset that the segment before still holds.", _NEVER),
    # ------------------------------------------------------------------------------------------------ leader epochs
    (
        "leader-epoch-back",
        ERROR,
        "A batch has a lower leader epoch than one before it.",
        "Nothing; followers may cut their logs at the wrong offset.",
    ),
    (
        "leader-epoch-mismatch",
        ERROR,
        "leader-epoch-checkpoint tells another leader epoch for an offset than the batch there.",
        "It believes the file; followers may cut their logs at the wrong offset.",
    ),
    (
        "leader-epoch-missing",
        WARNING,
        "leader-epoch-checkpoint is missing though the batches have leader epochs.",
        "It goes on without them after a clean stop; after a crash it takes those of the recovered segments.",
    ),
    (
        "leader-epoch-order",
        WARNING,
        "The entries of leader-epoch-checkpoint do not go up.",
        "It drops the entries that a later one contradicts.",
    ),
    (
        "leader-epoch-beyond-end",
        WARNING,
        "leader-epoch-checkpoint has an epoch that starts behind the log's end.",
        "It drops the entry.",
    ),
    # ------------------------------------------------------------------------------------------------ indexes
    (
        "index-missing",
        WARNING,
        "A segment has no .index.",
        "It recovers the segment: reads it whole, cuts it at the first bad batch, and builds its indexes anew.",
    ),
    ("index-size", WARNING, "An .index ends inside an entry, or is larger than any segment needs.", _RECOVERED),
    (
        "index-order",
        ERROR,
        "The entries of an .index do not go up.",
        _RECOVERED + " A wrong last entry makes it lose sight of the last segment.",
    ),
    (
        "index-mismatch",
        ERROR,
        "An entry of an .index does not point at the batch that holds its offset.",
        _RECOVERED + " A wrong last entry makes it lose sight of the last segment.",
    ),
    (
        "index-zero-tail",
        WARNING,
        "An .index still has its preallocated size though it is in use no more.",
        "It takes the zeros for entries after a clean stop; after a crash it rebuilds the active segment's.",
    ),
    (
        "index-empty",
        INFO,
        "An .index has no entry though its segment is large.",
        "Nothing after a clean stop: it reads the segment from its start where it looks for an offset.",
    ),
    ("index-orphan", WARNING, "An index has no .log beside it.", "It removes the file."),
    ("timeindex-missing", WARNING, "A segment has no .timeindex.", "It creates an empty one; searches by time read the log."),
    ("timeindex-size", WARNING, "A .timeindex ends inside an entry, or is larger than any segment needs.", _RECOVERED),
    ("timeindex-order", ERROR, "The entries of a .timeindex do not go up.", _RECOVERED),
    (
        "timeindex-mismatch",
        ERROR,
        "An entry of a .timeindex does not tell the largest timestamp up to its offset.",
        _RECOVERED + " Searches by time and retention go wrong.",
    ),
    (
        "timeindex-zero-tail",
        WARNING,
        "A .timeindex still has its preallocated size though it is in use no more.",
        "It takes the zeros for entries after a clean stop; after a crash it rebuilds the active segment's.",
    ),
    (
        "timeindex-behind",
        INFO,
        "A closed segment's .timeindex lacks the entry of its largest timestamp.",
        "It reads the segment's end when it looks for that time.",
    ),
    (
        "txnindex-size",
        WARNING,
        "A .txnindex ends inside an entry.",
        "It ignores the torn entry; after a crash it rebuilds the file.",
    ),
    (
        "txnindex-version",
        ERROR,
        "An entry of a .txnindex has a version that does not exist.",
        "It does not start where the first of the version's two bytes is above 0; else it takes the entry for version 0.",
    ),
    (
        "txnindex-mismatch",
        ERROR,
        "An entry of a .txnindex does not tell a transaction that was aborted in its segment.",
        _RECOVERED + " Until then read_committed consumers lose records.",
    ),
    (
        "txnindex-missing-entry",
        ERROR,
        "An aborted transaction is missing in its segment's .txnindex.",
        _RECOVERED + " Until then read_committed consumers see aborted records.",
    ),
    # ------------------------------------------------------------------------------------------------ producers
    (
        "snapshot-corrupt",
        WARNING,
        "A producer snapshot cannot be read.",
        "It removes it and takes the one before, and reads the log from there.",
    ),
    (
        "snapshot-mismatch",
        ERROR,
        "A producer snapshot does not tell what the batches before its offset add up to.",
        "It believes the newest one after a clean stop; after a crash those before the recovery point.",
    ),
    (
        "snapshot-missing",
        WARNING,
        "A log has batches of producers and not one snapshot.",
        "After a clean stop it begins with no producers at all: open transactions are forgotten. After a crash it reads "
        "the log.",
    ),
    (
        "snapshot-behind",
        INFO,
        "After a clean stop there is no producer snapshot of the log's end.",
        "It takes the newest one there is, and reads the log from there.",
    ),
    ("snapshot-beyond-end", WARNING, "A producer snapshot is of an offset behind the log's end.", "It removes it."),
    (
        "producer-fields",
        ERROR,
        "A batch's producer id, producer epoch, sequence and transaction flag contradict each other.",
        _NEVER,
    ),
    ("producer-sequence-gap", WARNING, "A producer's sequence jumps forward though no offset is missing.", _NEVER),
    ("producer-sequence-back", WARNING, "A producer's sequence goes back or repeats.", _NEVER),
    ("producer-epoch-back", WARNING, "A batch has a lower producer epoch than one before it.", "It logs a warning."),
    ("coordinator-epoch-back", WARNING, "A marker has a lower coordinator epoch than one before it.", "It logs it."),
    (
        "transaction-mixed",
        ERROR,
        "A producer wrote outside of a transaction while it had one open.",
        "It does not start where it reads the batch: after a crash, or where the newest snapshot lies before it.",
    ),
    (
        "transaction-open",
        INFO,
        "A transaction has no end in the log.",
        "It holds the last stable offset at its first record until the coordinator ends it.",
    ),
    # ------------------------------------------------------------------------------------------------ checkpoints
    (
        "checkpoint-corrupt",
        ERROR,
        "A checkpoint or another small file cannot be read.",
        _OFFLINE + " Of a word in place of a number it does not start at all.",
    ),
    (
        "recovery-point-beyond-end",
        ERROR,
        "The recovery point lies behind the log's end: flushed records are gone.",
        "It lowers the recovery point to the log's end.",
    ),
    (
        "high-watermark-beyond-end",
        WARNING,
        "The high watermark lies behind the log's end.",
        "It lowers the high watermark to the log's end.",
    ),
    (
        "log-start-beyond-end",
        ERROR,
        "The log start offset lies behind the log's end.",
        "It deletes every segment of the partition and starts an empty one.",
    ),
    (
        "cleaner-offset-beyond-end",
        WARNING,
        "The cleaner's checkpoint lies behind the log's end.",
        "The cleaner starts again at the log's start.",
    ),
    (
        "partition-missing",
        WARNING,
        "A checkpoint names a partition that has no directory here.",
        "It creates an empty replica and fetches the records from another broker, if there is one.",
    ),
    # ------------------------------------------------------------------------------------------------ names, leftovers
    (
        "name-irregular",
        ERROR,
        "A file has the suffix of a segment's files but not the 20 digits before it.",
        "It does not start where there is no number at all; else it takes the number for a segment of its own.",
    ),
    ("file-unknown", INFO, "A file is none that Kafka writes.", "It leaves it alone."),
    ("leftover-deleted", INFO, "A file or directory is marked to be deleted and still there.", "It removes it."),
    ("leftover-cleaned", WARNING, "The output of a cleaning or a split that was not finished is there.", "It removes it."),
    (
        "leftover-swap",
        WARNING,
        "A cleaned or split segment was about to take the place of others.",
        "It removes the files whose offsets it covers and takes it in their place.",
    ),
    ("leftover-temporary", WARNING, "A file that was being written is there beside the finished one.", "It leaves it alone."),
    (
        "directory-name",
        ERROR,
        "A directory in a log directory has not the name of a partition.",
        "It does not start.",
    ),
    ("directory-stray", INFO, "A partition was set aside as stray: the metadata did not place it here.", "It keeps it aside."),
    (
        "partition-empty",
        INFO,
        "A partition's directory holds no segment.",
        "It starts an empty segment at the log start offset.",
    ),
    # ------------------------------------------------------------------------------------------------ log directories
    ("partition-duplicate", ERROR, "A partition lies twice in the log directories of one broker.", _NO_START),
    (
        "partition-metadata-missing",
        ERROR,
        "A partition of a KRaft cluster has no partition.metadata, and so no topic id.",
        "It sets the partition aside as stray, and creates an empty one.",
    ),
    (
        "partition-metadata-corrupt",
        ERROR,
        "partition.metadata cannot be read.",
        _OFFLINE + " Of an empty file it dies.",
    ),
    (
        "topic-id-mismatch",
        ERROR,
        "partition.metadata has another topic id than the cluster's metadata have for the topic.",
        "It sets the partition aside as stray, and creates an empty one.",
    ),
    (
        "topic-unknown",
        WARNING,
        "The cluster's metadata know no such topic, or do not place the partition on this node.",
        "It sets the partition aside as stray.",
    ),
    ("meta-properties-missing", WARNING, "A log directory has no meta.properties.", "It does not start on it: not formatted."),
    ("meta-properties-corrupt", ERROR, "meta.properties cannot be read.", _NO_START),
    (
        "meta-properties-differ",
        INFO,
        "The given log directories are of different clusters or nodes.",
        "It does not start with both; each may be sound.",
    ),
    ("directory-id-twice", ERROR, "Two log directories have one directory id: one is a copy of the other.", _NO_START),
    (
        "metadata-snapshot-incomplete",
        ERROR,
        "A KRaft snapshot lacks its header or its footer.",
        "It reads it as far as it goes; the metadata are wrong or it does not start.",
    ),
    ("uncleanable-partitions-corrupt", INFO, "The file kcli-uncleanable-partitions cannot be read.", "It leaves it alone."),
    ("clean-shutdown-corrupt", INFO, ".kafka_cleanshutdown has no readable broker epoch.", "It counts as clean all the same."),
    (
        "unclean-shutdown",
        INFO,
        "The broker that used the log directory was not stopped cleanly.",
        "It recovers every segment from the recovery point on.",
    ),
    (
        "directory-live",
        INFO,
        "A running broker holds the log directory; its moving tails and preallocated indexes are not looked at.",
        "It is running.",
    ),
)

# code -> FindingKind, in the order of the table.
KINDS: dict[str, FindingKind] = {row[0]: FindingKind(*row) for row in _TABLE}
