"""The records that every client sends in every mode, and what must be refused: one plan for all clients.

A topic a client, a partition a case; 5 codecs x 4 modes (acks 0, 1, all; idempotent, which is acks=all too).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.oracle.clients.installed import Client
from tests.oracle.clients.plan import Record, Step, consume, create, produce

# acks=0 last: whoever asks for no answer right after a topic was made may lose what it sends.
MODES = {"acks-all": ("all", False), "idempotent": ("all", True), "acks-1": ("1", False), "acks-0": ("0", False)}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CASES = [f"{codec}-{mode}" for mode in MODES for codec in CODECS]
SMALL_RECORDS = 24
# For what some clients wait for in vain, since it might come yet.
SHORT_SECONDS = 3
DAY_MS = 86_400_000
# Below this a client's limit on one message is not met; more than one batch of 16 KB, and of a topic's index interval.
LARGE_BYTES = 100_000
HEADERS = (("h", b"1"), ("h", b"2"), ("null", None), ("empty", b""), ("ü", b"\x01\xff"))

# The topics that the refusals need, beside the matrix's: name -> configs. `absent` is never made.
SMALL, COMPACTED, BOUNDED, ABSENT = "small-messages", "compacted", "bounded-timestamps", "absent"
TOPICS: dict[str, dict[str, str]] = {
    SMALL: {"max.message.bytes": "2000"},
    COMPACTED: {"cleanup.policy": "compact"},
    BOUNDED: {"message.timestamp.before.max.ms": str(DAY_MS), "message.timestamp.after.max.ms": str(DAY_MS)},
}
REFUSALS = (
    "too-large",
    "too-large-idempotent",
    "unknown-topic",
    "unknown-partition",
    "read-unknown-topic",
    "timestamp-too-late",
    "timestamp-too-early",
    "invalid-name",
    "no-key",
    "no-key-idempotent",
    "offset-too-high",
    "create-invalid-name",
    "create-invalid-codec",
    "create-unknown-config",
    "create-twice",
    "create-no-partitions",
    "create-too-many-replicas",
)


class Setup(NamedTuple):
    """A plan against one broker: the steps, and the records that each produce step sends, by its name."""

    steps: list[Step]
    sent: dict[str, list[Record]]


def matrix_topic(client: Client) -> str:
    """The topic whose partitions are this client's cases."""
    return f"matrix-{client.name}"


def records_of_case(client: Client, case: str, now_ms: int) -> list[Record]:
    """What is sent in a case: nulls, empties, headers, bytes of all values, times out of order, large ones, many small ones."""
    dice = random.Random(case)
    hour = now_ms - 3_600_000
    every_byte = bytes(range(256))
    records = [
        Record(-1, hour, b"key", b"value"),
        Record(-1, hour + 1, None, b"no key"),
        Record(-1, hour + 2, b"no value", None),
        Record(-1, hour + 3, None, None),
        Record(-1, hour + 4, b"", b""),
        Record(-1, hour + 5, b"headers", b"value", HEADERS),
        Record(-1, hour + 6, every_byte, every_byte * 4),
        Record(-1, hour - DAY_MS, b"earlier", b"than the one before"),
        Record(-1, now_ms - 6 * DAY_MS, b"earliest", b"but within retention.ms"),
        Record(-1, hour + 7, b"large", b"compressible" * (LARGE_BYTES // 12)),
        Record(-1, hour + 8, b"large", dice.randbytes(LARGE_BYTES)),
    ]
    for number in range(SMALL_RECORDS):
        key = None if number % 5 == 0 else f"key-{number % 3}".encode()
        headers = ((("n", str(number).encode()),)) if number % 7 == 0 else ()
        records.append(Record(-1, hour + 10 + number // 2, key, f"{case} {number} ".encode() * (number + 1), headers))
    return client.sendable(records)


def plan_of(client: Client, now_ms: int) -> Setup:
    """All that one client is told to do."""
    sent: dict[str, list[Record]] = {}
    steps: list[Step] = []
    for partition, case in enumerate(CASES):
        codec, _, mode = case.partition("-")
        acks, idempotent = MODES[mode]
        sent[case] = records_of_case(client, case, now_ms)
        if codec in client.codecs:
            options: dict[str, Any] = {"partition": partition, "codec": codec, "acks": acks, "idempotent": idempotent}
            steps.append(produce(case, matrix_topic(client), sent[case], **options))
    if client.reads:
        steps += reading_plan(client)
    return Setup([*steps, *refusals(client, now_ms)], sent)


def reading_plan(client: Client) -> list[Step]:
    """Read back what `client` has sent: the whole, and from the middle on."""
    topic, count = matrix_topic(client), len(records_of_case(client, "", 0))
    middle = count // 2
    steps = []
    for partition, case in enumerate(CASES):
        if case.partition("-")[0] in client.codecs:
            steps.append(consume(f"read {case}", topic, count, partition=partition))
    first = CASES.index("none-acks-all")
    return [*steps, consume("read from the middle", topic, count - middle, partition=first, offset=middle)]


def refusals(client: Client, now_ms: int) -> list[Step]:
    """What a broker must refuse; each with a name of REFUSALS. Behind each come records that are good, of the same client."""
    large = [Record(-1, now_ms, b"k", random.Random(7).randbytes(5000))]
    good = [Record(-1, now_ms, b"k", b"v")]
    no_key = [Record(-1, now_ms, None, b"v")]
    late, early = [good[0]._replace(timestamp_ms=now_ms + 2 * DAY_MS)], [good[0]._replace(timestamp_ms=now_ms - 2 * DAY_MS)]
    timestamps = (
        produce("timestamp-too-late", BOUNDED, late),
        produce("timestamp-too-early", BOUNDED, early),
    )
    creations = (
        create("create-invalid-name", "not/valid"),
        create("create-invalid-codec", f"new-{client.name}", compression_type="brotli"),
        create("create-unknown-config", f"new-{client.name}", no_such_key="1"),
        create("create-twice", SMALL),
        create("create-no-partitions", f"new-{client.name}", partitions=0),
        create("create-too-many-replicas", f"new-{client.name}", replication_factor=3),
        create("create", f"new-{client.name}", partitions=2, compression_type="lz4"),
        produce("produce to the created", f"new-{client.name}", good, partition=1),
    )
    steps: Sequence[Step] = (
        produce("too-large", SMALL, large),
        produce("too-large-idempotent", SMALL, large, idempotent=True),
        produce("good after too-large", SMALL, good, idempotent=True),
        *(timestamps if client.sets_timestamps else ()),
        produce("good after timestamps", BOUNDED, good),
        produce("no-key", COMPACTED, no_key),
        produce("no-key-idempotent", COMPACTED, no_key, idempotent=True),
        produce("good after no-key", COMPACTED, good, idempotent=True),
        produce("unknown-topic", ABSENT, good, seconds=SHORT_SECONDS),
        produce("unknown-partition", SMALL, good, partition=7, seconds=SHORT_SECONDS),
        produce("invalid-name", "not/valid", good, seconds=SHORT_SECONDS),
        consume("read-unknown-topic", ABSENT, 1, seconds=SHORT_SECONDS),
        consume("offset-too-high", BOUNDED, 1, offset=1_000_000),
        *(creations if client.creates_topics else ()),
    )
    return list(steps)


GOOD_STEPS = ("good after too-large", "good after timestamps", "good after no-key", "create", "produce to the created")
