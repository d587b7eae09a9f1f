"""Protects the answers of a node without security to clients of secured clusters: Kafka's errors, and the connection stays.

MirrorMaker 2 lists ACLs by default and logged a stack trace for each try.
"""

from __future__ import annotations

import pytest

from kcli.protocol import apis, error_codes
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import WholeNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> WholeNode:
    return WholeNode(tmp_path_factory.mktemp("node") / "data")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_disabled(node: WholeNode, version: int) -> None:
    found = ask(node, apis.DESCRIBE_ACLS, version, resource_type_filter=1, operation=1, permission_type=1)
    assert (found.error_code, found.error_message) == (
        error_codes.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )
    acl = struct(apis.CREATE_ACLS, "AclCreation", resource_type=2, resource_name="t", principal="User:a", host="*")
    made = ask(node, apis.CREATE_ACLS, version, creations=[acl, acl])
    assert [one.error_code for one in made.results] == [error_codes.SECURITY_DISABLED] * 2
    acl_filter = struct(apis.DELETE_ACLS, "DeleteAclsFilter", resource_type_filter=2, operation=1, permission_type=1)
    deleted = ask(node, apis.DELETE_ACLS, version, filters=[acl_filter])
    assert [(one.error_code, one.matching_acls) for one in deleted.filter_results] == [(error_codes.SECURITY_DISABLED, [])]


def test_a_client_with_sasl_learns_that_the_listener_has_none(node: WholeNode) -> None:
    """And its connection stays: it may go on without, as at a broker of Kafka."""
    connection = node.connection()
    for version in (0, 1):
        answer = ask(node, apis.SASL_HANDSHAKE, version, connection=connection, mechanism="PLAIN")
        assert (answer.error_code, answer.mechanisms) == (error_codes.ILLEGAL_SASL_STATE, [])
    for version in (0, 1, 2):
        answer = ask(node, apis.SASL_AUTHENTICATE, version, connection=connection, auth_bytes=b"\0a\0b")
        assert (answer.error_code, answer.auth_bytes) == (error_codes.ILLEGAL_SASL_STATE, b"")
    served = {api.api_key for api in ask(node, apis.API_VERSIONS, 0, connection=connection).api_keys}
    assert served >= {17, 29, 30, 31, 36}
