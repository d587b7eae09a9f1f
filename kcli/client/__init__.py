"""kcli's own client: producer, consumers and admin, blocking and for asyncio.

    from kcli.client import Consumer, Producer

Names are loaded when they are first used, so that a command loads only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kcli.client.admin.configs import AlterConfigOp, AlterOperation, ConfigResource, ResourceType
    from kcli.client.admin.operation import value_of, values_of
    from kcli.client.admin.topics import NewTopic
    from kcli.client.cluster import PartitionInfo
    from kcli.client.consumer.consumer_protocol import TopicPartition
    from kcli.client.consumer.consumer_record import ConsumerRecord
    from kcli.client.consumer.share_records import AcknowledgeType
    from kcli.client.errors import AuthenticationError, ClientError, KafkaError
    from kcli.client.producer.producer_batch import RecordMetadata
    from kcli.client.shell.admin import Admin, AsyncAdmin
    from kcli.client.shell.async_consumer import AsyncConsumer
    from kcli.client.shell.async_share_consumer import AsyncShareConsumer
    from kcli.client.shell.consumer import Consumer
    from kcli.client.shell.producer import AsyncProducer, Producer
    from kcli.client.shell.share_consumer import ShareConsumer
    from kcli.client.value_checks import OffsetAndMetadata

__all__ = [
    "AcknowledgeType",
    "Admin",
    "AlterConfigOp",
    "AlterOperation",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncShareConsumer",
    "AuthenticationError",
    "ClientError",
    "ConfigResource",
    "Consumer",
    "ConsumerRecord",
    "KafkaError",
    "NewTopic",
    "OffsetAndMetadata",
    "PartitionInfo",
    "Producer",
    "RecordMetadata",
    "ResourceType",
    "ShareConsumer",
    "TopicPartition",
    "value_of",
    "values_of",
]

_MODULES = {
    "AcknowledgeType": "consumer.share_records",
    "Admin": "shell.admin",
    "AlterConfigOp": "admin.configs",
    "AlterOperation": "admin.configs",
    "AsyncAdmin": "shell.admin",
    "AsyncConsumer": "shell.async_consumer",
    "AsyncProducer": "shell.producer",
    "AsyncShareConsumer": "shell.async_share_consumer",
    "AuthenticationError": "errors",
    "ClientError": "errors",
    "ConfigResource": "admin.configs",
    "Consumer": "shell.consumer",
    "ConsumerRecord": "consumer.consumer_record",
    "KafkaError": "errors",
    "NewTopic": "admin.topics",
    "OffsetAndMetadata": "value_checks",
    "PartitionInfo": "cluster",
    "Producer": "shell.producer",
    "RecordMetadata": "producer.producer_batch",
    "ResourceType": "admin.configs",
    "ShareConsumer": "shell.share_consumer",
    "TopicPartition": "consumer.consumer_protocol",
    "value_of": "admin.operation",
    "values_of": "admin.operation",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Return the names for completion, also those that are not loaded yet."""
    return sorted(globals() | _MODULES)
