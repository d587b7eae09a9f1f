"""Checks whether a node can become the leader of the metadata quorum of its directory.

the voters are                                  then
----------------------------------------------  ----------------------------------------------------------
only this node, with this directory             accepted
not known                                       refused: set controller.quorum.voters, or format the directory
several                                         refused: clusters of several nodes are not served yet
another node, or another directory of this one  refused: the directory is not the voter's
"""

from __future__ import annotations

from kcli.network.events import PeerAddress
from kcli.server.raft.kafka_raft_client import KafkaRaftClient


def refusal(raft: KafkaRaftClient) -> str | None:
    """Return why this node can never be the leader, None if it is the only voter; `raft` is started."""
    if raft.quorum.is_only_voter:
        return None
    config, voters = raft.config, raft.history.voters
    ids = list(voters) or list(raft.history.recorded_voter_ids)
    named = ", ".join(map(str, ids))
    if len(ids) > 1:
        return f"{config.directory}: the metadata quorum has the voters {named}; clusters of several nodes are not served yet"
    if ids and ids[0] != config.node_id:
        return (
            f"{config.directory}: the voter of the metadata quorum is node {named}, and node.id is {config.node_id}: "
            "joining a cluster is not served yet; correct node.id or name another directory in log.dirs"
        )
    if ids:
        return (
            f"{config.directory}: voter {named} of the metadata quorum has the directory id {voters[ids[0]].directory_id}, and "
            f"meta.properties states {config.directory_id}: set metadata.log.dir to the directory of the voter, or restore its "
            "meta.properties"
        )
    address = PeerAddress(*next(iter(config.endpoints.values()), ("localhost", 9093)))
    return (
        f"{config.directory}: neither the metadata log nor quorum-state names a voter of the metadata quorum; if this node is "
        f"the only controller, set controller.quorum.voters={config.node_id}@{address}, or format an empty directory with "
        "`kcli format --standalone`"
    )
