"""AllocateProducerIds: blocks of producer ids for brokers; no id is allocated twice (KIP-730)."""

from __future__ import annotations

from kcli.format.primitives import INT64_MAX
from kcli.protocol import error_codes
from kcli.protocol.apis import ALLOCATE_PRODUCER_IDS, API_KEYS
from kcli.protocol.message import Message
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.server.raft.metadata_batches import new_record

BLOCK_SIZE = 1000


class ProducerIdControlManager:
    """Allocation of producer ids."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def allocate_producer_ids(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an AllocateProducerIds. Raises ApiError for a stale broker, or if no ids are left."""
        self._state.check_epoch(request.broker_id, request.broker_epoch)
        first = max(self._state.image.next_producer_id, 0)
        if first > INT64_MAX - BLOCK_SIZE:
            raise ApiError(error_codes.UNKNOWN_SERVER_ERROR, "all producer ids are allocated")
        record = new_record(
            "ProducerIdsRecord",
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=first + BLOCK_SIZE,
        )
        response = API_KEYS[ALLOCATE_PRODUCER_IDS].response.new(producer_id_start=first, producer_id_len=BLOCK_SIZE)
        return ControllerResult([record], response)
