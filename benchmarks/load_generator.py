"""Builds and runs the load generator of ../shared/bench (rdload.c, librdkafka from C), and checks its results.

    produce   sends records of one size to the partitions in turn, for a time or a number of megabytes; all must be acknowledged
    consume   reads all partitions from the start until it has as many records as were produced; none may be missing

A failed check raises LoadError. rdload has an option for acks, but not for idempotence: it is compiled with additional lines
that enable it if IDEMPOTENT is in the environment. RDLOAD names a program that is already built, which has no such lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.brokers import ROOT, Broker

SOURCE = ROOT.parent / "shared" / "bench" / "rdload.c"
ACKS = ("1", "all", "idempotent")
IDEMPOTENT = "RDLOAD_IDEMPOTENT"
# librdkafka requests a producer id up to half a second after it has connected; this is not part of the load.
PRODUCER_ID_S = 2
PREAMBLE = f"""
#include <librdkafka/rdkafka.h>
#include <stdlib.h>
#include <unistd.h>
static rd_kafka_t *new_client(rd_kafka_type_t type, rd_kafka_conf_t *conf, char *why, size_t size) {{
    if (type != RD_KAFKA_PRODUCER || !getenv("{IDEMPOTENT}"))
        return rd_kafka_new(type, conf, why, size);
    if (rd_kafka_conf_set(conf, "enable.idempotence", "true", why, size) != RD_KAFKA_CONF_OK)
        return NULL;
    rd_kafka_t *producer = rd_kafka_new(type, conf, why, size);
    sleep({PRODUCER_ID_S});
    return producer;
}}
#define rd_kafka_new new_client
"""
# The additional time limit of a run: rdload itself waits 20 s for the last acknowledgements.
GRACE_S = 60


class LoadError(Exception):
    """A run with unexpected results; the message says which."""


class Load(NamedTuple):
    """The records and seconds of a run, and the CPU time that the broker used."""

    records: int
    megabytes: float
    seconds: float
    broker_cpu_s: float

    @property
    def mb_s(self) -> float:
        """Megabytes of records per second."""
        return self.megabytes / self.seconds

    @property
    def mb_per_cpu_s(self) -> float:
        """Megabytes of records per second of the broker's CPU time."""
        return self.megabytes / self.broker_cpu_s


class LoadGenerator:
    """The rdload program."""

    def __init__(self, program: Path, *, can_be_idempotent: bool) -> None:
        self.program, self.can_be_idempotent = program, can_be_idempotent

    def produce(
        self, broker: Broker, topic: str, partitions: int, record_bytes: int, acks: str, seconds: float, max_mb: float
    ) -> Load:
        """Produce for a time, or a number of megabytes. Raises LoadError if a record failed or was not acknowledged."""
        environment = {IDEMPOTENT: "1"} if acks == "idempotent" else {}
        words = [record_bytes, "1" if acks == "1" else "all", seconds, max_mb]
        found, cpu_s = self._run(broker, ["produce", _address(broker), topic, partitions, *words], seconds, environment)
        acked = int(found["acked"])
        if found["failed"] or not acked or acked != found["sent"]:
            raise LoadError(f"{broker.name}: of {found['sent']:,} records {acked:,} were acknowledged {found['error']}")
        return Load(acked, acked * record_bytes / 1e6, found["seconds"], cpu_s)

    def consume(self, broker: Broker, topic: str, partitions: int, record_bytes: int, expected: int, seconds: float) -> Load:
        """Read all partitions completely. Raises LoadError if there are not `expected` records, or one has another size."""
        found, cpu_s = self._run(broker, ["consume", _address(broker), topic, partitions, expected, seconds], seconds, {})
        records = int(found["records"])
        if records != expected or found["bytes"] != expected * record_bytes or found["errors"]:
            raise LoadError(
                f"{broker.name}: {expected:,} records were produced, {records:,} of {found['bytes']:,} bytes were read in "
                f"{seconds} s, with {found['errors']} errors {found['error']}"
            )
        return Load(records, records * record_bytes / 1e6, found["seconds"], cpu_s)

    def _run(self, broker: Broker, words: list[Any], seconds: float, environment: dict[str, str]) -> tuple[Any, float]:
        """Run the program -> its figures, and the CPU time that the broker used, in seconds."""
        before = broker.cpu_seconds()
        ran = subprocess.run(
            [str(word) for word in (self.program, *words)],
            capture_output=True, text=True, timeout=seconds + GRACE_S, check=False, env=os.environ | environment,
        )  # fmt: skip
        cpu_s = broker.cpu_seconds() - before
        try:
            return json.loads(ran.stdout), cpu_s
        except ValueError:
            raise LoadError(f"rdload {words[0]} of {broker.name}: {ran.stderr[-300:] or ran.returncode}") from None


def _address(broker: Broker) -> str:
    return f"127.0.0.1:{broker.port}"


def load_generator(work: Path) -> LoadGenerator:
    """Return the program that RDLOAD names, or build one in a directory, with the librdkafka of the confluent-kafka wheel if it
    is installed, and the headers of librdkafka-dev."""
    if os.environ.get("RDLOAD"):
        return LoadGenerator(Path(os.environ["RDLOAD"]), can_be_idempotent=False)
    preamble, program = work / "idempotent.h", work / "rdload"
    preamble.write_text(PREAMBLE)
    wheel = [path for folder in sys.path for path in Path(folder).glob("confluent_kafka.libs/librdkafka-*.so*")]
    library = [wheel[0], f"-Wl,-rpath,{wheel[0].parent}", "-Wl,--allow-shlib-undefined"] if wheel else ["-lrdkafka"]
    subprocess.run(["cc", "-O2", "-include", preamble, "-o", program, SOURCE, *library], check=True)
    return LoadGenerator(program, can_be_idempotent=True)
