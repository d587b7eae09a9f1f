"""What a client is told to do and what it answers: the one language of all the drivers in this folder.

A driver is a program. It is started as `DRIVER HOST:PORT`, reads one step a line (JSON) from stdin until its end, and writes
one answer a line to stdout, in the same order, each as soon as the step is done. What it says on stderr is for people.

    step                      fields beside `do` and `seconds`, which the client may try
    ------------------------  ------------------------------------------------------------------------------------------
    produce                   topic, partition, codec (none, gzip, snappy, lz4, zstd), acks (0, 1, all), idempotent,
                              records: [key, value, timestamp_ms, [[name, value] ...]] each
    consume                   topic, partition, offset, count: read by assignment, no group; auto.offset.reset is none
    create                    topic, partitions, replication_factor, configs

    answer                    to
    ------------------------  ------------------------------------------------------------------------------------------
    {"offsets": [...]}        produce; an offset is -1 where the client is not told it (acks=0)
    {"records": [...]}        consume: [offset, timestamp_ms, key, value, headers] each
    {}                        create
    {"error": NAME, "message": TEXT}   what was refused, in the client's own words; NAME has no address or number in it
    {"unable": TEXT}          the client cannot do this; the test skips, and says so

Keys and values, of headers too, are base64 text, or null. A step that takes longer than STEP_SECONDS is an error of its own,
"NO_ANSWER", and so are all steps behind a driver that ended early.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

# How long a client may try one thing; below the limit for a step, so that the client's own error is seen.
CLIENT_SECONDS = 12
STEP_SECONDS = 20
START_SECONDS = 60
NO_ANSWER = "NO_ANSWER"

Answer = dict[str, Any]


class Record(NamedTuple):
    """A record as a client sends it or gets it; `offset` is -1 before it is sent."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Step(NamedTuple):
    """One thing to do, with a name that tests ask for its answer by."""

    name: str
    fields: Mapping[str, Any]


def produce(
    name: str,
    topic: str,
    records: Sequence[Record],
    *,
    partition: int = 0,
    codec: str = "none",
    acks: str = "all",
    idempotent: bool = False,
    seconds: int = CLIENT_SECONDS,
) -> Step:
    """A step that sends `records`, in this order, to one partition."""
    fields = {"do": "produce", "topic": topic, "partition": partition, "codec": codec, "acks": acks, "idempotent": idempotent}
    sent = [
        [_text(record.key), _text(record.value), record.timestamp_ms, [[key, _text(value)] for key, value in record.headers]]
        for record in records
    ]
    return Step(name, {**fields, "seconds": seconds, "records": sent})


def consume(name: str, topic: str, count: int, *, partition: int = 0, offset: int = 0, seconds: int = CLIENT_SECONDS) -> Step:
    """A step that reads `count` records from `offset` on."""
    fields = {"do": "consume", "topic": topic, "partition": partition, "offset": offset, "count": count}
    return Step(name, {**fields, "seconds": seconds})


def create(name: str, topic: str, *, partitions: int = 1, replication_factor: int = 1, **configs: str) -> Step:
    """A step that creates a topic; `configs` have _ in place of each dot."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    fields = {
        "do": "create",
        "seconds": CLIENT_SECONDS,
        "topic": topic,
        "partitions": partitions,
        "replication_factor": replication_factor,
    }
    return Step(name, {**fields, "configs": settings})


def records_of(answer: Answer) -> list[Record]:
    """The records that a consume step brought. Raises AssertionError with what the client said where it brought none."""
    assert "records" in answer, answer
    return [
        Record(offset, timestamp_ms, _bytes(key), _bytes(value), tuple((name, _bytes(held)) for name, held in headers))
        for offset, timestamp_ms, key, value, headers in answer["records"]
    ]


def run_plan(command: Sequence[str], bootstrap: str, steps: Sequence[Step]) -> dict[str, Answer]:
    """Let a driver do all steps against the broker at `bootstrap` -> the answer to each, by its step's name."""
    told = "".join(json.dumps(dict(step.fields)) + "\n" for step in steps)
    limit = START_SECONDS + STEP_SECONDS * len(steps)
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, bootstrap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
    ) as driver:
        try:
            out, err = driver.communicate(told, timeout=limit)
        except subprocess.TimeoutExpired:
            driver.kill()
            out, err = driver.communicate()
    answers: list[Answer] = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    missing: Answer = {"error": NO_ANSWER, "message": f"exit code {driver.returncode}: {err[-2000:]}"}
    answers += [missing] * (len(steps) - len(answers))
    return {step.name: answer for step, answer in zip(steps, answers, strict=True)}


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
