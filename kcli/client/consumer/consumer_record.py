"""One fetched record (Kafka: ConsumerRecord).

    timestamp_type       the timestamp is
    -------------------  ----------------------------------------------------------------------
    CREATE_TIME          the producer's
    LOG_APPEND_TIME      the broker's
    NO_TIMESTAMP_TYPE    missing: the record is of message format 0, and `timestamp` is -1

`headers` are (key, value) pairs; a value may be None. Compiled, the numbers are kept as C integers and the fields cannot be
set: a record is made in 0.1 us. This one source runs two ways, as kcli.format.record_scan does.
"""

from __future__ import annotations

NO_TIMESTAMP_TYPE = -1
CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_TIMESTAMP = -1
NO_EPOCH = -1

Headers = tuple[tuple[str, "bytes | None"], ...]


class ConsumerRecord:
    """A record; `key` and `value` are bytes or None, or what the deserializers made of bytes."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: object = None,
        value: object = None,
        headers: Headers = (),
        timestamp: int = NO_TIMESTAMP,
        timestamp_type: int = NO_TIMESTAMP_TYPE,
        leader_epoch: int = NO_EPOCH,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.leader_epoch = leader_epoch

    def _fields(self) -> tuple[object, ...]:
        place = (self.topic, self.partition, self.offset)
        return (*place, self.key, self.value, self.headers, self.timestamp, self.timestamp_type, self.leader_epoch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerRecord):
            return NotImplemented
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        return (
            f"ConsumerRecord(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r}, timestamp={self.timestamp})"
        )

    def __reduce__(self) -> tuple[type[ConsumerRecord], tuple[object, ...]]:
        return (ConsumerRecord, self._fields())
