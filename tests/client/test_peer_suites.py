"""Protects the map from the test suites of kafka-python and aiokafka to the tests of kcli's client, which it lists.

Those suites call the internals of their clients: they cannot run against this one. What an application notices of what they
expect is tested here in other words. FITS has their modules about what kcli's client has, too, by behaviour; DOES_NOT_FIT has
the others, with the reason. kafka-python is that of August 2026, aiokafka that of April 2026. The integration suite of
kafka-python runs against kcli's broker in tests/oracle/test_conformance.py.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

# Where the tests are.
MODULES = {
    "admin faults": "tests/client/admin/test_admin_faults.py",
    "admin descriptions": "tests/client/admin/test_descriptions.py",
    "admin driver": "tests/client/admin/test_driver.py",
    "admin on node": "tests/client/admin/test_on_node.py",
    "assignors": "tests/client/consumer/test_assignors.py",
    "classic membership": "tests/client/consumer/test_classic_membership.py",
    "completed fetch": "tests/client/consumer/test_completed_fetch.py",
    "consumer faults": "tests/client/consumer/test_consumer_faults.py",
    "consumer shells": "tests/client/consumer/test_consumer_shells.py",
    "fetcher": "tests/client/consumer/test_fetcher.py",
    "offset commits": "tests/client/consumer/test_offset_commits.py",
    "share consumer": "tests/client/consumer/test_share_consumer.py",
    "partitioner": "tests/client/producer/test_partitioner.py",
    "producer batch": "tests/client/producer/test_producer_batch.py",
    "producer faults": "tests/client/producer/test_producer_faults.py",
    "producer shells": "tests/client/producer/test_producer_shells.py",
    "record accumulator": "tests/client/producer/test_record_accumulator.py",
    "sender": "tests/client/producer/test_sender.py",
    "transaction manager": "tests/client/producer/test_transaction_manager.py",
    "cluster": "tests/client/test_cluster.py",
    "values": "tests/client/test_consumer_values.py",
    "network": "tests/client/test_network_client.py",
    "live admin": "tests/oracle/test_client_admin.py",
    "java assignors": "tests/oracle/test_client_assignors.py",
    "behaviours": "tests/oracle/test_client_behaviours.py",
    "live consumer": "tests/oracle/test_client_consumer.py",
    "live groups": "tests/oracle/test_client_groups.py",
    "java partitioner": "tests/oracle/test_client_partitioner.py",
    "live producer": "tests/oracle/test_client_producer.py",
}
# Module -> what it expects -> where that is tested.
FITS: dict[str, dict[str, str]] = {
    "kafka-python/test/consumer/test_consumer.py": {
        "settings that contradict each other are refused": "share consumer::test_wrong_settings_are_refused",
        "partitions are subscribed to or assigned": "behaviours::test_ways_to_choose_partitions_exclude_each_other",
        "a consumer without a group has no group metadata": "behaviours::test_ways_to_choose_partitions_exclude_each_other",
        "a poll without anything to do does not spin": "consumer shells::test_a_poll_inside_the_listener_does_not_spin",
        "an error in a with statement commits nothing more": (
            "consumer shells::test_records_of_an_interrupted_poll_are_not_committed"
        ),
    },
    "kafka-python/test/consumer/test_coordinator.py": {
        "joins and syncs, as leader and follower, with their errors": "consumer faults::test_two_members_at_the_same_time",
        "versions and errors of OffsetCommit": "offset commits::test_a_commit_in_each_version",
        "versions and errors of OffsetFetch": "offset commits::test_offsets_are_read_in_each_version",
        "errors that end a commit": "offset commits::test_errors_that_stay",
        "automatic commits, each interval and before a rebalance": "classic membership::test_auto_commit_follows_its_interval",
        "listeners that raise": "consumer shells::test_what_the_listener_raises_is_raised_by_the_same_poll",
        "listeners with coroutine methods": "consumer shells::test_a_listener_that_unsubscribes_or_polls_is_called_once",
        "metadata that change make the leader assign again": (
            "classic membership::test_more_partitions_make_the_leader_assign_again"
        ),
        "a pattern follows the metadata": "classic membership::test_a_pattern_finds_new_topics",
        "close commits and leaves": "consumer faults::test_automatic_commits",
        "the members of a group have an assignor in common": (
            "classic membership::test_members_with_different_assignors_have_none_in_common"
        ),
    },
    "kafka-python/test/consumer/test_fetcher.py": {
        "positions are reset by time, also after errors": "fetcher::test_positions_that_are_not_there",
        "a reset that another one has overtaken": (
            "fetcher::test_an_answer_to_an_earlier_reset_is_not_the_answer_to_a_later_one"
        ),
        "answers to positions that a seek has left": "fetcher::test_an_answer_to_an_earlier_position_is_dropped",
        "paused partitions keep what was fetched": "fetcher::test_a_paused_partition_keeps_its_records",
        "errors of a partition, and offsets out of range": "fetcher::test_errors_that_pass_are_tried_again_and_others_raised",
        "corrupt records": "completed fetch::test_a_wrong_crc_is_an_error_that_can_be_passed",
        "compacted batches and aborted transactions": (
            "completed fetch::test_aborted_records_markers_and_empty_batches_are_left_out"
        ),
        "fetch sessions": "fetcher::test_a_session_sends_only_what_changed",
    },
    "kafka-python/test/consumer/test_fetcher_mock_broker.py": {
        "positions are validated when the leader changes": "fetcher::test_a_truncated_log_is_found_when_the_leader_changes",
        "the preferred replica": "fetcher::test_the_preferred_replica_is_asked_until_it_fails",
        "a leader that an answer names": "fetcher::test_the_leader_that_an_answer_names_is_asked_next",
    },
    "kafka-python/test/consumer/test_assignors.py": {
        "range": "assignors::test_ranges",
        "round robin": "assignors::test_round_robin",
        "stickiness": "assignors::test_nothing_moves_without_a_change",
        "generations that claim the same partition": (
            "assignors::test_the_latest_generation_has_a_partition_that_two_members_claim"
        ),
        "cooperative members give partitions back first": (
            "assignors::test_the_cooperative_assignor_takes_nothing_from_a_member_that_has_it"
        ),
        "all of it as the Java consumer does": "java assignors::test_assignments_are_those_of_the_java_consumer",
    },
    "kafka-python/test/consumer/test_sticky_partition_movements.py": {
        "no partition moves in a circle": "assignors::test_no_partition_could_move_for_a_better_balance",
    },
    "kafka-python/test/consumer/test_subscription_state.py": {
        "partitions that are kept keep their position": (
            "classic membership::test_cooperative_members_keep_what_they_have_while_others_join"
        ),
        "partitions that are taken away return nothing": (
            "classic membership::test_lost_partitions_return_nothing_before_the_listener_knows"
        ),
        "a subscription has names of topics": "values::test_a_text_is_not_a_list_of_topics",
    },
    "kafka-python/test/producer/test_kip679_config.py": {
        "when a producer is idempotent, and what contradicts that": "transaction manager::test_settings_that_contradict",
    },
    "kafka-python/test/producer/test_partitioner.py": {
        "keys as Java hashes them": "java partitioner::test_keys_have_the_partitions_that_java_chooses",
        "records without a key stay with a partition": "partitioner::test_the_sticky_partition_stays_for_batch_size_bytes",
        "partitions without a leader": "partitioner::test_partitions_without_a_leader_are_left_out",
        "threads": "live producer::test_threads_share_a_producer",
    },
    "kafka-python/test/producer/test_producer.py": {
        "the thread ends with the producer": "producer shells::test_a_closed_producer_refuses_calls",
        "partitions that do not exist": "partitioner::test_a_partitioner_that_returns_no_partition",
    },
    "kafka-python/test/producer/test_producer_batch.py": {
        "results and errors of records": "producer batch::test_errors_of_records",
        "a batch ends once": "producer batch::test_a_result_is_final",
        "a retry": "producer batch::test_a_retry_waits_unless_the_leader_changes",
    },
    "kafka-python/test/producer/test_record_accumulator.py": {
        "lingering": "record accumulator::test_a_batch_is_ready_after_linger_ms",
        "expiry": "record accumulator::test_expired_batches",
        "batches of a transaction that is aborted": "record accumulator::test_aborted_batches",
    },
    "kafka-python/test/producer/test_sender.py": {
        "versions of Produce": "sender::test_versions_of_produce",
        "acks=0": "sender::test_without_acks_there_are_no_offsets",
        "errors that pass and others": "sender::test_an_error_that_stays_fails_the_batch",
        "batches that are too large are split": "sender::test_a_batch_that_is_too_large_is_split",
        "sequences after errors": "transaction manager::test_a_lost_state_raises_the_epoch",
        "the order with five requests in flight": "behaviours::test_an_idempotent_producer_keeps_the_order",
        "expiry in flight": "sender::test_records_expire_in_the_queue_and_in_flight",
    },
    "kafka-python/test/producer/test_transaction_manager.py": {
        "states, and which errors are final": "transaction manager::test_verdicts",
        "a new epoch": "transaction manager::test_a_batch_that_failed_for_good_raises_the_epoch",
        "calls that the state forbids": "transaction manager::test_calls_that_the_state_forbids",
    },
    "kafka-python/test/producer/test_transaction_manager_mock_broker.py": {
        "errors of each request of a transaction": "transaction manager::test_verdicts",
        "requests without an answer": "producer faults::test_transactions_are_committed_or_aborted_whole",
        "a coordinator that loads or moves": "transaction manager::test_a_coordinator_that_loads_is_asked_again",
        "an old broker": "transaction manager::test_a_broker_of_kafka_2_1",
    },
    "kafka-python/test/admin/test_admin_acl.py": {
        "ACLs": "live admin::test_security_of_apache_kafka",
    },
    "kafka-python/test/admin/test_admin_users.py": {
        "SCRAM": "live admin::test_security_of_apache_kafka",
    },
    "kafka-python/test/admin/test_admin_client_config.py": {
        "settings": "network::test_a_wrong_setting_is_named",
    },
    "kafka-python/test/admin/test_admin_cluster.py": {
        "the cluster": "live admin::test_the_cluster_is_that_of_librdkafka",
    },
    "kafka-python/test/admin/test_admin_cluster_features.py": {
        "features": "live admin::test_the_quorum_features_and_directories_are_those_of_kafkas_tools",
    },
    "kafka-python/test/admin/test_admin_cluster_log_dirs.py": {
        "log directories": "live admin::test_the_quorum_features_and_directories_are_those_of_kafkas_tools",
    },
    "kafka-python/test/admin/test_admin_cluster_quorum.py": {
        "the quorum": "live admin::test_the_quorum_features_and_directories_are_those_of_kafkas_tools",
    },
    "kafka-python/test/admin/test_admin_concurrent.py": {
        "threads share an administrator": "behaviours::test_threads_share_an_administrator",
        "close ends the calls of other threads": "admin driver::test_a_blocked_caller_ends_at_the_close",
    },
    "kafka-python/test/admin/test_admin_configs.py": {
        "changes of settings": "admin on node::test_configs",
        "descriptions": "live admin::test_configs_are_those_of_librdkafka",
    },
    "kafka-python/test/admin/test_admin_groups.py": {
        "offsets of groups, and resets": "admin on node::test_offsets_of_groups",
        "members are removed": "live admin::test_static_and_all_members_are_removed",
        "one lookup for many groups": "admin driver::test_one_lookup_serves_all_groups_of_a_call",
        "old brokers": "admin driver::test_an_old_broker_is_asked_for_one_coordinator_at_a_time",
        "errors of some groups": "behaviours::test_errors_of_items_leave_the_others",
    },
    "kafka-python/test/admin/test_admin_partitions.py": {
        "leaders that move": "admin driver::test_the_leaders_are_asked_and_looked_up_again_after_an_election",
        "pages of descriptions": "admin descriptions::test_topics_come_in_pages",
        "offsets by time and isolation": "live admin::test_offsets_are_those_of_librdkafka",
        "reassignments and elections": "live admin::test_the_rest_has_kafkas_codes",
    },
    "kafka-python/test/admin/test_admin_topics.py": {
        "topics are made, described and deleted": "admin on node::test_topics",
        "partitions are added": "behaviours::test_errors_of_items_leave_the_others",
    },
    "kafka-python/test/admin/test_admin_transactions.py": {
        "transactions are listed and described": "live admin::test_transactions_are_those_of_kafka_transactions",
        "hanging ones are found and aborted": "live admin::test_a_hanging_transaction_is_found_and_aborted",
    },
    "kafka-python/test/integration/test_admin_integration.py": {
        "errors of some items": "behaviours::test_errors_of_items_leave_the_others",
        "records are deleted": "live admin::test_records_are_deleted",
        "groups are described and deleted": "live admin::test_groups_are_those_of_librdkafka",
        "settings, elections, directories, the quorum, reassignments": "admin faults::test_an_operation",
    },
    "kafka-python/test/integration/test_consumer_integration.py": {
        "pauses": "behaviours::test_paused_partitions_return_nothing_and_keep_their_place",
        "a group goes on at its commits": "live consumer::test_a_group_continues_at_its_commits",
        "records larger than a fetch": "behaviours::test_a_record_larger_than_a_fetch_is_returned",
        "offsets by time": "behaviours::test_offsets_by_time_of_many_partitions",
        "positions after a seek to the end": "live consumer::test_offsets_and_seeks",
        "a group of several members": "live groups::test_members_come_go_and_die",
        "heartbeats": "classic membership::test_a_killed_member_is_replaced_after_its_session",
    },
    "kafka-python/test/integration/test_producer_integration.py": {
        "each codec from end to end": "behaviours::test_a_record_has_its_metadata",
        "the order with each number of requests in flight": "behaviours::test_an_idempotent_producer_keeps_the_order",
        "transactions and their offsets": "live producer::test_transactions_as_kafka_python_reads_them",
    },
    "kafka-python/test/test_cluster.py": {
        "snapshots of metadata": "cluster::test_what_a_snapshot_answers",
        "epochs of leaders, and topics that were made again": (
            "network::test_an_older_leader_epoch_does_not_replace_a_newer_one_but_another_topic_does"
        ),
        "a leader that an answer names": "network::test_a_leader_that_an_answer_names_counts_if_its_epoch_is_newer",
        "addresses": "network::test_a_text_that_is_no_address_is_refused",
        "requests for metadata are shared": "network::test_requests_for_updates_share_one_request_and_wait_for_the_backoff",
    },
    "kafka-python/test/test_serializer.py": {
        "serializers": "live producer::test_serializers_interceptors_and_partitioners",
    },
    "aiokafka/tests/coordinator/test_assignors.py": {
        "assignors": "assignors::test_nothing_moves_without_a_change",
    },
    "aiokafka/tests/coordinator/test_partition_movements.py": {
        "no partition moves in a circle": "assignors::test_no_partition_could_move_for_a_better_balance",
    },
    "aiokafka/tests/test_admin.py": {
        "an asyncio administrator": "live admin::test_an_asyncio_application_has_the_same",
    },
    "aiokafka/tests/test_client.py": {
        "the first metadata": "network::test_the_first_metadata_come_from_a_bootstrap_server_and_the_next_after_their_age",
        "a connection that ends": "network::test_a_connection_that_ends_has_the_metadata_asked_for",
        "no broker": "network::test_the_reason_why_no_broker_answers_is_known",
    },
    "aiokafka/tests/test_cluster.py": {
        "metadata": "cluster::test_what_it_does_not_know",
    },
    "aiokafka/tests/test_consumer.py": {
        "large records": "behaviours::test_a_record_larger_than_a_fetch_is_returned",
        "seeks": "live consumer::test_offsets_and_seeks",
        "partitions that are not assigned": "behaviours::test_partitions_that_are_not_assigned_have_no_position",
        "ways to subscribe": "behaviours::test_ways_to_choose_partitions_exclude_each_other",
        "each codec": "live consumer::test_records_of_each_codec_are_those_of_kafka_python",
        "max.poll.records": "behaviours::test_a_poll_returns_at_most_max_poll_records",
        "commits with metadata, and with partitions of its own": "behaviours::test_a_commit_has_its_metadata",
        "commits are checked": "values::test_offsets_to_commit_have_their_type",
        "a pattern finds topics, but no internal ones": "behaviours::test_a_pattern_finds_topics_that_are_created_later",
        "a closed consumer ends the iteration": "consumer shells::test_an_iterator_ends_with_its_consumer",
        "auto.offset.reset=none": "behaviours::test_without_a_reset_the_application_seeks",
        "no records of partitions before": "behaviours::test_records_of_partitions_before_are_not_returned",
        "listeners with coroutines that use the consumer": (
            "consumer shells::test_the_listener_can_ask_for_the_position_of_a_new_partition"
        ),
        "a commit does not wait for a fetch": "behaviours::test_a_commit_does_not_wait_for_a_fetch",
        "offsets by time": "behaviours::test_offsets_by_time_of_many_partitions",
        "a wrong session timeout": "behaviours::test_a_session_timeout_that_the_broker_does_not_allow_is_reported",
        "a wrong CRC": "completed fetch::test_a_wrong_crc_is_an_error_that_can_be_passed",
        "errors of the coordinator reach the application": (
            "consumer shells::test_a_fenced_member_hears_of_its_loss_before_poll_raises"
        ),
        "headers": "behaviours::test_headers_keep_their_order_and_may_repeat",
        "times of records": "behaviours::test_records_have_the_time_of_their_topic",
        "pauses": "behaviours::test_paused_partitions_return_nothing_and_keep_their_place",
        "max.poll.interval.ms": "behaviours::test_an_application_that_works_too_long_joins_again",
        "static members": "classic membership::test_a_static_member_keeps_its_partitions_over_a_restart",
    },
    "aiokafka/tests/test_coordinator.py": {
        "failed joins and syncs": "consumer faults::test_two_members_at_the_same_time",
        "failed commits": "offset commits::test_errors_that_may_pass",
        "subscriptions that change": "classic membership::test_a_subscription_changes_and_ends",
        "a member that the broker has forgotten": "classic membership::test_a_member_that_does_not_poll_leaves_and_comes_back",
        "close with automatic commits": "consumer faults::test_automatic_commits",
    },
    "aiokafka/tests/test_fetcher.py": {
        "resets": "fetcher::test_an_offset_out_of_range_is_reset_or_raised",
        "records before an error are returned": "fetcher::test_records_of_one_partition_are_not_lost_by_an_error_of_another",
        "compacted topics": "completed fetch::test_aborted_records_markers_and_empty_batches_are_left_out",
    },
    "aiokafka/tests/test_message_accumulator.py": {
        "batches": "record accumulator::test_records_share_a_batch_until_it_is_full",
        "lingering": "record accumulator::test_a_batch_is_ready_after_linger_ms",
    },
    "aiokafka/tests/test_partitioner.py": {
        "keys": "java partitioner::test_keys_have_the_partitions_that_java_chooses",
    },
    "aiokafka/tests/test_pep492.py": {
        "async for": "consumer shells::test_the_asyncio_iterator_counts_what_it_has_yielded",
    },
    "aiokafka/tests/test_producer.py": {
        "a topic that does not exist": "behaviours::test_a_topic_that_does_not_exist_is_an_error_after_max_block_ms",
        "acks": "live producer::test_acks",
        "metadata of records": "behaviours::test_a_record_has_its_metadata",
        "no duplicates": "producer faults::test_no_record_is_lost_or_written_twice",
        "the order over errors": "behaviours::test_an_idempotent_producer_keeps_the_order",
        "errors of the sender reach the callers": (
            "producer shells::test_an_exception_of_the_loop_ends_the_operations_that_wait"
        ),
        "headers": "behaviours::test_headers_keep_their_order_and_may_repeat",
    },
    "aiokafka/tests/test_rack_awareness.py": {
        "the preferred replica": "fetcher::test_the_preferred_replica_is_asked_until_it_fails",
    },
    "aiokafka/tests/test_sender.py": {
        "errors of each request of a transaction": "transaction manager::test_verdicts",
        "requests without an answer": "producer faults::test_transactions_are_committed_or_aborted_whole",
    },
    "aiokafka/tests/test_subscription_state.py": {
        "subscriptions": "behaviours::test_ways_to_choose_partitions_exclude_each_other",
    },
    "aiokafka/tests/test_transaction_manager.py": {
        "states": "transaction manager::test_calls_that_the_state_forbids",
    },
    "aiokafka/tests/test_transactional_consumer.py": {
        "committed, aborted and several transactions": "live consumer::test_aborted_transactions_are_left_out",
        "only a marker": "behaviours::test_what_a_transaction_leaves_is_passed",
    },
    "aiokafka/tests/test_transactional_producer.py": {
        "empty transactions, and offsets that are aborted": (
            "behaviours::test_transactions_without_records_and_offsets_that_are_aborted"
        ),
        "a producer that starts again": "behaviours::test_a_producer_that_starts_again_ends_the_transaction_before",
        "fencing": "live producer::test_a_fenced_producer_is_of_no_use",
        "calls that are cancelled": "behaviours::test_a_commit_that_is_cancelled_can_be_repeated",
        "calls in a wrong order": "behaviours::test_calls_of_transactions_in_a_wrong_order",
    },
}

_PROTOCOL = "messages of their protocol classes; tests/protocol has kcli's against kafka-python, kio and Java"
_RECORDS = "their record classes; tests/format and tests/oracle have kcli's against Java"
_SECURITY = "their classes of SASL and TLS; kcli's: tests/network, client/test_secured_clients and oracle/test_client_security"
_SOCKETS = "their event loop, selector and sockets; tests/network/shell has kcli's"
_OWN = "helpers of their own"
# Part of a module's name -> why its tests are about nothing that kcli's client has.
DOES_NOT_FIT = {
    "kafka-python/test/net/sasl/": _SECURITY,
    "kafka-python/test/net/test_sasl": _SECURITY,
    "kafka-python/test/net/test_ssl": _SECURITY,
    "kafka-python/test/integration/test_sasl": _SECURITY,
    "kafka-python/test/integration/test_ssl": _SECURITY,
    "kafka-python/test/net/": _SOCKETS,
    "kafka-python/test/protocol/": _PROTOCOL,
    "kafka-python/test/record/": _RECORDS,
    "kafka-python/test/test_codec.py": _RECORDS,
    "kafka-python/test/test_future.py": _OWN,
    "kafka-python/test/test_metrics.py": "their metrics library; kcli.client counts by Kafka's names only",
    "kafka-python/test/test_mock_broker.py": _OWN,
    "kafka-python/test/test_package.py": _OWN,
    "kafka-python/test/test_util.py": _OWN,
    "aiokafka/tests/record/": _RECORDS,
    "aiokafka/tests/test_codec.py": _RECORDS,
    "aiokafka/tests/test_conn.py": _SOCKETS,
    "aiokafka/tests/test_helpers.py": _SECURITY,
    "aiokafka/tests/test_sasl.py": _SECURITY,
    "aiokafka/tests/test_protocol": _PROTOCOL,
    "aiokafka/tests/test_requests.py": _PROTOCOL,
}


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the tests of a module."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef))


@pytest.mark.parametrize("module", FITS)
def test_the_tests_of_a_module_exist(module: str) -> None:
    for behaviour, test in FITS[module].items():
        where, name = test.split("::")
        assert name in names_in(MODULES[where]), f"{module}, {behaviour}: there is no {test}"


def test_a_module_fits_or_does_not() -> None:
    assert not [module for module in FITS if module.startswith(tuple(DOES_NOT_FIT))]


@pytest.mark.oracle
@pytest.mark.ci
def test_all_modules_of_kafka_python_are_here() -> None:
    """Of the suite that tests/oracle/test_conformance.py runs; its source package has a part of the modules."""
    home = Path(os.environ.get("CONFORMANCE_CACHE", Path.home() / ".cache" / "kafka-conformance"))
    found = [
        f"kafka-python/test/{path.relative_to(root)}"
        for root in home.glob("kafka-python-*/kafka_python-*/test")
        for path in root.rglob("test_*.py")
    ]
    if not found:
        pytest.skip("the suite of kafka-python is not built yet: tests/oracle/test_conformance.py does it")
    assert not [module for module in found if module not in FITS and not module.startswith(tuple(DOES_NOT_FIT))]
