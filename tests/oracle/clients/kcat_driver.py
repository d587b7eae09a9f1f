"""Drives kcat, the command line of librdkafka (see plan.py). Errors have librdkafka's names, as far as kcat prints them.

kcat sends one set of headers a call and cannot set a timestamp, so there is a call for each stretch of records with the same
headers; it writes headers as one text of name=value, so none of the values may hold `,` or `=`. It has no admin requests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from tests.oracle.clients.driver import MAX_REQUEST_BYTES, Answer, RefusedError, Step, UnableError, decode, encode, main

BOOTSTRAP = sys.argv[1]
# Bytes that no key and no value of the plans holds.
KEY_END, RECORD_END = b"\x02|key-end|\x03", b"\x02|record-end|\x03"
# Head of a record as it is printed: offset, timestamp, size of the key (-1: null), of the value; headers have none.
HEAD = re.compile(rb"(-?\d+) (-?\d+) (-?\d+) (-?\d+)\n")
FORMAT = "%o %T %K %S\n%k%s%h" + RECORD_END.decode("ascii")
ERROR_NAMES = {
    # librdkafka's for a message that comes after the answer that the name is no topic's; a topic that is merely not known has
    # the message wait for its time.
    "bytes): Local: Unknown topic": "TOPIC_EXCEPTION",
    "Message size too large": "MSG_SIZE_TOO_LARGE",
    "not found in cluster metadata": "UNKNOWN_TOPIC",
    "is not a valid topic name": "TOPIC_EXCEPTION",
    "Unknown topic or partition": "UNKNOWN_TOPIC_OR_PART",
    "Unknown topic": "UNKNOWN_TOPIC",
    "Unknown partition": "UNKNOWN_PARTITION",
    "Message timed out": "MSG_TIMED_OUT",
    "Invalid topic": "TOPIC_EXCEPTION",
    "Offset out of range": "OFFSET_OUT_OF_RANGE",
    "Broker failed to validate record": "INVALID_RECORD",
}


def kcat(step: Step, *words: str, given: bytes = b"") -> bytes:
    command = ["kcat", "-b", BOOTSTRAP, "-X", f"message.max.bytes={MAX_REQUEST_BYTES}", *words]
    ran = subprocess.run(command, input=given, capture_output=True, timeout=step["seconds"] + 4, check=False)
    said = ran.stderr.decode("utf-8", "replace")
    if ran.returncode or "failed" in said or "ERROR" in said:
        found = [(said.find(text), name) for text, name in ERROR_NAMES.items() if text in said]
        raise RefusedError(min(found)[1] if found else "UNKNOWN", said[-500:])
    return ran.stdout


def produce(step: Step) -> Answer:
    settings = {
        "compression.codec": step["codec"],
        "acks": step["acks"],
        "enable.idempotence": str(step["idempotent"]).lower(),
        "message.timeout.ms": str(step["seconds"] * 1000),
        "linger.ms": "20",
        "max.in.flight.requests.per.connection": "1",
    }
    words = [word for key, value in settings.items() for word in ("-X", f"{key}={value}")]
    for headers, records in groupby(step["records"], lambda record: [(name, decode(value)) for name, value in record[3]]):
        listed = [word for name, value in headers for word in ("-H", header_text(name, value))]
        send(step, [*words, *listed], [(decode(key), decode(value)) for key, value, *_ in records])
    return {"offsets": [-1] * len(step["records"])}


def send(step: Step, words: Sequence[str], records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """With -Z an empty key or value is null; so a stretch of records is one call as long as none of them is empty."""
    for empties, group in groupby(records, lambda record: b"" in record):
        given = RECORD_END.join((key or b"") + KEY_END + (value or b"") for key, value in group)
        nulls = [] if empties else ["-Z"]
        delimiters = ["-K", KEY_END.decode("ascii"), "-D", RECORD_END.decode("ascii")]
        target = ["-P", "-t", step["topic"], "-p", str(step["partition"])]
        kcat(step, *target, *words, *delimiters, *nulls, given=given)


def header_text(name: str, value: bytes | None) -> str:
    return name if value is None else f"{name}={os.fsdecode(value)}"


def consume(step: Step) -> Answer:
    offset, count = str(step["offset"]), str(step["count"])
    target = [
        "-C",
        "-t",
        step["topic"],
        "-p",
        str(step["partition"]),
        "-o",
        offset,
        "-c",
        count,
        "-X",
        "auto.offset.reset=error",
    ]
    printed = kcat(step, *target, "-e", "-f", FORMAT)
    records: list[Any] = []
    position = 0
    while position < len(printed):
        head = HEAD.match(printed, position)
        if head is None:
            raise UnableError(f"its output cannot be read at byte {position}: {printed[position : position + 60]!r}")
        at, timestamp_ms, key_bytes, value_bytes = map(int, head.groups())
        key_end = head.end() + max(key_bytes, 0)
        value_end = key_end + max(value_bytes, 0)
        end = printed.index(RECORD_END, value_end)
        key = None if key_bytes < 0 else printed[head.end() : key_end]
        value = None if value_bytes < 0 else printed[key_end:value_end]
        records.append([at, timestamp_ms, encode(key), encode(value), headers_of(printed[value_end:end])])
        position = end + len(RECORD_END)
    if len(records) < step["count"]:
        raise RefusedError("TIMED_OUT", f"{len(records)} of {step['count']} records came")
    return {"records": records}


def headers_of(printed: bytes) -> list[list[str | None]]:
    """Of `name=value,name=value`: kcat prints a null value as NULL."""
    headers: list[list[str | None]] = []
    for one in printed.split(b",") if printed else ():
        name, _, value = one.partition(b"=")
        headers.append([name.decode(), None if value == b"NULL" else encode(value)])
    return headers


if __name__ == "__main__":
    main({"produce": produce, "consume": consume})
