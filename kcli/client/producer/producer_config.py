"""The settings of a producer by Kafka's names, with the defaults of 4.3.1 (ProducerConfig).

setting                              valid                                              if it is not given
-----------------------------------  -------------------------------------------------  ---------------------------------
acks                                 0, 1, all, -1                                      all
compression.type                     none, gzip, snappy, lz4, zstd                      none
enable.idempotence                   true needs acks=all, retries and at most 5         true, unless another setting
                                     requests in flight                                 contradicts
transactional.id                     needs enable.idempotence                           no transactions
delivery.timeout.ms                  at least linger.ms + request.timeout.ms            120000, or that sum if it is more
retries                              0 to 2147483647                                    2147483647
max.in.flight.requests.per...        at least 1                                         5
compression.gzip.level               -1 (the library's), 1 to 9                         -1
compression.lz4.level                1 to 17                                            9
compression.zstd.level               -131072 to 22                                      3
sizes and times                      at least 0; metadata.max.idle.ms 5000
partitioner.class                    is the argument `partitioner` of Producer
key.serializer, value.serializer     are arguments of Producer
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from kcli.client.client_config import INT64_MAX, ClientConfig, Count, LongCount, Range, read_config
from kcli.client.errors import ConfigError
from kcli.client.producer.accumulator_config import AccumulatorConfig
from kcli.client.producer.sender import ACKS_ALL, SenderConfig
from kcli.format import compression

_ACKS = {"0": 0, "1": 1, "all": ACKS_ALL, "-1": ACKS_ALL}
MOST_IN_FLIGHT_IN_ORDER = 5
# The size up to which a full batch takes records while it waits for its request, unless batch.size is set. librdkafka's batches
# have this size.
MAX_BATCH_SIZE = 1_000_000


class ProducerConfig(NamedTuple):
    """The settings that only producers have; times are in ms, sizes in bytes."""

    acks: str = "all"
    batch_size: Count = 16384
    kcli_max_batch_size: Count = 0
    linger_ms: Count = 5
    buffer_memory: LongCount = 33554432
    max_request_size: Count = 1048576
    max_block_ms: LongCount = 60000
    delivery_timeout_ms: Count = 120000
    retries: Count = 2147483647
    max_in_flight_requests_per_connection: Annotated[int, Range(1)] = MOST_IN_FLIGHT_IN_ORDER
    enable_idempotence: bool = True
    compression_type: str = "none"
    compression_gzip_level: Annotated[int, Range(1, 9, others=(-1,))] = -1
    compression_lz4_level: Annotated[int, Range(1, 17)] = 9
    compression_zstd_level: Annotated[int, Range(-131072, 22)] = 3
    partitioner_adaptive_partitioning_enable: bool = True
    partitioner_availability_timeout_ms: LongCount = 0
    partitioner_ignore_keys: bool = False
    metadata_max_idle_ms: Annotated[int, Range(5000, INT64_MAX)] = 300000
    transactional_id: str | None = None
    transaction_timeout_ms: Count = 60000

    def accumulator(self, common: ClientConfig) -> AccumulatorConfig:
        """Return the settings of the accumulator."""
        name = f"compression_{self.compression_type}_level"
        level = getattr(self, name, None)
        return AccumulatorConfig(
            batch_size=self.batch_size,
            max_batch_size=self.kcli_max_batch_size,
            linger_ms=self.linger_ms,
            buffer_memory=self.buffer_memory,
            max_request_size=self.max_request_size,
            delivery_timeout_ms=self.delivery_timeout_ms,
            retry_backoff_ms=common.retry_backoff_ms,
            retry_backoff_max_ms=common.retry_backoff_max_ms,
            codec=compression.codec_id(self.compression_type),
            compression_level=None if level == ProducerConfig._field_defaults.get(name) else level,
            adaptive_partitioning=self.partitioner_adaptive_partitioning_enable,
            availability_timeout_ms=self.partitioner_availability_timeout_ms,
        )

    def sender(self, common: ClientConfig) -> SenderConfig:
        """Return the settings of the sender."""
        return SenderConfig(
            acks=_ACKS[self.acks],
            max_in_flight=self.max_in_flight_requests_per_connection,
            retries=self.retries,
            request_timeout_ms=common.request_timeout_ms,
            delivery_timeout_ms=self.delivery_timeout_ms,
        )


def read_producer_config(properties: Mapping[str, str]) -> ProducerConfig:
    """Return the settings of a producer, made consistent as Kafka does. Raises ConfigError."""
    config = read_config(ProducerConfig, properties)
    common = read_config(ClientConfig, properties)
    if config.acks not in _ACKS:
        raise ConfigError(f"acks must be 0, 1 or all, not {config.acks}")
    if config.compression_type not in compression.CODECS.values():
        raise ConfigError(f"compression.type must be one of {', '.join(compression.CODECS.values())}")
    if config.transactional_id == "":
        config = config._replace(transactional_id=None)
    if not {"batch.size", "kcli.max.batch.size"} & properties.keys():
        config = config._replace(kcli_max_batch_size=MAX_BATCH_SIZE)
    return _with_timeout(_with_idempotence(config, properties), common, properties)


def _with_idempotence(config: ProducerConfig, properties: Mapping[str, str]) -> ProducerConfig:
    is_asked_for = "enable.idempotence" in properties or config.transactional_id is not None
    problem = None
    if _ACKS[config.acks] != ACKS_ALL:
        problem = "acks=all"
    elif config.retries == 0:
        problem = "retries above 0"
    elif config.max_in_flight_requests_per_connection > MOST_IN_FLIGHT_IN_ORDER:
        problem = f"max.in.flight.requests.per.connection up to {MOST_IN_FLIGHT_IN_ORDER}"
    if config.enable_idempotence and problem is not None:
        if is_asked_for:
            raise ConfigError(f"an idempotent producer needs {problem}")
        return config._replace(enable_idempotence=False)
    if config.transactional_id is not None and not config.enable_idempotence:
        raise ConfigError("transactional.id needs enable.idempotence=true")
    return config


def _with_timeout(config: ProducerConfig, common: ClientConfig, properties: Mapping[str, str]) -> ProducerConfig:
    least_ms = config.linger_ms + common.request_timeout_ms
    if config.delivery_timeout_ms >= least_ms:
        return config
    if "delivery.timeout.ms" in properties:
        raise ConfigError(f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms, which is {least_ms}")
    return config._replace(delivery_timeout_ms=least_ms)
