"""Answers that take long, made a slice at a time: no request holds the node above some 10 ms.

The first slice is done at once; each later one comes by a deadline of "now", so that other events are let in between. The
state may change between slices, as it may between the partitions of any answer that several brokers give.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

_DONE = object()


def answer_in_slices(context: RequestContext, work: Iterator[None], response: Message) -> Message | None:
    """Do `work`, which fills in `response`, a slice at each step -> the response, or None where it is sent later."""
    if next(work, _DONE) is _DONE:
        return response
    broker = context.broker

    def step(now_ms: int) -> None:
        try:
            is_done = next(work, _DONE) is _DONE
        except Exception as error:
            broker.fault(f"serving {context.api.name} of version {context.version}", error)
            is_done = True  # what is filled in is sent; the rest is missing
        if is_done:
            context.respond(response)
        else:
            broker.timer.schedule(now_ms, step)

    broker.timer.schedule(context.now_ms, step)
    return None
