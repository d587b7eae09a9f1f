"""The topics of a cluster and their partitions, asked for once (Kafka: TopicMetadataFetcher).

A topic that does not exist is not in the result; one that the client may not see is an error if it was named. A request that
gets no answer is sent again, to another broker if there is one, until the time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kcli.client.cluster import PartitionInfo
from kcli.client.errors import ClientError, KafkaError, KafkaTimeoutError
from kcli.client.network_client import NetworkClient, failure_error
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, METADATA
from kcli.protocol.message import Message

PartitionsDone = Callable[[tuple[PartitionInfo, ...] | ClientError, int], None]
Topics = dict[str, tuple[PartitionInfo, ...]]
TopicsDone = Callable[[Topics | ClientError, int], None]


def ask_topics(network: NetworkClient, topics: Collection[str] | None, done: TopicsDone, timeout_ms: int) -> None:
    """Find topics by name, or all topics."""
    kind = API_KEYS[METADATA].request
    of_topic = kind.classes["MetadataRequestTopic"]
    may_create = topics is not None and network.config.allow_auto_create_topics
    named = None if topics is None else [of_topic(name=topic) for topic in topics]
    request = kind.new(topics=named, allow_auto_topic_creation=may_create)
    deadline_ms = network.timer.clock_ms + timeout_ms

    def ask(now_ms: int) -> None:
        left_ms = deadline_ms - now_ms
        if left_ms <= 0:
            done(KafkaTimeoutError(f"the topics were not listed in time ({network.failure_reason()})"), now_ms)
        else:
            network.send_to_any(METADATA, request, answered, min(left_ms, network.config.request_timeout_ms))

    def answered(answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure) and answer.is_lasting:
            done(failure_error(answer, METADATA), now_ms)
        elif isinstance(answer, PeerFailure) or _is_incomplete(answer):
            network.timer.schedule(min(now_ms + network.config.retry_backoff_ms, deadline_ms), ask)
        else:
            done(_topics_of(answer, topics is not None), now_ms)

    ask(network.timer.clock_ms)


def _is_incomplete(answer: Message) -> bool:
    passing = (error_codes.LEADER_NOT_AVAILABLE, error_codes.UNKNOWN_SERVER_ERROR)
    return not answer.brokers or any(topic.error_code in passing for topic in answer.topics)


def _topics_of(answer: Message, is_named: bool) -> Topics | ClientError:
    found: Topics = {}
    for topic in answer.topics:
        if topic.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error_code:
            if is_named:
                return KafkaError(topic.error_code, f"the metadata of topic {topic.name}")
            continue
        found[topic.name] = tuple(
            PartitionInfo(
                topic.name,
                one.partition_index,
                one.leader_id,
                one.leader_epoch,
                tuple(one.replica_nodes),
                tuple(one.isr_nodes),
                tuple(one.offline_replicas),
            )
            for one in sorted(topic.partitions, key=lambda one: int(one.partition_index))
        )
    return found
