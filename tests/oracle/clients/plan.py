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
"NO_ANSWER": the driver is ended then; and so are all steps behind a driver that ended early.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

# How long a client may try one thing; below the limit for a step, so that the client's own error is seen.
CLIENT_SECONDS = 30
STEP_SECONDS = 60
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
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+b") as given, tempfile.TemporaryFile("w+b") as said:
        # Files, so that a driver that does not read, or says much, waits for nobody.
        given.write(told.encode())
        given.seek(0)
        driver = subprocess.Popen([*command, bootstrap], stdin=given, stdout=subprocess.PIPE, stderr=said, env=environment)
        answers, silence = _answers_of(driver, len(steps))
        said.seek(0)
        last_words = said.read().decode("utf-8", "replace")[-2000:]
    missing: Answer = {"error": NO_ANSWER, "message": f"{silence}; it said: {last_words}"}
    answers += [missing] * (len(steps) - len(answers))
    return {step.name: answer for step, answer in zip(steps, answers, strict=True)}


def _answers_of(driver: subprocess.Popen[bytes], count: int) -> tuple[list[Answer], str]:
    """What a driver answers as long as it does in time, and a sentence of why it answers no more; it has ended then."""
    answers: list[Answer] = []
    assert driver.stdout is not None
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read_lines, args=(driver.stdout, lines), daemon=True)
    reader.start()
    limit = START_SECONDS + STEP_SECONDS
    try:
        while len(answers) < count:
            line = lines.get(timeout=limit)
            if line is None:
                return answers, f"the driver ended with exit code {driver.wait(START_SECONDS)}"
            if line.startswith(b"{") and line.endswith(b"}\n"):
                answers.append(json.loads(line))
                limit = STEP_SECONDS
        driver.wait(STEP_SECONDS)
    except (queue.Empty, subprocess.TimeoutExpired):
        return answers, f"the driver was silent for {limit} s after {len(answers)} of {count} answers, and was ended"
    finally:
        driver.kill()  # nothing happens to one that has ended
        driver.wait()
        reader.join(STEP_SECONDS)
        if not reader.is_alive():  # else a process that the driver left behind has its end of the pipe
            driver.stdout.close()
    return answers, "it answered all"


def _read_lines(stdout: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    """Hand on what is printed, line by line, then None."""
    for line in stdout:
        lines.put(line)
    lines.put(None)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
