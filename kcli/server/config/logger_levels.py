"""The levels of a node's loggers as configurations: the resource BROKER_LOGGER of IncrementalAlterConfigs (KIP-412).

    operation         effect                                    refused, and with which error
    ----------------  ----------------------------------------  ------------------------------------------------------------
    SET               changes the level of a logger             an unknown logger or level: INVALID_CONFIG
    DELETE            gives it the level of its parent          an unknown logger: INVALID_CONFIG; root: INVALID_REQUEST
    APPEND, SUBTRACT  -                                         INVALID_REQUEST

The node that gets the request answers for these resources itself, because levels are not stored: a broker forwards the other
resources of the request to the controller and puts the responses together, as Kafka's ConfigAdminManager does. All changes of a
resource are checked before the first one is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, INCREMENTAL_ALTER_CONFIGS, Api
from kcli.protocol.message import Message
from kcli.server.config.alter_configs import DELETE, SET, Operation, check_operations
from kcli.server.config.request_errors import ConfigRequestError, invalid_config, invalid_request
from kcli.server.log_lines import LEVELS, ROOT, Loggers
from kcli.state.image_records import number_of
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES

BROKER_LOGGER = number_of(CONFIG_RESOURCE_TYPES, "BROKER_LOGGER")


def names_loggers(request: Message) -> bool:
    """Return whether an IncrementalAlterConfigs has resources of type BROKER_LOGGER."""
    return any(one.resource_type == BROKER_LOGGER for one in request.resources)


def alter_loggers(request: Message, node_id: int, loggers: Loggers, *, is_allowed: bool = True) -> dict[int, Message]:
    """Change the levels that a request names, if the client is allowed to.

    Return the responses of the BROKER_LOGGER resources by their places in the request.
    """
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    responses = {}
    for place, one in enumerate(request.resources):
        if one.resource_type != BROKER_LOGGER:
            continue
        code, text = error_codes.NONE, None
        try:
            if counts[one.resource_type, one.resource_name] > 1:
                raise invalid_request("the request names this resource twice")
            if not is_allowed:
                raise ConfigRequestError(
                    error_codes.CLUSTER_AUTHORIZATION_FAILED, "the client may not change levels of loggers"
                )
            changes = _changes(one, node_id, loggers.levels())
            for name, level in changes.items() if not request.validate_only else ():
                loggers.set_level(name, level)
        except ConfigRequestError as error:
            code, text = error.code, str(error)
        responses[place] = alter_response(API_KEYS[INCREMENTAL_ALTER_CONFIGS], one, code, text)
    return responses


def _changes(resource: Message, node_id: int, levels: Mapping[str, str]) -> dict[str, str | None]:
    """Check the changes of a resource; return the new level of each logger, None for that of its parent."""
    operations = [Operation(config.name, config.config_operation, config.value) for config in resource.configs]
    check_operations(operations)
    if resource.resource_name != str(node_id):
        raise invalid_request(f"this is node {node_id}, and the request names node {resource.resource_name!r}")
    for name, operation, level in operations:
        if operation not in (SET, DELETE):
            raise invalid_request(f"the level of logger {name} is not a list; use SET or DELETE")
        if name not in levels:
            raise invalid_config(f"logger {name} does not exist; this node has {', '.join(sorted(levels))}")
        if operation == SET and level not in LEVELS:
            raise invalid_config(f"the level of logger {name} cannot be {level}; the levels are {', '.join(LEVELS)}")
        if operation == DELETE and name == ROOT:
            raise invalid_request(f"the level of logger {ROOT} cannot be removed; set another one")
    return {name: level if operation == SET else None for name, operation, level in operations}


def alter_response(api: Api, resource: Message, code: int, text: str | None) -> Message:
    """Return the response for one resource of a request of AlterConfigs or IncrementalAlterConfigs."""
    made = api.response.classes["AlterConfigsResourceResponse"]
    return made(error_code=code, error_message=text, resource_type=resource.resource_type, resource_name=resource.resource_name)


def without(api: Api, request: Message, answered: Container[int]) -> Message:
    """Return the request for the resources that are not answered yet; `answered` has their places in the request."""
    others = [one for place, one in enumerate(request.resources) if place not in answered]
    return api.request.new(resources=others, validate_only=request.validate_only)


def joined_response(
    api: Api, answered: Mapping[int, Message], others: Iterable[Message] = (), throttle_time_ms: int = 0
) -> Message:
    """Return the response to a request; `others` are the responses of the resources that are not `answered` by their places."""
    responses = list(others)
    for place in sorted(answered):
        responses.insert(place, answered[place])
    return api.response.new(responses=responses, throttle_time_ms=throttle_time_ms)
