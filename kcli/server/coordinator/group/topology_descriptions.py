"""The descriptions of the topologies of streams groups (KIP-1331): what their clients sent, and when they are asked for it.

Kafka gives a description to a plugin. kcli keeps it in memory if group.streams.topology.description.plugin.class names one, and
asks the clients again after a restart. So the epochs that Kafka has in the records of a group, of the topology whose
description its plugin has, do not change.

    asked for                   if the group has no description of its topology
    not asked for again         for 30 s, doubled each time up to an hour
    not asked for any longer    if the description was too large
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE
from kcli.protocol.message import Message
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.operation import CoordinatorError

MAX_DESCRIPTION_BYTES = 1 << 20
NOT_REQUESTED, NOT_STORED, _ERROR, AVAILABLE = range(4)  # the status of a description in StreamsGroupDescribe
SOURCE, PROCESSOR, SINK = 1, 2, 3
_PLUGIN_KEY = "group.streams.topology.description.plugin.class"
_FIRST_DELAY_MS = 30_000
_LONGEST_DELAY_MS = 3_600_000


class _Described:
    """The description of a topology of this epoch, None if there is none, and when it may be asked for again."""

    __slots__ = ("again_at_ms", "delay_ms", "description", "epoch", "is_refused")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.description: Message | None = None
        self.is_refused = False
        self.again_at_ms = 0
        self.delay_ms = _FIRST_DELAY_MS


class TopologyDescriptions:
    """The descriptions of the groups of one shard."""

    def __init__(self, config: ConfigReader) -> None:
        self._config = config
        self._groups: dict[str, _Described] = {}

    @property
    def is_enabled(self) -> bool:
        """True if a plugin is configured."""
        return has_plugin(self._config)

    def find(self, group_id: str, epoch: int) -> Message | None:
        """Return the description of a group's topology of this epoch, None if there is none."""
        found = self._groups.get(group_id)
        return found.description if found is not None and found.epoch == epoch and self.is_enabled else None

    def ask(self, group_id: str, epoch: int, now_ms: int) -> bool:
        """Return whether a member must send the description of a topology; the next one is then asked some time later."""
        if not self.is_enabled:
            return False
        found = self._of(group_id, epoch)
        if found.description is not None or found.is_refused or now_ms < found.again_at_ms:
            return False
        found.again_at_ms = now_ms + found.delay_ms
        found.delay_ms = min(2 * found.delay_ms, _LONGEST_DELAY_MS)
        return True

    def store(self, group_id: str, epoch: int, request: Message) -> None:
        """Keep the description of a StreamsGroupTopologyDescriptionUpdate. Raises CoordinatorError."""
        _check(request.topology_description)
        found = self._of(group_id, epoch)
        size = len(API_KEYS[STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE].request.encode(request, 0))
        if size > MAX_DESCRIPTION_BYTES:
            found.is_refused = True
            text = f"The description of the topology has {size} bytes; at most {MAX_DESCRIPTION_BYTES} are kept."
            raise CoordinatorError(error_codes.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED, text)
        found.description, found.delay_ms, found.again_at_ms = request.topology_description, _FIRST_DELAY_MS, 0

    def remove(self, group_id: str) -> None:
        """Remove what is kept of a group."""
        self._groups.pop(group_id, None)

    def clear(self) -> None:
        """Remove everything."""
        self._groups.clear()

    def _of(self, group_id: str, epoch: int) -> _Described:
        found = self._groups.get(group_id)
        if found is None or found.epoch != epoch:
            found = self._groups[group_id] = _Described(epoch)
        return found


def has_plugin(config: ConfigReader) -> bool:
    """Return whether descriptions are kept."""
    return bool(config.get_str(_PLUGIN_KEY))


def _check(description: Message) -> None:
    """Check the types of a description's nodes. Raises CoordinatorError: INVALID_REQUEST."""
    for part in description.subtopologies:
        _check_types(part.nodes)
    for store in description.global_stores:
        _check_types((store.source, store.processor))
        if (store.source.node_type, store.processor.node_type) != (SOURCE, PROCESSOR):
            text = "Global store must be composed of a source and a processor node."
            raise CoordinatorError(error_codes.INVALID_REQUEST, text)


def _check_types(nodes: Iterable[Message]) -> None:
    for node in nodes:
        if node.node_type not in (SOURCE, PROCESSOR, SINK):
            raise CoordinatorError(error_codes.INVALID_REQUEST, f"Unknown topology node type: {node.node_type}")
