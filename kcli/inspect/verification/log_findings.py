"""Findings in batches, offsets, leader epochs and producers; finding_kinds explains the columns."""

from __future__ import annotations

from kcli.inspect.verification.finding_kinds import ERROR, INFO, WARNING, FindingKind

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

KINDS = (
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
