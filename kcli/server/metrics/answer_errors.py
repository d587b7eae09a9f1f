"""Counts the errors in answers as Kafka does: each error_code that an answer has, of the whole and of its parts, 0 as well.

Where the codes stand in an answer is found out once an API, from its declaration. Produce and Fetch are left out: to look
through their answers would cost each more than a microsecond, and what fails in them is counted by topic anyway.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kcli.protocol.apis import API_KEYS, FETCH, PRODUCE
from kcli.protocol.message import Message
from kcli.protocol.schema import Struct

NOT_COUNTED = (PRODUCE, FETCH)


class AnswerErrors:
    """How often which error was answered: `counts` is by API key and error code."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}

    def count(self, api_key: int, answer: Message) -> None:
        """Count the errors of an answer."""
        if api_key in NOT_COUNTED:
            return
        counts = self.counts
        for path in code_paths(api_key):
            for holder in _holders([answer], path):
                key = (api_key, holder.error_code)
                counts[key] = counts.get(key, 0) + 1


@cache
def code_paths(api_key: int) -> tuple[tuple[str, ...], ...]:
    """The attributes that lead from an API's answer to whatever has an error_code; () is the answer itself."""
    return tuple(_paths(API_KEYS[api_key].response.schema.root))


def _paths(struct: Struct) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for field in struct.fields:
        if field.attribute == "error_code":
            found.append(())
        elif field.type.struct is not None:
            found += [(field.attribute, *path) for path in _paths(field.type.struct)]
    return found


def _holders(values: list[Any], path: tuple[str, ...]) -> list[Any]:
    for attribute in path:
        inner: list[Any] = []
        for value in values:
            held = getattr(value, attribute)
            if isinstance(held, list):
                inner += held
            elif held is not None:
                inner.append(held)
        values = inner
    return values
