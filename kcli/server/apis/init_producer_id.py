"""InitProducerId: an id and an epoch for an idempotent producer.

transactional id   producer id, epoch   answered with
-----------------  -------------------  ----------------------------------------------------------------------------
null               none                 a new id, epoch 0
null               any (KIP-360)        a new id as well: without a transaction there is nothing to keep
empty                                   INVALID_REQUEST
any                                     INVALID_REQUEST: transactions are not served yet

Without a transactional id it takes IDEMPOTENT_WRITE on the cluster, or WRITE on some topic (KIP-679; KafkaApis of Kafka 4.3).
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

_NO_EPOCH = -1


def handle_init_producer_id(context: RequestContext, request: Message) -> Message | None:
    """Answer an InitProducerIdRequest, once there is an id."""
    make = context.api.response.new
    transactional_id = request.transactional_id
    if transactional_id is not None:
        if not context.is_allowed("WRITE", "TRANSACTIONAL_ID", transactional_id):
            return make(error_code=error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=_NO_EPOCH)
        return make(error_code=error_codes.INVALID_REQUEST, producer_epoch=_NO_EPOCH)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        return make(error_code=error_codes.INVALID_REQUEST, producer_epoch=_NO_EPOCH)
    if not (context.is_allowed("IDEMPOTENT_WRITE", "CLUSTER") or context.is_allowed_by_type("WRITE", "TOPIC")):
        return make(error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=_NO_EPOCH)

    def given(producer_id: int, now_ms: int) -> None:
        context.respond(make(error_code=error_codes.NONE, producer_id=producer_id, producer_epoch=0))

    context.broker.producer_ids.next(given, context.now_ms)
    return None
