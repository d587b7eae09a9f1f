"""Records are deserialized by the caller of poll, under the lock of the client's thread, which sends the heartbeats.

Slow deserializers must not keep that thread from them: records are collected in slices. The first has FIRST_SLICE records, each
next one twice as many; after a slow one the thread is let in, and the next slice has one record.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from kcli.client.errors import FetchedRecordError
from kcli.client.shell.client_thread import ClientThread

_Record = TypeVar("_Record")
FIRST_SLICE = 8
SLOW_SLICE_MS = 5


def collect_in_slices(
    thread: ClientThread,
    collect: Callable[[int, int], list[_Record]],
    found: list[_Record],
    most: int,
    keep: Callable[[FetchedRecordError], object],
) -> None:
    """Append up to `most` records to `found`, by calls of `collect(count, now_ms)`, until one returns fewer than `count`.

    Raises FetchedRecordError if the first record cannot be read; for a later one, `keep(error)` is called.
    """
    count = FIRST_SLICE
    while len(found) < most:
        count = min(count, most - len(found))
        begin_ms = thread.clock.now_ms()
        try:
            new = thread.call_lightly(partial(collect, count))
        except FetchedRecordError as error:
            if not found:
                raise
            keep(error)
            return
        found += new
        if len(new) < count:
            return
        count *= 2
        if thread.clock.now_ms() - begin_ms > SLOW_SLICE_MS:
            count = 1
            thread.let_in()
