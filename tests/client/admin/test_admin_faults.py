"""Protects: whichever request or answer of an administrator is lost, late or cut off, the operation ends as it does without
that, or, if it was executed twice, with the error that says so; and it ends within default.api.timeout.ms.

The broker is a whole node of kcli in virtual time; in each run another request meets the fault (tests.client.faulty_node). A
script answers the requests that kcli's node does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.client.admin import (
    cluster,
    configs,
    group_offsets,
    groups,
    log_dirs,
    partitions,
    quotas,
    security,
    streams,
    topics,
    transactions,
)
from kcli.client.admin.driver import AdminCore
from kcli.client.admin.operation import Operation
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.shell.admin import Admin
from kcli.client.value_checks import OffsetAndMetadata
from kcli.format.kafka_uuid import Uuid
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_KEYS,
    CREATE_ACLS,
    CREATE_DELEGATION_TOKEN,
    DELETE_ACLS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_DELEGATION_TOKEN,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    EXPIRE_DELEGATION_TOKEN,
    REMOVE_RAFT_VOTER,
    RENEW_DELEGATION_TOKEN,
    UNREGISTER_CONTROLLER,
)
from tests.client.admin.scripted_cluster import CLOSED, SILENT, ScriptedCluster
from tests.client.clients_of_node import client_of
from tests.client.faulty_node import FAULTS, SHORT_TIMEOUTS, Fault, FaultyNode
from tests.server.whole_node import batch

API_TIMEOUT_MS = 10_000
DIRECTORY_ID = Uuid(b"\1" * 16)
TOPIC = configs.ResourceType.TOPIC


class Case(NamedTuple):
    """An operation; `name` is that of a topic, of its groups and of a transactional id, which each run has of its own.

    `again` are errors of an operation that is executed a second time since the answer to the first one was lost; `seen` returns
    what is compared of its result.
    """

    operation: Callable[[str], Operation[Any]]
    again: frozenset[str] = frozenset()
    seen: Callable[[Any, str], object] = lambda result, name: result


def share(name: str) -> str:
    return f"{name}-share"


def entity(name: str) -> quotas.QuotaEntity:
    return quotas.entity_of({"user": name})


def with_name(items: Any, name: str) -> list[str]:
    """Those of a listing that are of this run."""
    return sorted(repr(one) for one in items if name in repr(one))


BINDING = security.AclBinding(2, "t", 3, "User:a", "*", 3, 3)
ENDPOINT = cluster.RaftEndpoint("CONTROLLER", "127.0.0.1", 9)
CASES: dict[str, Case] = {
    "create_topics": Case(lambda n: topics.create_topics([topics.NewTopic(f"{n}-b", 2)]), frozenset({"TOPIC_ALREADY_EXISTS"})),
    "delete_topics": Case(lambda n: topics.delete_topics([n]), frozenset({"UNKNOWN_TOPIC_OR_PARTITION"})),
    "list_topics": Case(lambda n: topics.list_topics(), seen=lambda found, n: found[n].name),
    "describe_topics": Case(lambda n: topics.describe_topics([n, "none"])),
    "create_partitions": Case(
        lambda n: topics.create_partitions({n: topics.NewPartitions(4)}), frozenset({"INVALID_PARTITIONS"})
    ),
    "list_offsets": Case(lambda n: partitions.list_offsets({(n, 0): -1, (n, 1): -2})),
    "delete_records": Case(lambda n: partitions.delete_records({(n, 0): 2})),
    "describe_producers": Case(lambda n: partitions.describe_producers([(n, 0)])),
    "elect_leaders": Case(lambda n: partitions.elect_leaders(partitions.ElectionType.PREFERRED, [(n, 0)])),
    "alter_partition_reassignments": Case(lambda n: partitions.alter_partition_reassignments({(n, 0): [1]})),
    "list_partition_reassignments": Case(lambda n: partitions.list_partition_reassignments([(n, 0)])),
    "describe_configs": Case(lambda n: configs.describe_configs([configs.ConfigResource(TOPIC, n)], names=["retention.ms"])),
    "incremental_alter_configs": Case(
        lambda n: configs.incremental_alter_configs(
            {configs.ConfigResource(TOPIC, n): [configs.AlterConfigOp("retention.ms", configs.AlterOperation.SET, "7")]}
        )
    ),
    "list_config_resources": Case(lambda n: configs.list_config_resources([TOPIC]), seen=with_name),
    "list_client_metrics_resources": Case(lambda n: configs.list_client_metrics_resources()),
    "list_groups": Case(lambda n: groups.list_groups(), seen=lambda found, n: (with_name(found.groups, n), found.errors)),
    "describe_consumer_groups": Case(lambda n: groups.describe_consumer_groups([n, "none"])),
    "describe_classic_groups": Case(lambda n: groups.describe_classic_groups([n])),
    "describe_share_groups": Case(lambda n: groups.describe_share_groups([share(n)])),
    "find_coordinators": Case(lambda n: groups.find_coordinators([n])),
    "delete_groups": Case(lambda n: groups.delete_groups([n]), frozenset({"GROUP_ID_NOT_FOUND"})),
    "remove_members_from_group": Case(lambda n: groups.remove_members_from_group(n, [groups.MemberToRemove("instance")])),
    "describe_streams_groups": Case(lambda n: streams.describe_streams_groups([n])),
    "list_consumer_group_offsets": Case(lambda n: group_offsets.list_consumer_group_offsets({n: None})),
    "alter_consumer_group_offsets": Case(
        lambda n: group_offsets.alter_consumer_group_offsets(n, {(n, 1): OffsetAndMetadata(1)})
    ),
    "delete_consumer_group_offsets": Case(lambda n: group_offsets.delete_consumer_group_offsets(n, [(n, 0)])),
    "list_share_group_offsets": Case(lambda n: group_offsets.list_share_group_offsets({share(n): None})),
    "alter_share_group_offsets": Case(lambda n: group_offsets.alter_share_group_offsets(share(n), {(n, 0): 1})),
    "delete_share_group_offsets": Case(
        lambda n: group_offsets.delete_share_group_offsets(share(n), [n]), frozenset({"UNKNOWN_TOPIC_OR_PARTITION"})
    ),
    "list_transactions": Case(
        lambda n: transactions.list_transactions(),
        seen=lambda found, n: [one.state for one in found.by_broker[1] if one.transactional_id == n],
    ),
    "describe_transactions": Case(
        lambda n: transactions.describe_transactions([n]), seen=lambda found, n: (found[n].state, found[n].partitions)
    ),
    "abort_transaction": Case(lambda n: transactions.abort_transaction(transactions.AbortTransactionSpec(n, 0, 99_999, 0, 0))),
    "fence_producers": Case(lambda n: transactions.fence_producers([n]), seen=lambda found, n: type(found[n])),
    "find_hanging_transactions": Case(lambda n: transactions.find_hanging_transactions([(n, 0)], older_than_ms=1)),
    "describe_cluster": Case(lambda n: cluster.describe_cluster()),
    "unregister_broker": Case(lambda n: cluster.unregister_broker(99)),
    "unregister_controller": Case(lambda n: cluster.unregister_controller(99)),
    "describe_api_versions": Case(lambda n: cluster.describe_api_versions()),
    "describe_features": Case(lambda n: cluster.describe_features(), seen=lambda found, n: found.finalized),
    "update_features": Case(lambda n: cluster.update_features({"no.such.feature": cluster.FeatureUpdate(1)})),
    "describe_metadata_quorum": Case(
        lambda n: cluster.describe_metadata_quorum(), seen=lambda found, n: (found.leader_id, len(found.voters))
    ),
    "add_raft_voter": Case(lambda n: cluster.add_raft_voter(9, DIRECTORY_ID, [ENDPOINT])),
    "remove_raft_voter": Case(lambda n: cluster.remove_raft_voter(9, DIRECTORY_ID)),
    "describe_log_dirs": Case(
        lambda n: log_dirs.describe_log_dirs([1], [(n, 0)]),
        seen=lambda found, n: [list(one.replicas) for one in found[1].values()],
    ),
    "describe_replica_log_dirs": Case(lambda n: log_dirs.describe_replica_log_dirs([log_dirs.TopicPartitionReplica(n, 0, 1)])),
    "alter_replica_log_dirs": Case(
        lambda n: log_dirs.alter_replica_log_dirs({log_dirs.TopicPartitionReplica(n, 0, 1): "/no/such/directory"})
    ),
    "describe_acls": Case(lambda n: security.describe_acls()),
    "create_acls": Case(lambda n: security.create_acls([BINDING])),
    "delete_acls": Case(lambda n: security.delete_acls([security.AclBindingFilter()])),
    "describe_user_scram_credentials": Case(lambda n: security.describe_user_scram_credentials([n])),
    "alter_user_scram_credentials": Case(
        lambda n: security.alter_user_scram_credentials(
            [security.ScramUpsertion(n, security.ScramMechanism.SCRAM_SHA_256, 4096, b"salt", b"p" * 32)]
        )
    ),
    "create_delegation_token": Case(lambda n: security.create_delegation_token()),
    "renew_delegation_token": Case(lambda n: security.renew_delegation_token(b"h")),
    "expire_delegation_token": Case(lambda n: security.expire_delegation_token(b"h")),
    "describe_delegation_token": Case(lambda n: security.describe_delegation_token()),
    "describe_client_quotas": Case(lambda n: quotas.describe_client_quotas(), seen=lambda found, n: found.get(entity(n))),
    "alter_client_quotas": Case(lambda n: quotas.alter_client_quotas({entity(n): {"producer_byte_rate": 5.0}})),
}
# What kcli's node does not have, and the API.
OF_OTHER_BROKERS = {
    "add_raft_voter": ADD_RAFT_VOTER,
    "remove_raft_voter": REMOVE_RAFT_VOTER,
    "unregister_controller": UNREGISTER_CONTROLLER,
    "describe_acls": DESCRIBE_ACLS,
    "create_acls": CREATE_ACLS,
    "delete_acls": DELETE_ACLS,
    "describe_user_scram_credentials": DESCRIBE_USER_SCRAM_CREDENTIALS,
    "alter_user_scram_credentials": ALTER_USER_SCRAM_CREDENTIALS,
    "create_delegation_token": CREATE_DELEGATION_TOKEN,
    "renew_delegation_token": RENEW_DELEGATION_TOKEN,
    "expire_delegation_token": EXPIRE_DELEGATION_TOKEN,
    "describe_delegation_token": DESCRIBE_DELEGATION_TOKEN,
    "describe_client_quotas": DESCRIBE_CLIENT_QUOTAS,
    "alter_client_quotas": ALTER_CLIENT_QUOTAS,
}


class AdminApp:
    """An administrator."""

    def __init__(self, node: FaultyNode, name: str) -> None:
        self.node = node
        self.client, _ = client_of(node, name, {**SHORT_TIMEOUTS, "default_api_timeout_ms": API_TIMEOUT_MS})
        self.core = AdminCore(self.client.network)
        self.client.poll = self.core.poll

    def execute(self, operation: Operation[Any]) -> Any:
        """Execute an operation; return its result or its error. It must end in its time."""
        found: list[Any] = []
        began_ms = self.node.now_ms
        self.client.network.timer.observe(began_ms)
        self.core.start(operation, lambda result, now_ms: found.append(result), began_ms)
        self.node.until(lambda: bool(found), 600_000)
        assert self.node.now_ms - began_ms <= API_TIMEOUT_MS, "the operation has not ended in its time"
        return found[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultyNode]:
    node = FaultyNode(
        tmp_path,
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "share.coordinator.state.topic.num.partitions=1",
        "num.partitions=1",
    )
    yield node
    node.clients.clear()
    node.stop()


def make_objects(node: FaultyNode, admin: AdminApp, name: str) -> None:
    """Make what the operations are about: a topic with records, offsets of groups, a transactional id."""
    node.create_topic(name, 2)
    pending = node.produce(name, 0, batch(b"a", b"b", b"c"))
    node.until(lambda: pending.answer is not None)
    for operation in (
        group_offsets.alter_consumer_group_offsets(name, {(name, 0): OffsetAndMetadata(2)}),
        group_offsets.alter_share_group_offsets(share(name), {(name, 0): 2}),
        transactions.fence_producers([name]),
    ):
        outcomes = admin.execute(operation)
        assert not [one for one in outcomes.values() if isinstance(one, ClientError)], outcomes


def text_of(case: Case, result: Any, name: str) -> str:
    """Return what is compared of an outcome, without what each run has of its own."""
    shown = result if isinstance(result, ClientError) else case.seen(result, name)
    return re.sub(r"_id=[\w-]{22}", "_id=AN-ID", repr(shown).replace(name, "NAME"))


def is_repeated(case: Case, result: Any) -> bool:
    """Return whether the errors of an outcome say that the operation was executed before."""
    found = [result] if isinstance(result, ClientError) else list(result.values()) if isinstance(result, dict) else []
    return bool(found) and all(isinstance(one, KafkaError) and one.name in case.again for one in found)


def test_all_operations_are_here() -> None:
    methods = {name for name in vars(Admin) if not name.startswith("_")} - {"execute", "close", "unready_brokers"}
    assert methods == set(CASES)


@FAULTS
@pytest.mark.parametrize("method", sorted(CASES.keys() - OF_OTHER_BROKERS.keys()))
def test_an_operation(node: FaultyNode, fault: Fault, method: str) -> None:
    case = CASES[method]
    setup = AdminApp(node, "setup")
    make_objects(node, setup, "expected")
    expected = text_of(case, setup.execute(case.operation("expected")), "expected")
    assert "TimeoutError" not in expected and "UnsupportedVersionError" not in expected
    for run in node.runs(fault):
        name = f"name{run}x"
        with node.undisturbed():
            make_objects(node, setup, name)
            admin = AdminApp(node, "admin")
            admin.execute(topics.describe_topics([name]))  # the connections are made
        result = admin.execute(case.operation(name))
        is_applied = fault not in (Fault.CUT_BEFORE, Fault.LOST_REQUEST, Fault.DELAYED_ANSWER)
        if not (is_applied and is_repeated(case, result)):
            assert text_of(case, result, name) == expected, node.faulty_request
        node.advance(500)  # until late requests have come
        node.remove(admin.client)


@pytest.mark.parametrize("fault", [CLOSED, SILENT], ids=["closed", "silent"])
@pytest.mark.parametrize("method", OF_OTHER_BROKERS)
def test_an_operation_of_other_brokers(fault: object, method: str) -> None:
    """The first request has no answer, the second one has."""
    api_key, case = OF_OTHER_BROKERS[method], CASES[method]

    def run(*before: object) -> tuple[str, int, int]:
        answers = iter(before)
        script = ScriptedCluster(
            {api_key: lambda *_: next(answers, API_KEYS[api_key].response.new())}, timeout_ms=API_TIMEOUT_MS
        )
        script.network.config = script.network.config._replace(request_timeout_ms=SHORT_TIMEOUTS["request_timeout_ms"])
        try:
            result = script.execute(case.operation("t"))
        except ClientError as error:
            result = error
        return repr(result), len(script.requests(api_key)), script.now_ms

    expected, count, _ = run()
    assert count == 1
    found, count, took_ms = run(fault)
    assert (found, count) == (expected, 2) and took_ms < API_TIMEOUT_MS


@FAULTS
def test_the_first_connections(node: FaultyNode, fault: Fault) -> None:
    for run in node.runs(fault):
        admin = AdminApp(node, f"admin {run}")
        result = admin.execute(topics.create_topics([topics.NewTopic("t", 3)], validate_only=True))
        assert result["t"].num_partitions == 3, node.faulty_request
        node.remove(admin.client)
    assert set(node.requests) == {"ApiVersions", "Metadata", "CreateTopics"}


def test_operations_end_in_their_time_without_a_broker(node: FaultyNode) -> None:
    """With Kafka's error: TimeoutException."""
    admin = AdminApp(node, "admin")
    admin.client.is_cut = True
    for case in CASES.values():
        result = admin.execute(case.operation("t"))
        errors = [result] if isinstance(result, ClientError) else list(result.values())
        assert errors and all(isinstance(one, KafkaTimeoutError) for one in errors), result
