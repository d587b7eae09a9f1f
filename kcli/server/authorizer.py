"""The interface that says what a principal may do. The broker's handlers ask it, the controller's do not.

Operations and resource types are Kafka's, by name: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION,
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE on TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER.
"""

from __future__ import annotations

from typing import Protocol

from kcli.server.events import Connection

# The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Says what may be done."""

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        """True where the connection's principal may do `operation` on the resource, from its host."""
        ...

    def is_allowed_somewhere(self, connection: Connection, operation: str, resource_type: str) -> bool:
        """True where the principal may do `operation` on some resource of the type (KIP-679)."""
        ...


class AllowAll:
    """The authorizer of a broker without authorizer.class.name."""

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        """True, always."""
        return True

    def is_allowed_somewhere(self, connection: Connection, operation: str, resource_type: str) -> bool:
        """True, always."""
        return True
