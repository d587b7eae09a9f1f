"""DescribeCluster: the cluster's id, its brokers, and a node that takes what the controller decides (KIP-700, KIP-919).

endpoint type        answered with
-------------------  -----------------------------------------------------------------------------------------------
1 (version 0 too)    the brokers that are reached on the client's listener; from version 2 on, where the client asks
                     for it, those that are fenced, too
2                    MISMATCHED_ENDPOINT_TYPE: brokers do not tell of controllers
any other            UNSUPPORTED_ENDPOINT_TYPE
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.authorized_operations import authorized_operations
from kcli.server.apis.context import RequestContext

_BROKERS = 1
_CONTROLLERS = 2
_NO_OPERATIONS = 0


def handle_describe_cluster(context: RequestContext, request: Message) -> Message:
    """Answer a DescribeClusterRequest."""
    if request.endpoint_type != _BROKERS:
        return _refuse(context, request.endpoint_type)
    broker, listener = context.broker, context.connection.listener
    reached = {
        node_id: registration
        for node_id, registration in broker.metadata.image.brokers.items()
        if listener in registration.endpoints and (request.include_fenced_brokers or not registration.is_fenced)
    }
    alive = [node_id for node_id, registration in reached.items() if not registration.is_fenced]
    response = context.new(
        "DescribeClusterResponse",
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id if broker.node_id in alive else next(iter(alive), -1),
        brokers=[
            context.new(
                "DescribeClusterBroker",
                broker_id=node_id,
                host=registration.endpoints[listener].host,
                port=registration.endpoints[listener].port,
                rack=registration.rack,
                is_fenced=registration.is_fenced,
            )
            for node_id, registration in reached.items()
        ],
    )
    if request.include_cluster_authorized_operations:
        may_describe = context.is_allowed("DESCRIBE", "CLUSTER")
        response.cluster_authorized_operations = authorized_operations(context, "CLUSTER") if may_describe else _NO_OPERATIONS
    return response


def _refuse(context: RequestContext, endpoint_type: int) -> Message:
    code, sentence = error_codes.UNSUPPORTED_ENDPOINT_TYPE, f"{endpoint_type} is no type of endpoint; 1 is, for brokers"
    if endpoint_type == _CONTROLLERS:
        code = error_codes.MISMATCHED_ENDPOINT_TYPE
        sentence = "this is a broker's endpoint, not a controller's; ask at a listener of controller.listener.names"
    return context.new("DescribeClusterResponse", error_code=code, error_message=sentence)
