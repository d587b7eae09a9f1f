"""Producer ids for idempotent producers, from blocks that the controller allocates to a broker (KIP-730).

A block has 1,000 ids. The next one is requested when PREFETCH_BELOW ids of the current one are left, so that only the first
producer has to wait for the controller. A request that fails is repeated after RETRY_MS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kcli.network.timing_wheel import Timer
from kcli.protocol.apis import ALLOCATE_PRODUCER_IDS, API_KEYS
from kcli.protocol.message import Message
from kcli.server.broker.broker_lifecycle import BrokerLifecycleManager
from kcli.server.broker.node_to_controller_channel import NodeToControllerChannelManager

PREFETCH_BELOW = 100
RETRY_MS = 50

IdCallback = Callable[[int, int], None]


class ProducerIdManager:
    """The producer ids of the broker `node_id` (Kafka: RPCProducerIdManager)."""

    def __init__(
        self, node_id: int, lifecycle: BrokerLifecycleManager, controller: NodeToControllerChannelManager, timer: Timer
    ) -> None:
        self._node_id = node_id
        self._lifecycle = lifecycle
        self._controller = controller
        self._timer = timer
        self._next_id = 0
        self._end_id = 0
        self._next_block: tuple[int, int] | None = None
        self._is_asking = False
        self._waiting: deque[IdCallback] = deque()

    def next(self, callback: IdCallback, now_ms: int) -> None:
        """Have `callback(producer_id, now_ms)` called, before this returns if an id is available."""
        self._waiting.append(callback)
        self._serve(now_ms)

    def _serve(self, now_ms: int) -> None:
        while self._waiting:
            if self._next_id == self._end_id and self._next_block is not None:
                self._next_id, self._end_id = self._next_block
                self._next_block = None
            if self._next_id == self._end_id:
                break
            self._next_id += 1
            self._waiting.popleft()(self._next_id - 1, now_ms)
        if self._end_id - self._next_id < PREFETCH_BELOW and self._next_block is None:
            self._allocate()

    def _allocate(self) -> None:
        if self._is_asking:
            return
        self._is_asking = True
        request = API_KEYS[ALLOCATE_PRODUCER_IDS].request.new(
            broker_id=self._node_id, broker_epoch=self._lifecycle.broker_epoch
        )
        self._controller.send(ALLOCATE_PRODUCER_IDS, request, self._allocated)

    def _allocated(self, response: Message | None, now_ms: int) -> None:
        self._is_asking = False
        if response is None or response.error_code:
            self._timer.schedule(now_ms + RETRY_MS, self._serve)
            return
        start = response.producer_id_start
        self._next_block = (start, start + response.producer_id_len)
        self._serve(now_ms)
