"""`Admin`, whose methods block, and `AsyncAdmin`, whose methods are awaited (Kafka: Admin, KafkaAdminClient).

    with Admin({"bootstrap.servers": "localhost:9092"}) as admin:
        values_of(admin.create_topics([NewTopic("orders", 3)]))

    async with AsyncAdmin({"bootstrap.servers": "localhost:9092"}) as admin:
        groups = await admin.list_groups(states=["Stable"])

The methods are the operations of the modules of kcli.client.admin, with their arguments. A method about several items returns
a dict (Outcomes) whose values are results or a ClientError, such as a KafkaError with the broker's code. It does not raise the
error of one item, since the others may have been changed: `value_of` raises that of one, `values_of` the first of all. A method
about one thing raises its error, and every method one of the whole call: a timeout, no broker, a failed authentication. An
argument of another type than the operation's raises TypeError. Each call ends within default.api.timeout.ms.

With `bootstrap.controllers` instead of `bootstrap.servers` the controllers are asked (KIP-919), also if no broker runs. They
answer the operations whose APIs are in CONTROLLER_APIS (kcli.client.admin.operation); the others have
UNSUPPORTED_ENDPOINT_TYPE, as in Kafka's client.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

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
from kcli.client.client_config import AdminConfig, ClientConfig, read_config, refuse_unknown
from kcli.client.shell.client_builder import Setting, build_network, log_line, property_texts
from kcli.client.shell.client_loop import ClientLoop
from kcli.client.shell.client_thread import ClientThread
from kcli.client.value_checks import check_arguments
from kcli.network.shell.clock import Clock

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenFunction

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _build_core(
    settings: Mapping[str, Setting], clock: Clock, log: Callable[[str], None], oauth_token: TokenFunction | None
) -> AdminCore:
    properties = property_texts(settings)
    refuse_unknown(properties, ClientConfig, AdminConfig)
    controllers = read_config(AdminConfig, properties).bootstrap_controllers
    return AdminCore(build_network(properties, clock, log, oauth_token, controllers))


def _blocking(
    operation: Callable[_Arguments, Operation[_Result]],
) -> Callable[Concatenate[Admin, _Arguments], _Result]:
    """Return the method of Admin for an operation."""

    @functools.wraps(operation)
    def method(admin: Admin, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        check_arguments(operation, args, kwargs)
        return admin.execute(operation(*args, **kwargs))

    return method


def _awaited(
    operation: Callable[_Arguments, Operation[_Result]],
) -> Callable[Concatenate[AsyncAdmin, _Arguments], Awaitable[_Result]]:
    """Return the method of AsyncAdmin for an operation."""

    @functools.wraps(operation)
    def method(admin: AsyncAdmin, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Awaitable[_Result]:
        check_arguments(operation, args, kwargs)
        return admin.execute(operation(*args, **kwargs))

    return method


class Admin:
    """An administrator of a cluster, for any thread; `log` gets a line for each connection that fails."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        log: Callable[[str], None] = log_line,
        oauth_token: TokenFunction | None = None,
    ) -> None:
        """Raises ConfigError for settings that do not exist, or values that they cannot have."""
        clock = Clock()
        self._core = _build_core(settings, clock, log, oauth_token)
        self._thread = ClientThread(self._core, clock, "kcli-admin")

    def execute(self, operation: Operation[_Result]) -> _Result:
        """Execute an operation of kcli.client.admin and return its result. Raises the ClientError that it raises."""
        future: Future[_Result] = self._thread.start(partial(self._core.start, operation))
        return future.result()

    def unready_brokers(self) -> list[str]:
        """Return a sentence for each broker to which a connection is needed and not there, with the reason."""
        return self._core.network.unready()

    def close(self) -> None:
        """Close the connections; operations under way raise IllegalStateError."""
        if not self._core.is_closed and not self._thread.is_forked:
            self._thread.call(self._core.close)
        self._thread.close()

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    create_topics = _blocking(topics.create_topics)
    delete_topics = _blocking(topics.delete_topics)
    list_topics = _blocking(topics.list_topics)
    describe_topics = _blocking(topics.describe_topics)
    create_partitions = _blocking(topics.create_partitions)
    list_offsets = _blocking(partitions.list_offsets)
    delete_records = _blocking(partitions.delete_records)
    describe_producers = _blocking(partitions.describe_producers)
    elect_leaders = _blocking(partitions.elect_leaders)
    alter_partition_reassignments = _blocking(partitions.alter_partition_reassignments)
    list_partition_reassignments = _blocking(partitions.list_partition_reassignments)
    describe_configs = _blocking(configs.describe_configs)
    incremental_alter_configs = _blocking(configs.incremental_alter_configs)
    list_config_resources = _blocking(configs.list_config_resources)
    list_client_metrics_resources = _blocking(configs.list_client_metrics_resources)
    list_groups = _blocking(groups.list_groups)
    describe_consumer_groups = _blocking(groups.describe_consumer_groups)
    describe_classic_groups = _blocking(groups.describe_classic_groups)
    describe_share_groups = _blocking(groups.describe_share_groups)
    find_coordinators = _blocking(groups.find_coordinators)
    delete_groups = _blocking(groups.delete_groups)
    remove_members_from_group = _blocking(groups.remove_members_from_group)
    describe_streams_groups = _blocking(streams.describe_streams_groups)
    list_consumer_group_offsets = _blocking(group_offsets.list_consumer_group_offsets)
    alter_consumer_group_offsets = _blocking(group_offsets.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _blocking(group_offsets.delete_consumer_group_offsets)
    list_share_group_offsets = _blocking(group_offsets.list_share_group_offsets)
    alter_share_group_offsets = _blocking(group_offsets.alter_share_group_offsets)
    delete_share_group_offsets = _blocking(group_offsets.delete_share_group_offsets)
    list_transactions = _blocking(transactions.list_transactions)
    describe_transactions = _blocking(transactions.describe_transactions)
    abort_transaction = _blocking(transactions.abort_transaction)
    fence_producers = _blocking(transactions.fence_producers)
    find_hanging_transactions = _blocking(transactions.find_hanging_transactions)
    describe_cluster = _blocking(cluster.describe_cluster)
    unregister_broker = _blocking(cluster.unregister_broker)
    unregister_controller = _blocking(cluster.unregister_controller)
    describe_api_versions = _blocking(cluster.describe_api_versions)
    describe_features = _blocking(cluster.describe_features)
    update_features = _blocking(cluster.update_features)
    describe_metadata_quorum = _blocking(cluster.describe_metadata_quorum)
    add_raft_voter = _blocking(cluster.add_raft_voter)
    remove_raft_voter = _blocking(cluster.remove_raft_voter)
    describe_log_dirs = _blocking(log_dirs.describe_log_dirs)
    describe_replica_log_dirs = _blocking(log_dirs.describe_replica_log_dirs)
    alter_replica_log_dirs = _blocking(log_dirs.alter_replica_log_dirs)
    describe_acls = _blocking(security.describe_acls)
    create_acls = _blocking(security.create_acls)
    delete_acls = _blocking(security.delete_acls)
    describe_user_scram_credentials = _blocking(security.describe_user_scram_credentials)
    alter_user_scram_credentials = _blocking(security.alter_user_scram_credentials)
    create_delegation_token = _blocking(security.create_delegation_token)
    renew_delegation_token = _blocking(security.renew_delegation_token)
    expire_delegation_token = _blocking(security.expire_delegation_token)
    describe_delegation_token = _blocking(security.describe_delegation_token)
    describe_client_quotas = _blocking(quotas.describe_client_quotas)
    alter_client_quotas = _blocking(quotas.alter_client_quotas)


class AsyncAdmin:
    """An administrator of a cluster, for the event loop that runs when it is made; `log` as of Admin."""

    def __init__(
        self,
        settings: Mapping[str, Setting],
        *,
        log: Callable[[str], None] = log_line,
        oauth_token: TokenFunction | None = None,
    ) -> None:
        """Raises ConfigError for settings that do not exist, or values that they cannot have."""
        clock = Clock()
        self._core = _build_core(settings, clock, log, oauth_token)
        self._loop = ClientLoop(self._core, clock)

    def execute(self, operation: Operation[_Result]) -> Awaitable[_Result]:
        """Execute an operation of kcli.client.admin; the future has its result, or the ClientError that it raises."""
        return self._loop.start(partial(self._core.start, operation))

    def close(self) -> None:
        """Close the connections; operations under way raise IllegalStateError."""
        if self._loop.is_forked:
            return
        if not self._core.is_closed:
            self._loop.call(self._core.close)
        self._loop.close()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    create_topics = _awaited(topics.create_topics)
    delete_topics = _awaited(topics.delete_topics)
    list_topics = _awaited(topics.list_topics)
    describe_topics = _awaited(topics.describe_topics)
    create_partitions = _awaited(topics.create_partitions)
    list_offsets = _awaited(partitions.list_offsets)
    delete_records = _awaited(partitions.delete_records)
    describe_producers = _awaited(partitions.describe_producers)
    elect_leaders = _awaited(partitions.elect_leaders)
    alter_partition_reassignments = _awaited(partitions.alter_partition_reassignments)
    list_partition_reassignments = _awaited(partitions.list_partition_reassignments)
    describe_configs = _awaited(configs.describe_configs)
    incremental_alter_configs = _awaited(configs.incremental_alter_configs)
    list_config_resources = _awaited(configs.list_config_resources)
    list_client_metrics_resources = _awaited(configs.list_client_metrics_resources)
    list_groups = _awaited(groups.list_groups)
    describe_consumer_groups = _awaited(groups.describe_consumer_groups)
    describe_classic_groups = _awaited(groups.describe_classic_groups)
    describe_share_groups = _awaited(groups.describe_share_groups)
    find_coordinators = _awaited(groups.find_coordinators)
    delete_groups = _awaited(groups.delete_groups)
    remove_members_from_group = _awaited(groups.remove_members_from_group)
    describe_streams_groups = _awaited(streams.describe_streams_groups)
    list_consumer_group_offsets = _awaited(group_offsets.list_consumer_group_offsets)
    alter_consumer_group_offsets = _awaited(group_offsets.alter_consumer_group_offsets)
    delete_consumer_group_offsets = _awaited(group_offsets.delete_consumer_group_offsets)
    list_share_group_offsets = _awaited(group_offsets.list_share_group_offsets)
    alter_share_group_offsets = _awaited(group_offsets.alter_share_group_offsets)
    delete_share_group_offsets = _awaited(group_offsets.delete_share_group_offsets)
    list_transactions = _awaited(transactions.list_transactions)
    describe_transactions = _awaited(transactions.describe_transactions)
    abort_transaction = _awaited(transactions.abort_transaction)
    fence_producers = _awaited(transactions.fence_producers)
    find_hanging_transactions = _awaited(transactions.find_hanging_transactions)
    describe_cluster = _awaited(cluster.describe_cluster)
    unregister_broker = _awaited(cluster.unregister_broker)
    unregister_controller = _awaited(cluster.unregister_controller)
    describe_api_versions = _awaited(cluster.describe_api_versions)
    describe_features = _awaited(cluster.describe_features)
    update_features = _awaited(cluster.update_features)
    describe_metadata_quorum = _awaited(cluster.describe_metadata_quorum)
    add_raft_voter = _awaited(cluster.add_raft_voter)
    remove_raft_voter = _awaited(cluster.remove_raft_voter)
    describe_log_dirs = _awaited(log_dirs.describe_log_dirs)
    describe_replica_log_dirs = _awaited(log_dirs.describe_replica_log_dirs)
    alter_replica_log_dirs = _awaited(log_dirs.alter_replica_log_dirs)
    describe_acls = _awaited(security.describe_acls)
    create_acls = _awaited(security.create_acls)
    delete_acls = _awaited(security.delete_acls)
    describe_user_scram_credentials = _awaited(security.describe_user_scram_credentials)
    alter_user_scram_credentials = _awaited(security.alter_user_scram_credentials)
    create_delegation_token = _awaited(security.create_delegation_token)
    renew_delegation_token = _awaited(security.renew_delegation_token)
    expire_delegation_token = _awaited(security.expire_delegation_token)
    describe_delegation_token = _awaited(security.describe_delegation_token)
    describe_client_quotas = _awaited(quotas.describe_client_quotas)
    alter_client_quotas = _awaited(quotas.alter_client_quotas)
