"""IncrementalAlterConfigs and AlterConfigs, resource by resource (KIP-226, KIP-339).

The changes of one resource are decided in kcli.server.config.alter_configs. A resource that is listed twice or has an invalid
change is refused; the other resources of the request are altered.

    resource                                     preprocessed here (list operations, sensitive values)
    -------------------------------------------  ---------------------------------------------------------------------
    TOPIC, GROUP, CLIENT_METRICS                 yes
    BROKER "", BROKER with this node's id        yes, unless a broker has forwarded the request: it has preprocessed it
                                                 (kcli.server.apis.configs) with its own configuration
    BROKER, another registered node              no: a controller does not have that node's configuration
    BROKER, a node that is not registered        refused with BROKER_ID_NOT_REGISTERED

A request that no broker has forwarded may only remove values of cordoned.log.dirs: a controller does not know the directories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kcli.protocol import error_codes
from kcli.protocol.apis import ALTER_CONFIGS, API_KEYS, INCREMENTAL_ALTER_CONFIGS
from kcli.protocol.message import Message
from kcli.server.config.alter_configs import (
    SET,
    Operation,
    check_operations,
    check_unforwarded,
    decide,
    decide_replacement,
    preprocess,
    preprocess_replacement,
    resource_of,
)
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.controller.controller_result import ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState
from kcli.state.metadata_values import ConfigResource


class ConfigurationControlManager:
    """Changes of configurations."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def incremental_alter_configs(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an IncrementalAlterConfigs."""

        def alter(resource: ConfigResource, configs: list[Message]) -> list[Message]:
            operations = [Operation(config.name, config.config_operation, config.value) for config in configs]
            check_operations(operations)
            if not info.is_forwarded:
                check_unforwarded(resource, operations, self._state.image)
            if self._is_preprocessed_here(resource, info):
                preprocess(resource, operations, self._state.image, self._state.dynamic)
            return decide(resource, operations, self._state.image, self._state.dynamic.current)

        return _alter(INCREMENTAL_ALTER_CONFIGS, request, alter)

    def alter_configs(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an AlterConfigs, which replaces all configurations of a resource."""

        def alter(resource: ConfigResource, configs: list[Message]) -> list[Message]:
            values = {config.name: config.value for config in configs}
            if not info.is_forwarded:
                sets = [Operation(name, SET, value) for name, value in values.items()]
                check_unforwarded(resource, sets, self._state.image)
            if self._is_preprocessed_here(resource, info):
                preprocess_replacement(resource, values, self._state.dynamic)
            return decide_replacement(resource, values, self._state.image, self._state.dynamic.current)

        return _alter(ALTER_CONFIGS, request, alter)

    def _is_preprocessed_here(self, resource: ConfigResource, info: ControllerRequestContext) -> bool:
        """Return whether a change is to be checked as a broker does. Raises ConfigRequestError for a node that is not there."""
        if resource.type != "BROKER":
            return True
        image = self._state.image
        if resource.name in ("", str(self._state.node_id)) or not resource.name.isdecimal():
            return not info.is_forwarded
        if int(resource.name) not in image.brokers and int(resource.name) not in image.controllers:
            raise ConfigRequestError(error_codes.BROKER_ID_NOT_REGISTERED, f"node {resource.name} is not registered")
        return False


def _alter(key: int, request: Message, alter: Callable[[ConfigResource, list[Message]], list[Message]]) -> ControllerResult:
    made = API_KEYS[key].response.classes["AlterConfigsResourceResponse"]
    named = [(one.resource_type, one.resource_name) for one in request.resources]
    counts = Counter(named)
    records: list[Message] = []
    responses = []
    for one, name in zip(request.resources, named):
        code, text = error_codes.NONE, None
        try:
            if counts[name] > 1:
                raise ConfigRequestError(error_codes.INVALID_REQUEST, "the request names this resource twice")
            records += alter(resource_of(*name), one.configs)
        except ConfigRequestError as error:
            code, text = error.code, str(error)
        responses.append(made(error_code=code, error_message=text, resource_type=name[0], resource_name=name[1]))
    return ControllerResult([] if request.validate_only else records, API_KEYS[key].response.new(responses=responses))
