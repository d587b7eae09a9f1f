"""Calls that each broker answers for itself: the live brokers come from Metadata (Kafka: AllBrokersStrategy)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kcli.client.admin.driver import answer_or_error
from kcli.client.admin.operation import (
    METADATA_RETRIED,
    TRIED_AGAIN,
    Call,
    Operation,
    Outcomes,
    RequestContext,
    Route,
    Value,
    run,
    run_one,
)
from kcli.client.errors import ClientError
from kcli.protocol.apis import API_KEYS, METADATA
from kcli.protocol.message import Message


def live_brokers() -> Operation[list[int]]:
    """Return the ids of the brokers that run, sorted."""

    def request(_keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[METADATA].request.new(topics=[])

    answer = yield from run_one(Call(METADATA, Route.ANY, request, answer_or_error, retried=METADATA_RETRIED), "brokers")
    return sorted(broker.node_id for broker in answer.brokers)


def run_on_each_broker(
    api_key: int,
    request: Callable[[Sequence[int], RequestContext], Message],
    read: Callable[[Message], Value | ClientError],
    retried: frozenset[int] = TRIED_AGAIN,
) -> Operation[Outcomes[int, Value]]:
    """Send a request to each broker; return what `read` makes of each answer, by broker."""

    def read_one(keys: Sequence[int], answer: Message) -> Iterator[tuple[int, Value | ClientError]]:
        yield keys[0], read(answer)

    brokers = yield from live_brokers()
    return (yield from run(Call(api_key, Route.BROKER, request, read_one, retried=retried), brokers))
