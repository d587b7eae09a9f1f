"""Protects: whichever error code a broker answers to whichever request of an administrator, also to a lookup, the operation
ends in its right result or in that error, within default.api.timeout.ms, and what must not be done twice is sent once.

The broker is a whole node of kcli in virtual time; in each run another request meets the code (tests.client.refusing_node). A
script answers the requests that kcli's node does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.client.admin.topics import describe_topics
from kcli.client.errors import ClientError
from kcli.protocol import apis
from kcli.protocol import error_codes as codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from tests.client.admin.scripted_cluster import ScriptedCluster
from tests.client.admin.test_admin_faults import (
    API_TIMEOUT_MS,
    CASES,
    OF_OTHER_BROKERS,
    AdminApp,
    is_repeated,
    make_objects,
    text_of,
)
from tests.client.refusing_node import OF_LEADER_LOOKUP, Refusal, RefusingNode, refusals_of

CONTROLLER = (codes.NOT_CONTROLLER,)
CHANGES = (codes.NOT_CONTROLLER, codes.THROTTLING_QUOTA_EXCEEDED)
COORDINATOR = (codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
LEADER = (
    codes.NOT_LEADER_OR_FOLLOWER,
    codes.LEADER_NOT_AVAILABLE,
    codes.REPLICA_NOT_AVAILABLE,
    codes.KAFKA_STORAGE_ERROR,
    codes.FENCED_LEADER_EPOCH,
    codes.UNKNOWN_LEADER_EPOCH,
    codes.OFFSET_NOT_AVAILABLE,
    codes.UNKNOWN_TOPIC_OR_PARTITION,
)
TIMED_OUT = (codes.REQUEST_TIMED_OUT,)
GROUP_LOOKUP = refusals_of(apis.FIND_COORDINATOR, "Coordinator", *COORDINATOR)
OF_BROKERS = refusals_of(apis.METADATA, "", codes.REBOOTSTRAP_REQUIRED)
LOADING = (codes.COORDINATOR_LOAD_IN_PROGRESS,)


def read(api_key: int, struct: str, *some: int) -> list[Refusal]:
    """Refusals of a request that changes nothing, so that the node may execute it."""
    return refusals_of(api_key, struct, *some, is_executed=True)


# The operation ends in its right result.
PASSING: dict[str, list[Refusal]] = {
    "create_topics": refusals_of(apis.CREATE_TOPICS, "CreatableTopicResult", *CHANGES),
    "delete_topics": refusals_of(apis.DELETE_TOPICS, "DeletableTopicResult", *CHANGES),
    "list_topics": OF_BROKERS,
    "create_partitions": refusals_of(apis.CREATE_PARTITIONS, "CreatePartitionsTopicResult", *CHANGES),
    "list_offsets": [*OF_LEADER_LOOKUP, *refusals_of(apis.LIST_OFFSETS, "ListOffsetsPartitionResponse", *LEADER, *TIMED_OUT)],
    "delete_records": [
        *OF_LEADER_LOOKUP,
        *refusals_of(apis.DELETE_RECORDS, "DeleteRecordsPartitionResult", *LEADER, *TIMED_OUT),
    ],
    "describe_producers": [*OF_LEADER_LOOKUP, *read(apis.DESCRIBE_PRODUCERS, "PartitionResponse", *LEADER)],
    "elect_leaders": [
        *refusals_of(apis.ELECT_LEADERS, "", *CONTROLLER, *TIMED_OUT),
        *read(apis.ELECT_LEADERS, "PartitionResult", *CONTROLLER),
    ],
    "alter_partition_reassignments": refusals_of(apis.ALTER_PARTITION_REASSIGNMENTS, "", *CONTROLLER),
    "list_partition_reassignments": refusals_of(apis.LIST_PARTITION_REASSIGNMENTS, "", *CONTROLLER, *TIMED_OUT),
    "incremental_alter_configs": refusals_of(apis.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResourceResponse", *TIMED_OUT),
    "list_groups": [*OF_BROKERS, *refusals_of(apis.LIST_GROUPS, "", *LOADING, codes.COORDINATOR_NOT_AVAILABLE)],
    "describe_consumer_groups": [
        *GROUP_LOOKUP,
        *read(apis.CONSUMER_GROUP_DESCRIBE, "DescribedGroup", *COORDINATOR),
        *read(apis.DESCRIBE_GROUPS, "DescribedGroup", *COORDINATOR),
    ],
    "describe_classic_groups": read(apis.DESCRIBE_GROUPS, "DescribedGroup", *COORDINATOR),
    "describe_share_groups": [*GROUP_LOOKUP, *read(apis.SHARE_GROUP_DESCRIBE, "DescribedGroup", *COORDINATOR)],
    "describe_streams_groups": read(apis.STREAMS_GROUP_DESCRIBE, "DescribedGroup", *COORDINATOR),
    "find_coordinators": refusals_of(
        apis.FIND_COORDINATOR, "Coordinator", codes.COORDINATOR_LOAD_IN_PROGRESS, codes.COORDINATOR_NOT_AVAILABLE
    ),
    "delete_groups": [*GROUP_LOOKUP, *refusals_of(apis.DELETE_GROUPS, "DeletableGroupResult", *COORDINATOR)],
    "remove_members_from_group": refusals_of(apis.LEAVE_GROUP, "", *COORDINATOR),
    "list_consumer_group_offsets": [
        *GROUP_LOOKUP,
        *refusals_of(apis.OFFSET_FETCH, "OffsetFetchResponseGroup", *COORDINATOR),
    ],
    "alter_consumer_group_offsets": refusals_of(
        apis.OFFSET_COMMIT, "OffsetCommitResponsePartition", *COORDINATOR, codes.REBALANCE_IN_PROGRESS, *TIMED_OUT
    ),
    "delete_consumer_group_offsets": refusals_of(apis.OFFSET_DELETE, "", *COORDINATOR),
    "list_share_group_offsets": read(apis.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsetsResponseGroup", *COORDINATOR),
    "alter_share_group_offsets": refusals_of(apis.ALTER_SHARE_GROUP_OFFSETS, "", *COORDINATOR),
    "delete_share_group_offsets": refusals_of(apis.DELETE_SHARE_GROUP_OFFSETS, "", *COORDINATOR),
    "list_transactions": [*OF_BROKERS, *refusals_of(apis.LIST_TRANSACTIONS, "", *LOADING)],
    "describe_transactions": [*GROUP_LOOKUP, *read(apis.DESCRIBE_TRANSACTIONS, "TransactionState", *COORDINATOR)],
    "abort_transaction": [
        *OF_LEADER_LOOKUP,
        *refusals_of(
            apis.WRITE_TXN_MARKERS,
            "WritableTxnMarkerPartitionResult",
            codes.NOT_LEADER_OR_FOLLOWER,
            codes.REPLICA_NOT_AVAILABLE,
            codes.UNKNOWN_TOPIC_OR_PARTITION,
        ),
    ],
    "fence_producers": [
        *GROUP_LOOKUP,
        *refusals_of(apis.INIT_PRODUCER_ID, "", *COORDINATOR, codes.CONCURRENT_TRANSACTIONS, *TIMED_OUT),
    ],
    "find_hanging_transactions": read(apis.DESCRIBE_PRODUCERS, "PartitionResponse", codes.NOT_LEADER_OR_FOLLOWER),
    "describe_cluster": refusals_of(apis.DESCRIBE_CLUSTER, "", *TIMED_OUT),
    "unregister_broker": refusals_of(apis.UNREGISTER_BROKER, "", *CONTROLLER, *TIMED_OUT),
    "update_features": refusals_of(apis.UPDATE_FEATURES, "", *CONTROLLER),
    "describe_metadata_quorum": [
        *refusals_of(apis.DESCRIBE_QUORUM, "", *CONTROLLER, codes.NOT_LEADER_OR_FOLLOWER),
        *read(apis.DESCRIBE_QUORUM, "PartitionData", codes.NOT_LEADER_OR_FOLLOWER, codes.LEADER_NOT_AVAILABLE),
    ],
}
# It ends in the error at once: what a broker refuses for ever, and timeouts of requests that must not be done twice.
LASTING = (codes.UNKNOWN_SERVER_ERROR, codes.CLUSTER_AUTHORIZATION_FAILED)
OF_TOPIC = (codes.UNKNOWN_SERVER_ERROR, codes.TOPIC_AUTHORIZATION_FAILED)
OF_GROUP = (codes.UNKNOWN_SERVER_ERROR, codes.GROUP_AUTHORIZATION_FAILED)
GROUP_LOOKUP_FAILS = refusals_of(apis.FIND_COORDINATOR, "Coordinator", codes.GROUP_AUTHORIZATION_FAILED, codes.INVALID_GROUP_ID)
LEADER_LOOKUP_FAILS = refusals_of(
    apis.METADATA, "MetadataResponseTopic", codes.TOPIC_AUTHORIZATION_FAILED, codes.INVALID_TOPIC_EXCEPTION
)
RAISED: dict[str, list[Refusal]] = {
    "create_topics": refusals_of(
        apis.CREATE_TOPICS, "CreatableTopicResult", *LASTING, codes.POLICY_VIOLATION, codes.INVALID_REPLICATION_FACTOR
    )
    + read(apis.CREATE_TOPICS, "CreatableTopicResult", *TIMED_OUT),
    "delete_topics": refusals_of(apis.DELETE_TOPICS, "DeletableTopicResult", *OF_TOPIC, codes.TOPIC_DELETION_DISABLED)
    + read(apis.DELETE_TOPICS, "DeletableTopicResult", *TIMED_OUT),
    "describe_topics": read(apis.DESCRIBE_TOPIC_PARTITIONS, "DescribeTopicPartitionsResponseTopic", *OF_TOPIC),
    "create_partitions": refusals_of(
        apis.CREATE_PARTITIONS, "CreatePartitionsTopicResult", *OF_TOPIC, codes.REASSIGNMENT_IN_PROGRESS
    )
    + read(apis.CREATE_PARTITIONS, "CreatePartitionsTopicResult", *TIMED_OUT),
    "list_offsets": [
        *LEADER_LOOKUP_FAILS,
        *refusals_of(apis.LIST_OFFSETS, "ListOffsetsPartitionResponse", *OF_TOPIC, codes.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ],
    "delete_records": [
        *LEADER_LOOKUP_FAILS,
        *refusals_of(
            apis.DELETE_RECORDS, "DeleteRecordsPartitionResult", *OF_TOPIC, codes.OFFSET_OUT_OF_RANGE, codes.POLICY_VIOLATION
        ),
    ],
    "describe_producers": read(apis.DESCRIBE_PRODUCERS, "PartitionResponse", *OF_TOPIC),
    "elect_leaders": refusals_of(apis.ELECT_LEADERS, "", *LASTING)
    + read(apis.ELECT_LEADERS, "PartitionResult", codes.ELIGIBLE_LEADERS_NOT_AVAILABLE, codes.PREFERRED_LEADER_NOT_AVAILABLE),
    "alter_partition_reassignments": refusals_of(apis.ALTER_PARTITION_REASSIGNMENTS, "", *LASTING)
    + read(apis.ALTER_PARTITION_REASSIGNMENTS, "ReassignablePartitionResponse", codes.INVALID_REPLICA_ASSIGNMENT),
    "list_partition_reassignments": refusals_of(apis.LIST_PARTITION_REASSIGNMENTS, "", *LASTING),
    "describe_configs": read(apis.DESCRIBE_CONFIGS, "DescribeConfigsResult", *OF_TOPIC),
    "incremental_alter_configs": refusals_of(
        apis.INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResourceResponse", *OF_TOPIC, codes.INVALID_CONFIG
    ),
    "list_config_resources": refusals_of(apis.LIST_CONFIG_RESOURCES, "", *LASTING),
    "list_groups": refusals_of(apis.LIST_GROUPS, "", *LASTING),
    "describe_consumer_groups": GROUP_LOOKUP_FAILS + read(apis.CONSUMER_GROUP_DESCRIBE, "DescribedGroup", *OF_GROUP),
    "describe_classic_groups": GROUP_LOOKUP_FAILS + read(apis.DESCRIBE_GROUPS, "DescribedGroup", *OF_GROUP),
    "describe_share_groups": read(apis.SHARE_GROUP_DESCRIBE, "DescribedGroup", *OF_GROUP),
    "find_coordinators": GROUP_LOOKUP_FAILS,
    "delete_groups": refusals_of(apis.DELETE_GROUPS, "DeletableGroupResult", *OF_GROUP, codes.NON_EMPTY_GROUP),
    "remove_members_from_group": refusals_of(apis.LEAVE_GROUP, "", *OF_GROUP),
    "list_consumer_group_offsets": GROUP_LOOKUP_FAILS + refusals_of(apis.OFFSET_FETCH, "OffsetFetchResponseGroup", *OF_GROUP),
    "alter_consumer_group_offsets": refusals_of(
        apis.OFFSET_COMMIT, "OffsetCommitResponsePartition", *OF_GROUP, codes.UNKNOWN_MEMBER_ID
    ),
    "delete_consumer_group_offsets": refusals_of(apis.OFFSET_DELETE, "", *OF_GROUP, codes.NON_EMPTY_GROUP)
    + read(apis.OFFSET_DELETE, "OffsetDeleteResponsePartition", codes.GROUP_SUBSCRIBED_TO_TOPIC),
    "list_share_group_offsets": read(apis.DESCRIBE_SHARE_GROUP_OFFSETS, "DescribeShareGroupOffsetsResponseGroup", *OF_GROUP),
    "alter_share_group_offsets": refusals_of(apis.ALTER_SHARE_GROUP_OFFSETS, "", *OF_GROUP, codes.NON_EMPTY_GROUP),
    "delete_share_group_offsets": refusals_of(apis.DELETE_SHARE_GROUP_OFFSETS, "", *OF_GROUP, codes.NON_EMPTY_GROUP),
    "list_transactions": refusals_of(apis.LIST_TRANSACTIONS, "", codes.UNKNOWN_SERVER_ERROR, codes.COORDINATOR_NOT_AVAILABLE),
    "describe_transactions": read(
        apis.DESCRIBE_TRANSACTIONS, "TransactionState", codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.UNKNOWN_SERVER_ERROR
    ),
    "abort_transaction": LEADER_LOOKUP_FAILS
    + refusals_of(
        apis.WRITE_TXN_MARKERS,
        "WritableTxnMarkerPartitionResult",
        *LASTING,
        codes.INVALID_PRODUCER_EPOCH,
        codes.TRANSACTION_COORDINATOR_FENCED,
    ),
    "fence_producers": refusals_of(
        apis.INIT_PRODUCER_ID, "", codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, codes.PRODUCER_FENCED
    ),
    "find_hanging_transactions": read(apis.DESCRIBE_PRODUCERS, "PartitionResponse", codes.TOPIC_AUTHORIZATION_FAILED),
    "describe_cluster": refusals_of(apis.DESCRIBE_CLUSTER, "", *LASTING),
    "unregister_broker": refusals_of(apis.UNREGISTER_BROKER, "", *LASTING),
    "update_features": refusals_of(apis.UPDATE_FEATURES, "", *LASTING, codes.FEATURE_UPDATE_FAILED),
    "describe_metadata_quorum": refusals_of(apis.DESCRIBE_QUORUM, "", *LASTING)
    + read(apis.DESCRIBE_QUORUM, "PartitionData", codes.UNKNOWN_SERVER_ERROR, codes.UNKNOWN_TOPIC_OR_PARTITION),
    "describe_log_dirs": refusals_of(apis.DESCRIBE_LOG_DIRS, "", *LASTING),
    "describe_replica_log_dirs": refusals_of(apis.DESCRIBE_LOG_DIRS, "", *LASTING),
    "alter_replica_log_dirs": read(
        apis.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirPartitionResult", codes.KAFKA_STORAGE_ERROR, codes.UNKNOWN_SERVER_ERROR
    ),
}


def of(refusals: dict[str, list[Refusal]]) -> pytest.MarkDecorator:
    """A case for each refusal of each method; all but the first of a method take minutes together."""
    return pytest.mark.parametrize(
        ("method", "refusal"),
        [
            pytest.param(method, one, id=f"{method} {one.name}", marks=[] if number == 0 else pytest.mark.ci)
            for method, found in refusals.items()
            for number, one in enumerate(found)
        ],
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RefusingNode]:
    node = RefusingNode(
        tmp_path,
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "share.coordinator.state.topic.num.partitions=1",
        "num.partitions=1",
    )
    yield node
    node.clients.clear()
    node.stop()


def results(node: RefusingNode, method: str, refusal: Refusal) -> Iterator[tuple[str, Any, str]]:
    """Yield the name and the result of each run, and what is compared of the one without refusal."""
    case = CASES[method]
    setup = AdminApp(node, "setup")
    make_objects(node, setup, "expected")
    expected = text_of(case, setup.execute(case.operation("expected")), "expected")
    for run in node.refusals(refusal):
        name = f"name{run}x"
        with node.undisturbed():
            make_objects(node, setup, name)
            admin = AdminApp(node, "admin")
            admin.execute(describe_topics([name]))  # the connections are made
        node.requests.clear()
        yield name, admin.execute(case.operation(name)), expected
        node.remove(admin.client)
    assert run > 1, "no request was refused"


@of(PASSING)
def test_an_error_that_passes(node: RefusingNode, method: str, refusal: Refusal) -> None:
    case = CASES[method]
    for name, result, expected in results(node, method, refusal):
        assert text_of(case, result, name) == expected or (refusal.is_executed and is_repeated(case, result))


@of(RAISED)
def test_an_error_that_stays(node: RefusingNode, method: str, refusal: Refusal) -> None:
    for name, result, expected in results(node, method, refusal):
        assert refusal in GROUP_LOOKUP_FAILS or node.requests.count(API_KEYS[refusal.api_key].name) == 1, node.requests
        if node.is_refused:
            assert codes.NAMES[refusal.code] in repr(result)
        else:
            assert text_of(CASES[method], result, name) == expected


# The codes after which the operation is executed again.
PASSING_OF_OTHER_BROKERS = {
    "add_raft_voter": CONTROLLER,
    "remove_raft_voter": CONTROLLER,
    "unregister_controller": (*CONTROLLER, *TIMED_OUT),
    "describe_acls": TIMED_OUT,
    "describe_user_scram_credentials": TIMED_OUT,
    "create_delegation_token": CONTROLLER,
    "renew_delegation_token": CONTROLLER,
    "expire_delegation_token": CONTROLLER,
    "describe_delegation_token": TIMED_OUT,
    "describe_client_quotas": TIMED_OUT,
}


@pytest.mark.parametrize("code", [codes.NOT_CONTROLLER, codes.REQUEST_TIMED_OUT, codes.UNKNOWN_SERVER_ERROR])
@pytest.mark.parametrize("method", PASSING_OF_OTHER_BROKERS)
def test_an_operation_of_other_brokers(method: str, code: int) -> None:
    """The first answer has the code, the second one does not."""
    api_key, case = OF_OTHER_BROKERS[method], CASES[method]
    kind = API_KEYS[api_key].response

    def run(*before: int) -> tuple[str, int]:
        answers = iter(before)
        script = ScriptedCluster(
            {api_key: lambda *_: kind.new(error_code=next(answers, codes.NONE))}, timeout_ms=API_TIMEOUT_MS
        )
        try:
            result: Any = script.execute(case.operation("t"))
        except ClientError as error:
            result = error
        return repr(result), len(script.requests(api_key))

    expected, count = run()
    assert count == 1
    is_retried = code in PASSING_OF_OTHER_BROKERS[method]
    found, count = run(code)
    assert count == 1 + is_retried
    assert (found == expected) if is_retried else (codes.NAMES[code] in found)


def items_of(api_key: int, request: Message, code: int) -> Message:
    """An answer that has the code for each item of the request."""
    kind = API_KEYS[api_key].response
    new = kind.classes
    if api_key == apis.CREATE_ACLS:
        return kind.new(results=[new["AclCreationResult"](error_code=code) for _ in request.creations])
    if api_key == apis.DELETE_ACLS:
        return kind.new(filter_results=[new["DeleteAclsFilterResult"](error_code=code) for _ in request.filters])
    if api_key == apis.ALTER_USER_SCRAM_CREDENTIALS:
        result = new["AlterUserScramCredentialsResult"]
        return kind.new(results=[result(user=one.name, error_code=code) for one in request.upsertions])
    entry, part = new["EntryData"], new["EntityData"]
    return kind.new(
        entries=[
            entry(error_code=code, entity=[part(entity_type=at.entity_type, entity_name=at.entity_name) for at in one.entity])
            for one in request.entries
        ]
    )


@pytest.mark.parametrize("code", [codes.NOT_CONTROLLER, codes.REQUEST_TIMED_OUT, codes.UNKNOWN_SERVER_ERROR])
@pytest.mark.parametrize("method", sorted(OF_OTHER_BROKERS.keys() - PASSING_OF_OTHER_BROKERS.keys()))
def test_an_item_of_an_operation_of_other_brokers(method: str, code: int) -> None:
    """A second deletion finds nothing to delete; the others have the same result again."""
    api_key, case = OF_OTHER_BROKERS[method], CASES[method]
    answers = iter((code, codes.NONE))
    script = ScriptedCluster(
        {api_key: lambda _node, _version, request: items_of(api_key, request, next(answers))}, timeout_ms=API_TIMEOUT_MS
    )
    (outcome,) = script.execute(case.operation("t")).values()
    is_repeatable = method in ("create_acls", "alter_client_quotas")
    is_retried = code == codes.NOT_CONTROLLER or (code == codes.REQUEST_TIMED_OUT and is_repeatable)
    assert len(script.requests(api_key)) == 1 + is_retried
    assert isinstance(outcome, ClientError) != is_retried
    assert is_retried or outcome.name == codes.NAMES[code]
