"""The node that is simulated: the one of `kcli serve`, with settings that make rare events frequent.

setting                         default      here
------------------------------  -----------  ------------------------------------------------------------
log.dirs                        one          one or two
open files                      thousands    a few, so that they are closed and opened all the time
intervals of background tasks   minutes      seconds, so that retention and checkpoints run between crashes
segments (the administrator's)  1 GiB        a few KB
what a recovery removes         deleted      kept in QUARANTINE, for odd seeds
the cleaner                     15 s pauses  short pauses in most seeds, see kcli.simulator.curator
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from kcli.log.cleaner.log_cleaner import CleanerTotals
from kcli.log.wall_time import WallTime
from kcli.server.config.loading import configure
from kcli.server.log_lines import Loggers
from kcli.server.node import Node
from kcli.server.node_builder import build_node
from kcli.simulator.curator import cleaner_settings
from kcli.simulator.disk import SimulatedDisk

DIRECTORIES = ("/data/a", "/data/b")
QUARANTINE = "/data/kept"


class NodeMaker:
    """Creates the processes of one seed and machine; `directories` are its log directories.

    `extra_settings` are added to the settings of the seed.
    """

    def __init__(self, seed: int, node_id: int = 1, extra_settings: Mapping[str, object] | None = None) -> None:
        rng = Random(f"{seed} node")
        self.directories = list(DIRECTORIES[: rng.choice((1, 2))])
        self._max_open_files = rng.choice((2, 8, 256))
        settings = {
            "log.dirs": ",".join(self.directories),
            "log.initial.task.delay.ms": rng.choice((0, 500, 30_000)),
            "log.retention.check.interval.ms": rng.choice((500, 5000, 300_000)),
            "log.flush.scheduler.interval.ms": rng.choice((500, 5000)),
            "log.flush.offset.checkpoint.interval.ms": rng.choice((700, 5000, 60_000)),
            "log.flush.start.offset.checkpoint.interval.ms": rng.choice((900, 5000, 60_000)),
            "replica.high.watermark.checkpoint.interval.ms": rng.choice((300, 5000)),
            "log.segment.delete.delay.ms": rng.choice((0, 1000, 60_000)),
            "kcli.recovery.quarantine.dir": QUARANTINE if seed % 2 else "",
            **cleaner_settings(seed),
            **(extra_settings or {}),
        }
        if node_id != 1:
            settings["node.id"] = node_id
        self._totals: list[CleanerTotals] = []
        self._config = configure(None, None, [f"{key}={value}" for key, value in settings.items()])

    def __call__(self, disk: SimulatedDisk, rng: Random, now_ms: int, log: Callable[[str], None], wall: WallTime) -> Node:
        """Create a node, which the machine starts; `log` gets its log lines."""
        node = build_node(self._config, disk, rng, now_ms, Loggers(log), self._max_open_files, wall=wall)
        if node.broker is not None:
            self._totals.append(node.broker.log_manager.cleaner.totals)
        return node

    def cleaning_rounds(self) -> int:
        """Return the number of rounds that the cleaners of all processes have finished."""
        return sum(totals.rounds for totals in self._totals)
