"""The sections on the cluster as a whole, as rows of docs/describe.md: directories, features, quorum, nodes, configs, security.

Secrets are left out: a sensitive configuration has no value here, a SCRAM user no salt or key. All sections but the directories
come from the metadata image; without an image the rows are None, which is different from an empty list.
"""

from __future__ import annotations

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.inspect.description.describe_options import DescribeOptions
from kcli.inspect.description.metadata_view import MetadataView
from kcli.inspect.description.sources import SourceDirectory, Sources
from kcli.inspect.json_text import JsonObject as Row
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import METADATA_VERSIONS, ConfigResource, Endpoint, VersionRange, Voter, is_sensitive_config

METADATA_VERSION = "metadata.version"


def cluster_row(sources: Sources, metadata: MetadataView | None) -> Row:
    """Return the section `cluster`."""
    image = None if metadata is None else metadata.image
    return {
        "clusterId": sources.cluster_id,
        "logDirectories": [_directory_row(source) for source in sources.directories],
        "metadata": None if metadata is None else _metadata_row(metadata),
        "features": None if image is None else _feature_rows(image),
        "quorum": None if metadata is None or metadata.is_bootstrap else _quorum_row(metadata),
        "nextProducerId": None if image is None or image.next_producer_id < 0 else image.next_producer_id,
    }


def _directory_row(source: SourceDirectory) -> Row:
    meta, clean = source.meta, source.clean_shutdown
    is_whole = source.listing is not None
    return {
        "path": source.path,
        "isWhole": is_whole,
        "clusterId": None if meta is None else meta.cluster_id,
        "nodeId": None if meta is None else meta.node_id,
        "directoryId": None if meta is None or meta.directory_id is None else str(meta.directory_id),
        "metaVersion": None if meta is None else meta.version,
        "isLive": source.is_live,
        "isCleanShutdown": clean is not None if is_whole else None,
        "brokerEpoch": None if clean is None else clean.broker_epoch,
        "partitions": len(source.partitions),
    }


def _metadata_row(metadata: MetadataView) -> Row:
    return {
        "path": metadata.path,
        "isBootstrap": metadata.is_bootstrap,
        "snapshotEndOffset": metadata.snapshot_end_offset,
        "snapshotEpoch": metadata.snapshot_epoch,
        "snapshotTimestamp": metadata.image.snapshot_timestamp_ms,
        "endOffset": metadata.end_offset,
    }


def _feature_rows(image: MetadataImage) -> list[Row]:
    features = dict(sorted(image.features.items()))
    if image.kraft_version:
        features["kraft.version"] = image.kraft_version
    return [
        {"name": name, "level": level, "version": METADATA_VERSIONS.get(level) if name == METADATA_VERSION else None}
        for name, level in features.items()
    ]


def _quorum_row(metadata: MetadataView) -> Row:
    state, image = metadata.quorum_state, metadata.image
    voters = image.voters
    if not voters and state is not None:
        voters = {voter_id: Voter(voter_id) for voter_id in state.current_voters or ()}
    leader_id = state.leader_id if state is not None else image.leader_id
    voted_directory = None if state is None or state.voted_directory_id == ZERO_UUID else str(state.voted_directory_id)
    return {
        "leaderId": leader_id if leader_id is not None and leader_id >= 0 else None,
        "leaderEpoch": None if state is None else state.leader_epoch,
        "votedId": None if state is None or state.voted_id < 0 else state.voted_id,
        "votedDirectoryId": voted_directory,
        "kraftVersion": image.kraft_version,
        "voters": [
            {
                "id": voter.voter_id,
                "directoryId": None if voter.directory_id == ZERO_UUID else str(voter.directory_id),
                "endpoints": [{"name": name, "host": host, "port": port} for name, (host, port) in voter.endpoints.items()],
            }
            for _, voter in sorted(voters.items())
        ],
    }


