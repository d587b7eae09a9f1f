"""Producer ids for idempotent producers, out of blocks that the controller gives a broker (KIP-730).

A block has 1,000 ids. The next one is asked for when PREFETCH_BELOW of the present one are left, so that nobody waits but
the first; who comes while there is none waits for the answer. A controller that does not answer is asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kcli.protocol.apis import ALLOCATE_PRODUCER_IDS, API_KEYS
from kcli.protocol.message import Message

PREFETCH_BELOW = 100
RETRY_MS = 50

IdCallback = Callable[[int, int], None]


class ProducerIds:
    """The ids of one broker."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._next_id = 0
        self._end_id = 0
        self._following: tuple[int, int] | None = None
        self._is_asking = False
        self._waiting: deque[IdCallback] = deque()

    def next(self, callback: IdCallback, now_ms: int) -> None:
        """Have `callback(producer_id, now_ms)` called, now where an id is at hand."""
        self._waiting.append(callback)
        self._serve(now_ms)

    def _serve(self, now_ms: int) -> None:
        while self._waiting:
            if self._next_id == self._end_id and self._following is not None:
                self._next_id, self._end_id = self._following
                self._following = None
            if self._next_id == self._end_id:
                break
            self._next_id += 1
            self._waiting.popleft()(self._next_id - 1, now_ms)
        if self._end_id - self._next_id < PREFETCH_BELOW and self._following is None:
            self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        request = API_KEYS[ALLOCATE_PRODUCER_IDS].request.new(
            broker_id=self._broker.node_id, broker_epoch=self._broker.lifecycle.broker_epoch
        )
        self._broker.controller.send(ALLOCATE_PRODUCER_IDS, request, self._allocated)

    def _allocated(self, response: Message | None, now_ms: int) -> None:
        self._is_asking = False
        if response is None or response.error_code:
            self._broker.timer.schedule(now_ms + RETRY_MS, self._serve)
            return
        start = response.producer_id_start
        self._following = (start, start + response.producer_id_len)
        self._serve(now_ms)
