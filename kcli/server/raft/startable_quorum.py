"""Checks whether a node can take part in the metadata quorum of its directory.

the voters are                                   the node
-----------------------------------------------  ----------------------------------------------------------------------
this node, with this directory, alone or not     is a voter, if it is a controller; else refused
this node, with another directory, and others    observes; a controller can be added
this node alone, with another directory          refused: it is not the voter's directory
other nodes, whose addresses are known           observes; a controller can be added
one other node, with the address of this one      refused: node.id is wrong
not known, but controller.quorum.bootstrap.      observes; a controller can be added
servers is set
known by their ids alone, or not known           refused: set controller.quorum.voters, or format the directory
"""

from __future__ import annotations

from kcli.network.events import PeerAddress
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.voter_set import find_voter, voter_ids


def refusal(raft: KafkaRaftClient, *, is_controller: bool) -> str | None:
    """Return why this node cannot serve its quorum, None if it can; `raft` is started."""
    config, core = raft.config, raft.core
    ids = voter_ids(raft.voters) or raft.recorded_voter_ids
    own = find_voter(raft.voters, config.node_id)
    if core.is_voter and not is_controller:
        return (
            f"{config.directory}: node {config.node_id} is a voter of the metadata quorum, and process.roles does not contain "
            "controller: add it, or remove the voter (kafka-metadata-quorum remove-controller) first"
        )
    if own is not None and not core.is_voter and len(ids) == 1:
        return (
            f"{config.directory}: voter {config.node_id} of the metadata quorum has the directory id {own.key.directory_id}, "
            f"and meta.properties states {core.config.local.directory_id}: set metadata.log.dir to the directory of the voter, "
            "or restore its meta.properties"
        )
    endpoints = {(at.host, at.port) for at in config.core.endpoints}
    if len(raft.voters) == 1 and own is None:
        (voter,) = raft.voters
        shared = next((PeerAddress(at.host, at.port) for at in voter.endpoints if (at.host, at.port) in endpoints), None)
        if shared is not None:
            return (
                f"{config.directory}: voter {voter.key.node_id} of the metadata quorum has the address {shared}, which is also "
                f"this node's, and node.id is {config.node_id}: correct node.id or listeners"
            )
    if raft.voters or config.core.bootstrap_servers:
        return None
    if ids and ids != (config.node_id,):
        named = ", ".join(map(str, ids))
        return (
            f"{config.directory}: the metadata quorum has the voters {named}, and node.id is {config.node_id}: set "
            "controller.quorum.voters to their addresses, or correct node.id"
        )
    if not is_controller:
        return (
            f"{config.directory}: no controller is known: set controller.quorum.bootstrap.servers to the addresses of the "
            "cluster's controllers"
        )
    at = next(iter(config.core.endpoints), None)
    address = PeerAddress("localhost", 9093) if at is None else PeerAddress(at.host, at.port)
    return (
        f"{config.directory}: neither the metadata log nor quorum-state names a voter of the metadata quorum; if this node is "
        f"the only controller, set controller.quorum.voters={config.node_id}@{address}, or format an empty directory with "
        "`kcli format --standalone`"
    )
