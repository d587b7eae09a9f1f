"""What a log manager refuses, each with the error code of Kafka that a client is to see.

class                      code                              when
-------------------------  --------------------------------  ------------------------------------------------------
KafkaStorageError          56 KAFKA_STORAGE_ERROR            the partition lies in a log directory that is offline
LogDirNotFoundError        57 LOG_DIR_NOT_FOUND              a log directory was named that is not in log.dirs
InconsistentTopicIdError   103 INCONSISTENT_TOPIC_ID         a partition's directory belongs to another topic id
InvalidTopicError          17 INVALID_TOPIC_EXCEPTION        a name too long for a directory that is moving
NotHostedError             6 NOT_LEADER_OR_FOLLOWER          no replica of the partition is here (yet)
LogDirLockedError          -                                 another process holds the directory: the broker stops
DuplicateLogError          -                                 one partition in two directories: the broker stops
AllLogDirsOfflineError     -                                 no log directory is left: the broker stops
"""

from __future__ import annotations


class StorageError(Exception):
    """A refusal: one sentence, and Kafka's code for it in `code` (-1: UNKNOWN_SERVER_ERROR, no client is told)."""

    code = -1


class KafkaStorageError(StorageError):
    """The log directory is offline."""

    code = 56


class LogDirNotFoundError(StorageError):
    """No such log directory is configured."""

    code = 57


class InconsistentTopicIdError(StorageError):
    """The directory on disk belongs to a topic of another id."""

    code = 103


class InvalidTopicError(StorageError):
    """The topic's name does not allow what is asked."""

    code = 17


class NotHostedError(StorageError):
    """No replica of the partition is here."""

    code = 6


class LogDirLockedError(StorageError):
    """Another process uses the log directory."""


class DuplicateLogError(StorageError):
    """Two directories stand for one partition."""


class AllLogDirsOfflineError(StorageError):
    """No log directory is left to serve from."""
