"""Checks whether a node that is a controller can take part in the metadata quorum of its directory.

the voters are                                  a node that is only a controller  a node that is a broker, too
----------------------------------------------  --------------------------------  ------------------------------------
this node, with this directory                  leads                             leads
this node, with this directory, and others      takes part in elections           refused: it is not served yet
this node, with another directory               observes, and can be added        refused: it is not the voter's directory
other nodes                                     observes, and can be added        refused: joining is not served yet
not known, but controller.quorum.bootstrap.     observes, and can be added        refused: joining is not served yet
servers is set
known by their ids alone, or not known          refused: set controller.quorum.voters, or format the directory
"""

from __future__ import annotations

from kcli.network.events import PeerAddress
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.voter_set import find_voter, voter_ids


def refusal(raft: KafkaRaftClient, *, is_broker: bool) -> str | None:
    """Return why this node cannot serve its quorum, None if it can; `raft` is started."""
    config, core = raft.config, raft.core
    ids = voter_ids(raft.voters) or raft.recorded_voter_ids
    if core.is_only_voter or (not is_broker and (raft.voters or config.core.bootstrap_servers)):
        return None
    named, own = ", ".join(map(str, ids)), find_voter(raft.voters, config.node_id)
    if is_broker and len(ids) > 1 and config.node_id in ids:
        return (
            f"{config.directory}: the metadata quorum has the voters {named}, and this node is also a broker, which is served "
            "only with one voter yet: set process.roles=controller"
        )
    if len(ids) > 1 and not raft.voters:
        return (
            f"{config.directory}: the metadata quorum has the voters {named}: set controller.quorum.voters to their addresses"
        )
    if own is not None:
        return (
            f"{config.directory}: voter {config.node_id} of the metadata quorum has the directory id {own.key.directory_id}, "
            f"and meta.properties states {core.config.local.directory_id}: set metadata.log.dir to the directory of the voter, "
            "or restore its meta.properties"
        )
    if ids:
        nodes = f"the voters of the metadata quorum are the nodes {named}" if len(ids) > 1 else f"the voter is node {named}"
        return (
            f"{config.directory}: {nodes}, and node.id is {config.node_id}: a broker that joins a cluster is not served yet; "
            "correct node.id or name another directory in log.dirs"
        )
    at = next(iter(config.core.endpoints), None)
    address = PeerAddress("localhost", 9093) if at is None else PeerAddress(at.host, at.port)
    return (
        f"{config.directory}: neither the metadata log nor quorum-state names a voter of the metadata quorum; if this node is "
        f"the only controller, set controller.quorum.voters={config.node_id}@{address}, or format an empty directory with "
        "`kcli format --standalone`"
    )
