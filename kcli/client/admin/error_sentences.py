"""Sentences for the error codes that administrators meet, for brokers that send a code without a message.

A broker's own message is preferred. An error without either shows Kafka's name of the code and the item.
"""

from __future__ import annotations

from kcli.client.errors import KafkaError
from kcli.protocol import error_codes as codes

SENTENCES: dict[int, str] = {
    codes.UNKNOWN_SERVER_ERROR: "the broker failed in a way that it does not explain; its log has the reason",
    codes.OFFSET_OUT_OF_RANGE: "the partition does not have this offset",
    codes.UNKNOWN_TOPIC_OR_PARTITION: "the broker does not have this topic or partition",
    codes.LEADER_NOT_AVAILABLE: "the partition has no leader at the moment",
    codes.NOT_LEADER_OR_FOLLOWER: "the broker is not the leader of the partition",
    codes.REQUEST_TIMED_OUT: "the broker did not complete the request in its time",
    codes.BROKER_NOT_AVAILABLE: "the broker is not available",
    codes.REPLICA_NOT_AVAILABLE: "the broker has no replica of the partition",
    codes.COORDINATOR_LOAD_IN_PROGRESS: "the coordinator loads its state",
    codes.COORDINATOR_NOT_AVAILABLE: "the coordinator is not available at the moment",
    codes.NOT_COORDINATOR: "the broker is not the coordinator",
    codes.INVALID_TOPIC_EXCEPTION: "the name of the topic is not valid",
    codes.INVALID_GROUP_ID: "the id of the group is not valid",
    codes.UNKNOWN_MEMBER_ID: "the group has no such member",
    codes.REBALANCE_IN_PROGRESS: "the group rebalances",
    codes.TOPIC_AUTHORIZATION_FAILED: "the client may not do this with the topic",
    codes.GROUP_AUTHORIZATION_FAILED: "the client may not do this with the group",
    codes.CLUSTER_AUTHORIZATION_FAILED: "the client may not do this with the cluster",
    codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the client may not do this with the transactional id",
    codes.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "the client may not do this with the delegation token",
    codes.UNSUPPORTED_VERSION: "the broker does not support the version of the request",
    codes.TOPIC_ALREADY_EXISTS: "there is a topic with this name",
    codes.INVALID_PARTITIONS: "the number of partitions is not valid",
    codes.INVALID_REPLICATION_FACTOR: "the replication factor is not valid",
    codes.INVALID_REPLICA_ASSIGNMENT: "the assignment of replicas is not valid",
    codes.INVALID_CONFIG: "a configuration is not valid",
    codes.NOT_CONTROLLER: "the broker is not the controller",
    codes.INVALID_REQUEST: "the request is not valid",
    codes.POLICY_VIOLATION: "the request violates a policy of the cluster",
    codes.INVALID_PRODUCER_EPOCH: "the producer has a newer epoch",
    codes.INVALID_TXN_STATE: "the state of the transaction does not allow this",
    codes.CONCURRENT_TRANSACTIONS: "another transaction of the same id is being completed",
    codes.TRANSACTION_COORDINATOR_FENCED: "a newer transaction coordinator has written to the partition",
    codes.SECURITY_DISABLED: "the broker has no authorizer, so there are no ACLs",
    codes.KAFKA_STORAGE_ERROR: "the log directory of the partition is offline",
    codes.LOG_DIR_NOT_FOUND: "the broker does not have this log directory",
    codes.REASSIGNMENT_IN_PROGRESS: "the partition is being reassigned",
    codes.DELEGATION_TOKEN_AUTH_DISABLED: "the broker does not have delegation tokens enabled",
    codes.DELEGATION_TOKEN_NOT_FOUND: "there is no such delegation token",
    codes.DELEGATION_TOKEN_OWNER_MISMATCH: "the delegation token has another owner",
    codes.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: "delegation tokens cannot be requested on this connection",
    codes.DELEGATION_TOKEN_EXPIRED: "the delegation token has expired",
    codes.NON_EMPTY_GROUP: "the group has members; stop them first",
    codes.GROUP_ID_NOT_FOUND: "there is no such group",
    codes.TOPIC_DELETION_DISABLED: "the cluster does not allow to delete topics (delete.topic.enable)",
    codes.PREFERRED_LEADER_NOT_AVAILABLE: "the preferred leader is not in sync",
    codes.ELIGIBLE_LEADERS_NOT_AVAILABLE: "no replica can be elected as leader",
    codes.ELECTION_NOT_NEEDED: "the partition has this leader already",
    codes.NO_REASSIGNMENT_IN_PROGRESS: "the partition is not being reassigned",
    codes.GROUP_SUBSCRIBED_TO_TOPIC: "the group is subscribed to the topic",
    codes.UNSTABLE_OFFSET_COMMIT: "a transaction with an offset of this partition is not completed",
    codes.THROTTLING_QUOTA_EXCEEDED: "the quota of partition changes is exceeded",
    codes.PRODUCER_FENCED: "a newer producer has the same transactional id",
    codes.RESOURCE_NOT_FOUND: "there is no such resource",
    codes.UNACCEPTABLE_CREDENTIAL: "the credential is not acceptable",
    codes.INVALID_UPDATE_VERSION: "the level of the feature is not valid",
    codes.FEATURE_UPDATE_FAILED: "the features cannot be updated",
    codes.UNKNOWN_TOPIC_ID: "the broker does not have a topic with this id",
    codes.BROKER_ID_NOT_REGISTERED: "no broker with this id is registered",
    codes.INCONSISTENT_CLUSTER_ID: "the cluster has another id",
    codes.TRANSACTIONAL_ID_NOT_FOUND: "there is no transaction of this transactional id",
    codes.DUPLICATE_VOTER: "the controller is a voter already",
    codes.VOTER_NOT_FOUND: "the controller is not a voter",
    codes.INVALID_VOTER_KEY: "the id or the directory of the voter is not valid",
    codes.INVALID_REGULAR_EXPRESSION: "the pattern is not a valid regular expression",
    codes.GROUP_DELETION_FAILED: "the group could not be deleted",
    codes.CONTROLLER_ID_NOT_REGISTERED: "no controller with this id is registered",
}


def kafka_error(code: int, message: str | None = None) -> KafkaError:
    """Return the error for a code, with the broker's message or the sentence of this module."""
    return KafkaError(code, message or SENTENCES.get(code))


def outcome_error(code: int, message: str | None = None) -> KafkaError | None:
    """Return the error for a code, None for NONE."""
    return None if code == codes.NONE else kafka_error(code, message)
