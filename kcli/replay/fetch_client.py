"""A client that fetches whole batches, for callers that block: tasks of to-parquet, and `kcli consume` at an end."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Self, TypeVar

from kcli.client.admin.partitions import OffsetSpec
from kcli.client.network_client import NetworkClient
from kcli.client.shell.client_builder import build_network
from kcli.client.shell.client_thread import ClientThread
from kcli.network.shell.clock import Clock
from kcli.replay.fetching import Fetched, fetch
from kcli.replay.source import TopicPartition
from kcli.replay.steps import StepRunner, Steps
from kcli.replay.target import connect, list_offsets

_Result = TypeVar("_Result")


class _FetchCore:
    """The core of the client: all that it does are fetches."""

    def __init__(self, network: NetworkClient) -> None:
        self.network = network

    def poll(self, now_ms: int) -> None:
        """Do nothing: no work is due by itself."""


class FetchClient:
    """A client on a thread of its own, with the settings `properties`. Raises ConfigError for servers that are no addresses."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        clock = Clock()
        self.network = build_network(properties, clock)
        self._runner = StepRunner(self.network)
        self._thread = ClientThread(_FetchCore(self.network), clock, "kcli-fetch")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.close()

    def _start(self, steps: Steps[_Result]) -> Future[_Result]:
        return self._thread.start(lambda done, now_ms: self._runner.start(steps, done))

    def connect(self, topic: str) -> None:
        """Find the leaders of a topic. Raises ClientError."""
        self.network.metadata.want_topic(topic)
        self._start(connect(self.network, "cluster")).result()

    def fetch(self, key: TopicPartition, offset: int, isolation: int) -> Future[Fetched]:
        """Begin to fetch from a partition; the result raises what kcli.replay.fetching.fetch does."""
        return self._start(fetch(self.network, *key, offset, isolation))

    def first_offset(self, key: TopicPartition) -> int:
        """Return the first offset of a partition. Raises ClientError."""
        return self._start(list_offsets([key], OffsetSpec.EARLIEST)).result()[key]
