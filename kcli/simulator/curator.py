"""A simulated administrator of compacted topics: it changes the settings of the cleaner while the cleaner runs.

    topic             cleanup.policy                   records that may be missing
    ----------------  -------------------------------  --------------------------------------------------------------------
    compacted         always `compact`                 see kcli.simulator.compacted_ledger
    changing          changes, and back again          the same: no record is old enough for retention
    with retention    `compact,delete`                 also those below the log start offset

A separate random generator decides whether a seed has compacted topics, so that seeds without them do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.simulator.administrator import Administrator
from kcli.simulator.client import Task
from kcli.simulator.ledger import TopicLedger
from kcli.simulator.partition_ledger import TopicFacts

COMPACTION_SHARE = 0.8  # of all seeds
MOST_TOPICS = 2
MAX_PAUSE_MS = 600
CLEANUP_POLICY = "cleanup.policy"
COMPACT, DELETE, BOTH = "compact", "delete", "compact,delete"
MAX_LAG = "max.compaction.lag.ms"
ALTERABLE = {
    "min.cleanable.dirty.ratio": ("0.0", "0.1", "0.5"),
    "internal.segment.bytes": ("700", "1000", "3000"),
    MAX_LAG: ("1", "2000", "9223372036854775807"),
    "compression.type": ("producer", "lz4", "uncompressed"),
    "index.interval.bytes": ("0", "4096"),
}


def has_compaction(seed: int) -> bool:
    """Return True if the seed has compacted topics."""
    return Random(f"{seed} compaction").random() < COMPACTION_SHARE


def cleaner_settings(seed: int) -> dict[str, float]:
    """Return the cleaner settings of a seed: short pauses, and in some seeds a low rate, little memory or several threads."""
    if not has_compaction(seed):
        return {}
    rng = Random(f"{seed} cleaner")
    threads = Random(f"{seed} cleaner threads").choice((1, 1, 2, 3))
    settings: dict[str, float] = {
        "log.cleaner.backoff.ms": rng.choice((0, 20, 200, 1000)),
        "log.cleaner.threads": threads,
    }
    if rng.random() < 0.3:
        # A round then takes some seconds; a process lives for about 15.
        settings["log.cleaner.io.max.bytes.per.second"] = rng.choice((20_000.0, 200_000.0))
    if rng.random() < 0.3:
        # With the smallest buffer and this load factor, several rounds are needed for all keys.
        settings["log.cleaner.dedupe.buffer.size"] = threads * ((1 << 20) + 1)
        settings["log.cleaner.io.buffer.load.factor"] = 0.0001
    return settings


class Curator(Administrator):
    """The administrator of the compacted topics of a simulation."""

    name = "curator"
    topic_prefix = "keyed"

    def run(self) -> Task[None]:
        """Create and alter compacted topics until the simulation ends. Raises SimulationFailure."""
        world, rng = self._world, self._rng
        yield from world.negotiate_versions(self._client)
        while not world.is_ending:
            topics = [topic for topic in world.ledger.live_topics() if topic.facts.is_compacted]
            if not topics or (len(topics) < MOST_TOPICS and rng.random() < 0.2):
                yield from self._create()
            elif rng.random() < 0.5:
                yield from self._alter(rng.choice(topics))
            yield rng.randrange(MAX_PAUSE_MS) * world.pause_factor

    def _configs(self) -> dict[str, str]:
        rng = self._rng
        factor = self._world.pause_factor
        choices = {
            CLEANUP_POLICY: (COMPACT, COMPACT, COMPACT, BOTH),
            "internal.segment.bytes": ("700", "700", "700", "1200"),
            "min.cleanable.dirty.ratio": ("0.0", "0.01", "0.3"),
            "delete.retention.ms": ("0", f"{300 * factor}", f"{3000 * factor}", "86400000"),
            "min.compaction.lag.ms": (None, None, None, f"{300 * factor}"),
            MAX_LAG: (None, None, f"{1500 * factor}"),
            "flush.messages": (None, None, "1"),
            "retention.ms": (None, None, None, "5000"),
            "retention.bytes": (None, None, None, "4000"),
            "message.timestamp.type": (None, None, None, "LogAppendTime"),
            "compression.type": (None, None, "lz4", "zstd"),
            "index.interval.bytes": (None, "0", "200"),
            "file.delete.delay.ms": (None, "0", "500"),
        }
        chosen = {name: rng.choice(values) for name, values in choices.items()}
        if int(chosen["min.compaction.lag.ms"] or 0) > int(chosen[MAX_LAG] or 1 << 62):
            chosen["min.compaction.lag.ms"] = None
        return {name: value for name, value in chosen.items() if value is not None}

    def _facts(self, name: str, configs: Mapping[str, str]) -> TopicFacts:
        policy, has_retention = configs[CLEANUP_POLICY], "retention.ms" in configs or "retention.bytes" in configs
        return (
            super()
            ._facts(name, configs)
            ._replace(
                has_retention=policy == BOTH and has_retention,
                is_compacted=True,
                is_only_compacted=policy == COMPACT and (has_retention or self._rng.random() < 0.5),
                delete_retention_ms=int(configs["delete.retention.ms"]),
                min_lag_ms=int(configs.get("min.compaction.lag.ms", "0")),
            )
        )

    def _alter(self, topic: TopicLedger) -> Task[None]:
        rng = self._rng
        facts = topic.facts
        if not facts.is_only_compacted and not facts.has_retention and rng.random() < 0.6:
            yield from self._set(topic, CLEANUP_POLICY, rng.choice((COMPACT, COMPACT, DELETE, BOTH)))
            return
        name = rng.choice(sorted(ALTERABLE))
        if name != MAX_LAG or not facts.min_lag_ms:  # max.compaction.lag.ms must not be below min.compaction.lag.ms
            yield from self._set(topic, name, rng.choice(ALTERABLE[name]))
