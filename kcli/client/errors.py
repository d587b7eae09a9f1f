"""Errors that the client itself finds, by the names of Kafka's exceptions (-Exception becomes -Error).

error                  when
---------------------  ------------------------------------------------------------------------------------------
RecordTooLargeError    a record is above max.request.size or buffer.memory; it is not sent
ProducerClosedError    a record is appended after close()
InvalidPartitionError  a partitioner returned a partition that does not exist
"""

from __future__ import annotations


class ClientError(Exception):
    """An error that the client reports to its caller; the message is one sentence."""


class RecordTooLargeError(ClientError):
    """A record that is larger than max.request.size or buffer.memory (Kafka: RecordTooLargeException)."""


class ProducerClosedError(ClientError):
    """A record that was appended after the producer was closed."""


class InvalidPartitionError(ClientError, ValueError):
    """A partition, returned by a partitioner, that does not exist."""
