"""FindCoordinator: which broker coordinates a group, a transactional id or a share partition.

key type    needs                              coordinator's topic
----------  ---------------------------------  ---------------------
0 group     DESCRIBE on the group              __consumer_offsets
1 txn       DESCRIBE on the transactional id   __transaction_state
2 share     CLUSTER_ACTION, from version 6 on  __share_group_state

The partition of the key decides: its leader is the coordinator. If the topic does not exist, it is created. Until it has a
leader that can be reached on the client's listener, the answer is COORDINATOR_NOT_AVAILABLE, and the client asks again.
Versions 0 to 3 have one key, later ones several.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC
from kcli.server.coordinator.share.share_coordinator import SHARE_STATE_TOPIC, parse_coordinator_key
from kcli.server.coordinator.transaction.transaction_coordinator import TRANSACTION_TOPIC

GROUP, TRANSACTION, SHARE = range(3)
_SEVERAL_KEYS_VERSION = 4
_SHARE_VERSION = 6
_SENTENCES = {
    error_codes.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    error_codes.GROUP_AUTHORIZATION_FAILED: "Not authorized to access group: Group authorization failed.",
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}


class _Found(NamedTuple):
    """The coordinator of a key, or an error."""

    error_code: int
    node_id: int = -1
    host: str = ""
    port: int = -1


def handle_find_coordinator(context: RequestContext, request: Message) -> Message:
    """Answer a FindCoordinatorRequest."""
    if context.version >= _SEVERAL_KEYS_VERSION:
        coordinators = [
            context.new("Coordinator", key=key, **_find(context, request.key_type, key)._asdict())
            for key in request.coordinator_keys
        ]
        return context.new("FindCoordinatorResponse", coordinators=coordinators)
    found = _find(context, request.key_type, request.key)
    sentence = _SENTENCES.get(found.error_code, error_codes.NAMES.get(found.error_code))
    return context.new("FindCoordinatorResponse", error_message=sentence, **found._asdict())


def _find(context: RequestContext, key_type: int, key: str) -> _Found:
    if key_type == GROUP and not context.is_allowed("DESCRIBE", "GROUP", key):
        return _Found(error_codes.GROUP_AUTHORIZATION_FAILED)
    if key_type == TRANSACTION and not context.is_allowed("DESCRIBE", "TRANSACTIONAL_ID", key):
        return _Found(error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if key_type == SHARE:
        if context.version < _SHARE_VERSION:
            return _Found(error_codes.INVALID_REQUEST)
        if not context.is_allowed("CLUSTER_ACTION", "CLUSTER"):
            return _Found(error_codes.CLUSTER_AUTHORIZATION_FAILED)
        try:
            key = parse_coordinator_key(key)
        except (ValueError, FormatError):
            return _Found(error_codes.INVALID_REQUEST)
    elif key_type not in (GROUP, TRANSACTION):
        return _Found(error_codes.INVALID_REQUEST)
    image, broker = context.broker.metadata.image, context.broker
    name, partition_for = {
        GROUP: (GROUP_TOPIC, broker.groups.partition_for),
        TRANSACTION: (TRANSACTION_TOPIC, broker.transactions.partition_for),
        SHARE: (SHARE_STATE_TOPIC, broker.share_coordinator.partition_for),
    }[key_type]
    topic = image.topic(name)
    if topic is None:
        broker.topic_creation.create([name])
        return _Found(error_codes.COORDINATOR_NOT_AVAILABLE)
    partition = topic.partitions.get(partition_for(key))
    leader = None if partition is None else image.brokers.get(partition.leader)
    if leader is None or leader.is_fenced or context.connection.listener not in leader.endpoints:
        return _Found(error_codes.COORDINATOR_NOT_AVAILABLE)
    endpoint = leader.endpoints[context.connection.listener]
    return _Found(error_codes.NONE, partition.leader if partition is not None else -1, endpoint.host, endpoint.port)
