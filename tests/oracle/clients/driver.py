"""What the drivers written in Python have in common: the loop over the steps of a plan (see plan.py)."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

MAX_REQUEST_BYTES = 10_000_000  # the clients' own limits are above the broker's, whose answer is wanted

Step = dict[str, Any]
Answer = dict[str, Any]


class RefusedError(Exception):
    """What the client said of a step that failed, under the client's own name for it."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class UnableError(Exception):
    """The client cannot do this step."""


def main(handlers: dict[str, Callable[[Step], Answer]]) -> None:
    """Answer the steps on stdin; an exception that is no RefusedError counts under the name of its class."""
    for line in sys.stdin:
        step = json.loads(line)
        try:
            handler = handlers.get(step["do"])
            if handler is None:
                raise UnableError(f"it has no {step['do']}")
            answer = handler(step)
        except UnableError as unable:
            answer = {"unable": str(unable)}
        except RefusedError as refused:
            answer = {"error": refused.name, "message": str(refused)}
        except Exception as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)


def decode(text: str | None) -> bytes | None:
    """A key or value of a step."""
    return None if text is None else base64.b64decode(text)


def encode(data: bytes | None) -> str | None:
    """A key or value of an answer."""
    return None if data is None else base64.b64encode(data).decode()
