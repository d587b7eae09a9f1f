"""The interface that decides what a principal may do. The broker's handlers ask it, and the controller for an Envelope only.

Operations and resource types are Kafka's, by name: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION,
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE on TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN, USER.
"""

from __future__ import annotations

from typing import Protocol

from kcli.server.events import Connection

# The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides what may be done (Kafka: org.apache.kafka.server.authorizer.Authorizer)."""

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        """Return whether the connection's principal may do `operation` on the resource, from its host."""
        ...

    def is_allowed_by_type(self, connection: Connection, operation: str, resource_type: str) -> bool:
        """Return whether the principal may do `operation` on at least one resource of the type (KIP-679)."""
        ...


class AllowAll:
    """The authorizer of a broker without authorizer.class.name."""

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        """Return True."""
        return True

    def is_allowed_by_type(self, connection: Connection, operation: str, resource_type: str) -> bool:
        """Return True."""
        return True
