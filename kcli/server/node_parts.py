"""What all cores of a node share: the raft client, the controller, the broker and the node itself are made with it."""

from __future__ import annotations

from typing import NamedTuple

from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.rng import Random
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer
from kcli.server.events import Effect
from kcli.server.log_lines import Loggers
from kcli.server.outstanding import Computations, Flushes
from kcli.server.scheduler import Scheduler


class NodeParts(NamedTuple):
    """The shared parts of a node. `effects` is its list of effects, `loggers` write its log, `files` are its open segments."""

    disk: LogDisk
    files: FileCache
    rng: Random
    timer: Timer
    effects: list[Effect]
    flushes: Flushes
    computations: Computations
    scheduler: Scheduler
    peers: Peers
    loggers: Loggers
