"""What a record costs the Java client in CPU time, with the performance tools of Apache Kafka.

A run with few records is subtracted from one with many: what the start of the JVM costs is not in the figure, and little of
what its compiler does.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Sequence

from benchmarks.brokers import java

FEW, MANY = 1_000_000, 4_000_000


def cpu_of_a_record(tool: str, words: Sequence[str], few: int = FEW, many: int = MANY) -> float:
    """Return the seconds of CPU time, of all threads; the tool gets `words` and then --num-records N."""
    return (_cpu_s(tool, words, many) - _cpu_s(tool, words, few)) / (many - few)


def _cpu_s(tool: str, words: Sequence[str], records: int) -> float:
    command = [*java(), f"org.apache.kafka.tools.{tool}", *words, "--num-records", str(records)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{tool} has ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