def broker_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each broker, by id."""
    return [
        {
            "id": broker.broker_id,
            "epoch": broker.broker_epoch,
            "incarnationId": str(broker.incarnation_id),
            "isFenced": broker.is_fenced,
            "isInControlledShutdown": broker.is_in_controlled_shutdown,
            "rack": broker.rack,
            "endpoints": _endpoint_rows(broker.endpoints),
            "logDirs": _uuids(broker.log_dirs),
            "cordonedLogDirs": None if broker.cordoned_log_dirs is None else _uuids(broker.cordoned_log_dirs),
            "features": _range_rows(broker.features),
        }
        for _, broker in sorted(image.brokers.items())
    ]


def controller_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each controller, by id."""
    return [
        {
            "id": controller.controller_id,
            "incarnationId": str(controller.incarnation_id),
            "endpoints": _endpoint_rows(controller.endpoints),
            "features": _range_rows(controller.features),
        }
        for _, controller in sorted(image.controllers.items())
    ]


def config_rows(image: MetadataImage, options: DescribeOptions) -> list[Row]:
    """Return a row for each configuration that was set, by resource and name; a sensitive one has no value."""
    rows = []
    for resource, configs in sorted(image.configs.items()):
        if not _is_wanted(resource, options):
            continue
        for name, value in sorted(configs.items()):
            is_sensitive = is_sensitive_config(name)
            rows.append(
                {
                    "resourceType": resource.type,
                    "resourceName": resource.name,
                    "name": name,
                    "value": None if is_sensitive else value,
                    "isSensitive": is_sensitive,
                }
            )
    return rows


def _is_wanted(resource: ConfigResource, options: DescribeOptions) -> bool:
    """Return True unless there are globs for topics or groups, and the resource is not one of these."""
    if not options.topics and not options.groups:
        return True
    if resource.type == "TOPIC":
        return bool(options.topics) and options.wants_topic(resource.name)
    return resource.type == "GROUP" and bool(options.groups) and options.wants_group(resource.name)


def acl_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each access control entry, by resource and principal."""
    return [
        {
            "id": str(acl_id),
            "resourceType": acl.resource_type,
            "resourceName": acl.resource_name,
            "patternType": acl.pattern_type,
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permissionType": acl.permission_type,
        }
        for acl_id, acl in sorted(image.acls.items(), key=lambda item: (*item[1], str(item[0])))
    ]


def user_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each SCRAM credential, by user and mechanism, without its secrets."""
    return [
        {"user": user, "mechanism": mechanism, "iterations": credential.iterations}
        for (user, mechanism), credential in sorted(image.scram_credentials.items())
    ]


def quota_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each quota; an entity's name of None is the default of its type."""
    return [
        {"entity": dict(entity), "key": key, "value": value}
        for entity, quotas in sorted(image.client_quotas.items(), key=lambda item: str(item[0]))
        for key, value in sorted(quotas.items())
    ]


def token_rows(image: MetadataImage) -> list[Row]:
    """Return a row for each delegation token, by id; times in ms."""
    return [
        {
            "tokenId": token.token_id,
            "owner": token.owner,
            "requester": token.requester,
            "renewers": token.renewers,
            "issueTimestamp": token.issue_timestamp_ms,
            "expirationTimestamp": token.expiration_timestamp_ms,
            "maxTimestamp": token.max_timestamp_ms,
        }
        for _, token in sorted(image.delegation_tokens.items())
    ]


def _endpoint_rows(endpoints: dict[str, Endpoint]) -> list[Row]:
    return [
        {"name": name, "host": endpoint.host, "port": endpoint.port, "securityProtocol": endpoint.security_protocol}
        for name, endpoint in endpoints.items()
    ]


def _range_rows(features: dict[str, VersionRange]) -> list[Row]:
    return [{"name": name, "lowest": found.lowest, "highest": found.highest} for name, found in sorted(features.items())]


def _uuids(ids: list[Uuid]) -> list[str]:
    return [str(found) for found in ids]
