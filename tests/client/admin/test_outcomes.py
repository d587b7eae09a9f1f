"""Protects scripts that create or delete several things: where the errors of items are is one rule for all methods of Admin."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import kcli.client.admin.operation as operations
from kcli.client import Admin, KafkaError, value_of, values_of
from kcli.client.admin.operation import Outcomes
from kcli.protocol.error_codes import TOPIC_ALREADY_EXISTS

OPERATIONS = {name: method.__wrapped__ for name, method in inspect.getmembers(Admin) if hasattr(method, "__wrapped__")}
# What they take are not items that are each answered, but what a list is limited to.
FILTERS = {
    "describe_client_quotas",
    "describe_delegation_token",
    "find_hanging_transactions",
    "list_config_resources",
    "list_groups",
    "list_partition_reassignments",
    "list_transactions",
}


def _takes_items(operation: Any) -> bool:
    first = next(iter(inspect.signature(operation).parameters.values()), None)
    return first is not None and str(first.annotation).startswith(("Iterable[", "Mapping[", "Sequence["))


def test_each_method_about_several_items_returns_their_errors() -> None:
    """And none raises the error of one item: the others may have been changed."""
    several = {name for name, operation in OPERATIONS.items() if _takes_items(operation)}
    assert {"create_topics", "delete_groups", "incremental_alter_configs"} <= several
    returned = {name: inspect.signature(OPERATIONS[name]).return_annotation for name in several - FILTERS}
    assert {name for name, kind in returned.items() if not kind.startswith("Operation[Outcomes[")} == set()


def test_the_first_error_of_several_items_is_raised() -> None:
    refused = KafkaError(TOPIC_ALREADY_EXISTS, "topic b exists")
    outcomes: Outcomes[str, int] = {"a": 1, "b": refused, "c": KafkaError(-1, "another")}
    with pytest.raises(KafkaError, match="topic b exists"):
        values_of(outcomes)
    assert values_of({"a": 1, "c": None}) == {"a": 1, "c": None}
    assert value_of(outcomes["a"]) == 1
    assert (value_of, values_of) == (operations.value_of, operations.values_of)
