"""The requests of SASL and of ACLs, on a node that has neither: Kafka's answers without an authorizer, on a plain listener.

    request                              is answered with
    -----------------------------------  -----------------------------------------------------------------------------
    SaslHandshake, SaslAuthenticate      ILLEGAL_SASL_STATE: the connection is authenticated as it is. A client for which SASL
                                         is configured reports it, and closes the connection
    DescribeAcls                         SECURITY_DISABLED
    CreateAcls, DeleteAcls               SECURITY_DISABLED for each ACL or filter; nothing is forwarded to the controller

Clients ask for ACLs to see whether there are any: MirrorMaker 2 copies them by default.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_ACLS, DELETE_ACLS, DESCRIBE_ACLS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

_NO_AUTHORIZER = "No Authorizer is configured."
_NO_AUTHORIZER_ON_BROKER = "No Authorizer is configured on the broker"
_AUTHENTICATED = "SaslAuthenticate request received after successful authentication"


def handle_security(context: RequestContext, request: Message) -> Message:
    """Answer any of these requests on a broker's listener."""
    return answer_security(context.api.key, request)


def answer_security(key: int, request: Message) -> Message:
    """Answer any of these requests, on the listener of a broker or a controller. Raises KeyError for any other."""
    return WITHOUT_SECURITY[key](request)


def _sasl_handshake(request: Message) -> Message:
    return API_KEYS[SASL_HANDSHAKE].response.new(error_code=error_codes.ILLEGAL_SASL_STATE, mechanisms=[])


def _sasl_authenticate(request: Message) -> Message:
    code = error_codes.ILLEGAL_SASL_STATE
    return API_KEYS[SASL_AUTHENTICATE].response.new(error_code=code, error_message=_AUTHENTICATED, auth_bytes=b"")


def _describe_acls(request: Message) -> Message:
    code = error_codes.SECURITY_DISABLED
    return API_KEYS[DESCRIBE_ACLS].response.new(error_code=code, error_message=_NO_AUTHORIZER_ON_BROKER, resources=[])


def _create_acls(request: Message) -> Message:
    response = API_KEYS[CREATE_ACLS].response
    make, code = response.classes["AclCreationResult"], error_codes.SECURITY_DISABLED
    return response.new(results=[make(error_code=code, error_message=_NO_AUTHORIZER) for _ in request.creations])


def _delete_acls(request: Message) -> Message:
    response = API_KEYS[DELETE_ACLS].response
    make, code = response.classes["DeleteAclsFilterResult"], error_codes.SECURITY_DISABLED
    results = [make(error_code=code, error_message=_NO_AUTHORIZER, matching_acls=[]) for _ in request.filters]
    return response.new(filter_results=results)


WITHOUT_SECURITY: dict[int, Callable[[Message], Message]] = {
    SASL_HANDSHAKE: _sasl_handshake,
    SASL_AUTHENTICATE: _sasl_authenticate,
    DESCRIBE_ACLS: _describe_acls,
    CREATE_ACLS: _create_acls,
    DELETE_ACLS: _delete_acls,
}
