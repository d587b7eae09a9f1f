"""Which operations a client may do on a resource, as the bits that responses carry (KIP-430).

Bit n stands for the operation of code n (kcli.state.metadata_values has the codes).
"""

from __future__ import annotations

from kcli.server.apis.context import RequestContext
from kcli.server.authorizer import CLUSTER_NAME
from kcli.state.metadata_values import ACL_OPERATIONS

# What can be done with a resource of each type, in Kafka's words.
_OPERATIONS = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "CLUSTER": (
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION"),
        *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"),
    ),
}
_CODES = {name: code for code, name in ACL_OPERATIONS.items()}


def authorized_operations(context: RequestContext, resource_type: str, name: str = CLUSTER_NAME) -> int:
    """The operations that the client of a request may do on a resource, as bits."""
    bits = 0
    for operation in _OPERATIONS[resource_type]:
        if context.is_allowed(operation, resource_type, name):
            bits |= 1 << _CODES[operation]
    return bits
