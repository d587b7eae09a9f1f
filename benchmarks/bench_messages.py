"""Measures the envelopes of Produce and Fetch: decoding requests and encoding responses with their headers, as a server does.

The records are not read: a decoded request has views of its frame, and a Fetch response has regions of files, which sendfile
sends. benchmarks.bench_log runs this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kcli.protocol.apis import API_KEYS, FETCH, PRODUCE, Api
from kcli.protocol.framing import SIZE_BYTES, encode_request, encode_response, encode_response_parts, read_request_header
from kcli.server.events import FileRegion

RECORDS_BYTES = 100_000
PARTITIONS = (1, 16)
PRODUCE_VERSIONS, FETCH_VERSIONS = (7, 12), (12, 17)
TOPIC, TOPIC_ID, CLIENT_ID = "orders", bytes(range(16)), "bench"

Row = tuple[str, Callable[[], object]]


def produce_request(partitions: int) -> Any:
    """Return a Produce request with records for each partition of one topic."""
    request = API_KEYS[PRODUCE].request
    records = bytes(RECORDS_BYTES)
    data = [request.classes["PartitionProduceData"](index=at, records=records) for at in range(partitions)]
    return request.new(
        acks=1, timeout_ms=30_000, topic_data=[request.classes["TopicProduceData"](name=TOPIC, partition_data=data)]
    )


def produce_response(partitions: int) -> Any:
    """Return the response without errors."""
    response = API_KEYS[PRODUCE].response
    make = response.classes["PartitionProduceResponse"]
    answers = [make(index=at, base_offset=1000 * at, log_append_time_ms=-1, log_start_offset=0) for at in range(partitions)]
    return response.new(responses=[response.classes["TopicProduceResponse"](name=TOPIC, partition_responses=answers)])


def fetch_request(partitions: int) -> Any:
    """Return a full Fetch request without a session: version 12 has the topic name, later versions have its id."""
    request = API_KEYS[FETCH].request
    make = request.classes["FetchPartition"]
    wanted = [make(partition=at, fetch_offset=1000 * at, partition_max_bytes=1 << 20) for at in range(partitions)]
    topic = request.classes["FetchTopic"](topic=TOPIC, topic_id=TOPIC_ID, partitions=wanted)
    return request.new(max_wait_ms=500, min_bytes=1, max_bytes=1 << 26, session_epoch=-1, topics=[topic])


def fetch_response(partitions: int) -> Any:
    """Return the response with the records of each partition as regions of files."""
    response = API_KEYS[FETCH].response
    make = response.classes["PartitionData"]
    answers = [
        make(
            partition_index=at,
            high_watermark=5000,
            last_stable_offset=5000,
            log_start_offset=0,
            aborted_transactions=None,
            records=FileRegion(None, 0, RECORDS_BYTES),  # type: ignore[arg-type]
        )
        for at in range(partitions)
    ]
    topic = response.classes["FetchableTopicResponse"](topic=TOPIC, topic_id=TOPIC_ID, partitions=answers)
    return response.new(responses=[topic])


def decoding(api: Api, version: int, request: Any) -> Callable[[], object]:
    """Return a function that decodes a request from its frame without the size."""
    frame = memoryview(encode_request(1, api, version, CLIENT_ID, request))[SIZE_BYTES:]

    def decode() -> object:
        position = read_request_header(frame)[4]
        return api.request.decode(frame, version, position)

    return decode


def rows() -> Iterator[Row]:
    """Return the names of all measurements, and the functions to repeat."""
    for key, versions, request, response, encode in (
        (PRODUCE, PRODUCE_VERSIONS, produce_request, produce_response, encode_response),
        (FETCH, FETCH_VERSIONS, fetch_request, fetch_response, encode_response_parts),
    ):
        api = API_KEYS[key]
        for version in versions:
            for partitions in PARTITIONS:
                what = f"{api.name} v{version}, {partitions} partition{'s' if partitions > 1 else ''}"
                yield f"decode request {what}", decoding(api, version, request(partitions))
                made = response(partitions)
                yield f"encode response {what}", lambda e=encode, a=api, v=version, m=made: e(1, a, v, m)  # type: ignore[misc]
